"""How good are samples? Measures that need no likelihood of the model.

Every one of them can be fooled, and none replaces a look at the samples: a Parzen window rewards blurred averages
(Theis et al. 2016), a Fréchet distance sees two moments of some features, and coverage does not see quality.
"""

from credo.generative.evaluation.frechet import fit_lenet, frechet_distance, lenet_features
from credo.generative.evaluation.modes import Coverage, mode_coverage, nearest_distance, ring_coverage
from credo.generative.evaluation.parzen import ParzenEstimate, parzen_log_likelihood

__all__ = [
    "Coverage",
    "ParzenEstimate",
    "fit_lenet",
    "frechet_distance",
    "lenet_features",
    "mode_coverage",
    "nearest_distance",
    "parzen_log_likelihood",
    "ring_coverage",
]
