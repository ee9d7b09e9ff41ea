"""What the words on the page mean."""

from __future__ import annotations

from credo.report.page import Facts, Section

_TERMS = (
    (
        "Epistemic uncertainty",
        "What the model does not know because it has seen too little: many networks explain the training rows equally "
        "well and differ here. More rows to learn from, above all rows like these, make it smaller.",
    ),
    (
        "Aleatoric uncertainty",
        "The scatter that remains when two rows with the same columns have different targets. More rows do not make it "
        "smaller; columns that tell such rows apart do.",
    ),
    (
        "95 % interval",
        "Of a prediction: the range that should hold the target of 95 rows in 100. Of a score: the range in which it "
        "would lie, 95 times in 100, had other rows of the same kind been held out.",
    ),
    (
        "Calibrated",
        "What is said with a probability of 80 % comes true in 80 of 100 cases. A model that comes true less often is "
        "overconfident, one that comes true more often is underconfident.",
    ),
)


def section() -> Section:
    """A few terms, in two sentences each."""
    return Section("glossary", "What the words mean", [Facts(_TERMS)])
