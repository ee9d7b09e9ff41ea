"""Decisions: bandits and active learning."""
