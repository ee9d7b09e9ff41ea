"""Decisions made with a predictive distribution: what to label, which arm to pull, where to evaluate, when to abstain.

``uncertainty``
    scores of a ``Predictive`` by row, for active learning, selective prediction and out-of-distribution detection;
``batch_bald``
    the joint mutual information of a batch of rows;
``active_learning``, ``bandit``, ``optimization``
    loops around any model: a pool of unlabeled rows, a contextual bandit, a black-box function;
``selective``
    a threshold on the uncertainty, with a guarantee on the error rate of the accepted rows.
"""

from credo.decisions.active_learning import ActiveLearner
from credo.decisions.bandit import ThompsonBandit
from credo.decisions.batch_bald import BatchSelection, batch_bald
from credo.decisions.optimization import Evaluation, ThompsonOptimizer
from credo.decisions.selective import SelectivePredictor
from credo.decisions.uncertainty import out_of_distribution, uncertainty

__all__ = [
    "ActiveLearner",
    "BatchSelection",
    "Evaluation",
    "SelectivePredictor",
    "ThompsonBandit",
    "ThompsonOptimizer",
    "batch_bald",
    "out_of_distribution",
    "uncertainty",
]
