"""The sections of a report, one a file, in the order in which a decision is made."""

from __future__ import annotations

from credo.report.evidence import Evidence
from credo.report.page import Section
from credo.report.sections import calibration, data, glossary, observed, rows, scores, training, uncertainty

_CHAPTERS = (scores, calibration, uncertainty, rows, observed, data, training)


def all_of(evidence: Evidence) -> list[Section]:
    """Every section of a report."""
    return [*(chapter.section(evidence) for chapter in _CHAPTERS), glossary.section()]
