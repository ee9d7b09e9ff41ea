"""Models of sequences: hidden Markov models, and recurrent networks whose state is carried from batch to batch."""

from credo.sequence.carried_state import CarriedState
from credo.sequence.gaussian_hmm import Decoding, GaussianHMM
from credo.sequence.language_modeling import (
    EntropyGap,
    dynamic_evaluation,
    entropy_gap,
    perplexity,
    perplexity_bound,
    token_entropy,
    token_log_likelihood,
)
from credo.sequence.streams import TokenStream

__all__ = [
    "CarriedState",
    "Decoding",
    "EntropyGap",
    "GaussianHMM",
    "TokenStream",
    "dynamic_evaluation",
    "entropy_gap",
    "perplexity",
    "perplexity_bound",
    "token_entropy",
    "token_log_likelihood",
]
