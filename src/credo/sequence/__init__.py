"""Models of sequences: hidden Markov models, recurrent networks whose state is carried on, and beam search."""

from credo.sequence.beam_search import Beams, beam_search
from credo.sequence.carried_state import CarriedState
from credo.sequence.gaussian_hmm import Decoding, GaussianHMM
from credo.sequence.generation import Generated, generate
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
    "Beams",
    "CarriedState",
    "Decoding",
    "EntropyGap",
    "GaussianHMM",
    "Generated",
    "TokenStream",
    "beam_search",
    "dynamic_evaluation",
    "entropy_gap",
    "generate",
    "perplexity",
    "perplexity_bound",
    "token_entropy",
    "token_log_likelihood",
]
