"""Whole jobs, from data to table and figure, one file each."""
