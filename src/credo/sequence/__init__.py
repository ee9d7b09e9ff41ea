"""Models of rows that follow one another."""

from credo.sequence.gaussian_hmm import Decoding, GaussianHMM

__all__ = ["Decoding", "GaussianHMM"]
