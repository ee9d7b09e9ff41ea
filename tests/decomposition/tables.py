"""Tables with known directions."""

from __future__ import annotations

import numpy as np


def spread_table(rows: int = 300, columns: int = 6, offset: float = 0.0, seed: int = 0) -> np.ndarray:
    """Variances of 1, ½, ¼, … along random orthogonal directions: no two of them alike."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(columns, columns)))[0]
    return offset + rng.normal(size=(rows, columns)) * 2.0 ** (-0.5 * np.arange(columns)) @ directions.T


def planted_table(rows: int, columns: int, dimensions: int, noise: float = 0.3, seed: int = 0) -> np.ndarray:
    """``dimensions`` directions of variance 1 or more in isotropic noise."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(columns, columns)))[0][:, :dimensions]
    scales = np.linspace(2.0, 1.0, dimensions)
    return (
        3.0 + (rng.normal(size=(rows, dimensions)) * scales) @ directions.T + noise * rng.normal(size=(rows, columns))
    )


def with_missing(table: np.ndarray, share: float = 0.2, seed: int = 1) -> np.ndarray:
    """``table`` with a share of its values missing at random."""
    return np.where(np.random.default_rng(seed).random(table.shape) < share, np.nan, table)
