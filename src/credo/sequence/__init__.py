"""Models of sequences."""

from credo.sequence.gaussian_hmm import Decoding, GaussianHMM

__all__ = ["Decoding", "GaussianHMM"]
