"""Figures of explanations: importance of columns, what drives the uncertainty, and effects of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from credo._arguments import check_fraction, check_integer
from credo.errors import InputError
from credo.plots._tools import axes_or_new, legend_on_top, to_array
from credo.plots.style import ALEATORIC, CYCLE, DASHES, DATA, EPISTEMIC, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

_MAX_LABEL = 30  # characters of a name at an axis
_MAX_TICKS = 6  # that are values of the grid; with more, matplotlib chooses
_DECILES = np.linspace(0.1, 0.9, 9)


def importance(
    names: Sequence[str],
    values: ArrayLike | Tensor,
    ax: Axes | None = None,
    *,
    error: ArrayLike | Tensor | None = None,
    band: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    level: float = 0.95,
    label: str = "importance",
) -> Axes:
    """Plot the importance of columns, the first at the top, with standard errors and epistemic bands.

    A dot is the importance for the prediction, the mixture of all draws; the bar below it contains the importances
    that the draws have, each by itself.

    Args:
        names: of the G columns.
        values: their importance ``[G]``.
        ax: the axes to draw on; ``None``: those of a new figure.
        error: standard errors ``[G]``; ``None`` shows none. Whiskers reach two of them to each side.
        band: the ends of the epistemic bands, ``[G]`` each; ``None`` shows none.
        level: the probability of the bands, for the legend.
        label: the label of the x axis.

    Returns:
        The axes.

    Raises:
        InputError: if there are no columns, or not one value per name.
    """
    level = check_fraction(level, "level")
    center = _check_values(values, names, "values")
    ax = axes_or_new(ax)
    places = np.arange(len(names))
    ax.axvline(0.0, color=MUTED, linewidth=0.8, zorder=1)
    spread = None if error is None else 2.0 * _check_values(error, names, "error")
    ax.errorbar(
        center,
        places if band is None else places - 0.17,
        xerr=spread,
        fmt="o",
        color=DATA,
        markersize=4,
        elinewidth=1.0,
        capsize=2.0,
        label="prediction" if error is None else "prediction ± 2 SE",
        zorder=3,
    )
    if band is not None:
        lower, upper = (_check_values(end, names, "band") for end in band)
        ax.barh(
            places + 0.17,
            upper - lower,
            left=lower,
            height=0.26,
            color=EPISTEMIC,
            alpha=0.45,
            linewidth=0,
            label=f"single draws, {level:.0%}",
        )
    ax.use_sticky_edges = False  # room between a bar and the axis
    _name_rows(ax, names)
    ax.set(xlabel=label)
    legend_on_top(ax)
    return ax


def uncertainty_shares(
    names: Sequence[str],
    epistemic: ArrayLike | Tensor,
    aleatoric: ArrayLike | Tensor,
    ax: Axes | None = None,
    *,
    epistemic_error: ArrayLike | Tensor | None = None,
    aleatoric_error: ArrayLike | Tensor | None = None,
) -> Axes:
    """Plot the shares of columns in the variation of both parts of the uncertainty, the first column at the top.

    Args:
        names: of the G columns.
        epistemic: the share of each in the epistemic part ``[G]``.
        aleatoric: its share in the aleatoric part ``[G]``.
        ax: the axes to draw on; ``None``: those of a new figure.
        epistemic_error: standard errors of the former ``[G]``; whiskers reach two of them to each side.
        aleatoric_error: standard errors of the latter ``[G]``.

    Returns:
        The axes.

    Raises:
        InputError: if there are no columns, or not one value per name.
    """
    parts = (
        ("epistemic", EPISTEMIC, 0.9, -0.19, epistemic, epistemic_error),
        ("aleatoric", ALEATORIC, 0.55, 0.19, aleatoric, aleatoric_error),
    )
    checked = [_check_values(shares, names, name) for name, _, _, _, shares, _ in parts]
    ax = axes_or_new(ax)
    for (name, color, alpha, shift, _, error), shares in zip(parts, checked, strict=True):
        spread = None if error is None else 2.0 * _check_values(error, names, f"{name}_error")
        ax.barh(
            np.arange(len(names)) + shift,
            shares,
            height=0.36,
            color=color,
            alpha=alpha,
            xerr=spread,
            error_kw={"elinewidth": 0.8, "capsize": 1.5, "ecolor": DATA},
            label=name,
        )
    _name_rows(ax, names)
    ax.set(xlabel="share of the variation between rows")
    ax.set_xlim(left=0.0)
    legend_on_top(ax)
    return ax


def column_effect(
    grid: ArrayLike,
    mean: ArrayLike | Tensor,
    ax: Axes | None = None,
    *,
    band: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    level: float = 0.95,
    individual: ArrayLike | Tensor | None = None,
    observed: ArrayLike | None = None,
    outside: ArrayLike | None = None,
    name: str | None = None,
    color: int = 0,
    xlabel: str = "value of the column",
    ylabel: str = "effect",
) -> Axes:
    """Plot the effect of a column: a curve over numbers or dates, or a point per category, with its epistemic band.

    Args:
        grid: the values of the column, ``[G]``: numbers, dates or text.
        mean: the effect ``[G]``.
        ax: the axes to draw on; ``None``: those of a new figure.
        band: the ends of the epistemic band, ``[G]`` each; ``None``, or NaN, shows none.
        level: the probability of the band, for the legend.
        individual: the effects for R single rows, ``[G, R]``, as thin lines; ``None`` shows none.
        observed: values of the column in the data, whose deciles are marked at the bottom; ``None`` shows none.
        outside: which grid points are outside the training range, ``[G]``; the curve is dashed there.
        name: the label in the legend; ``None``: a legend without it.
        color: which color of the cycle to use, for several effects on the same axes.
        xlabel: the name of the column.
        ylabel: the label of the y axis.

    Returns:
        The axes.

    Raises:
        InputError: if the shapes do not match.
    """
    level = check_fraction(level, "level")
    points = np.asarray(grid)
    center = _check_values(mean, points, "mean")
    lower, upper = (_check_values(end, points, "band") for end in (band or (np.full(len(points), np.nan),) * 2))
    has_band = bool(np.isfinite([lower, upper]).all())
    shade = CYCLE[check_integer(color, "color", minimum=0) % len(CYCLE)]
    ax = axes_or_new(ax)
    lines = None if individual is None else to_array(individual)
    if lines is not None and (lines.ndim != 2 or len(lines) != len(points)):
        raise InputError(f"individual must have one row per grid point, {len(points)}, got shape {list(lines.shape)}")
    label = _shorten(name) if name else "mean"
    band_label = f"{level:.0%} of the draws" if name is None else ""
    if points.dtype.kind in "OUS":
        places = np.arange(len(points))
        if has_band:
            ax.vlines(places, lower, upper, color=shade, alpha=0.35, linewidth=6, label=band_label)
        if lines is not None:
            ax.plot(places, lines, color=MUTED, alpha=0.5, linewidth=0.6, zorder=1)
        ax.plot(places, center, "o", color=shade, markersize=3, label=label, zorder=3)
        _name_categories(ax, [str(point) for point in points])
    else:
        if has_band:
            ax.fill_between(points, lower, upper, color=shade, alpha=0.25, linewidth=0.0, label=band_label)
        if lines is not None:
            ax.plot(points, lines, color=MUTED, alpha=0.5, linewidth=0.6, zorder=1)
        dashes = DASHES[color % len(DASHES)] if name else "-"
        marker = "o" if len(points) <= 2 else None
        inside = ~_flags(outside, len(points))
        if not inside.all():
            ax.plot(points, center, color=shade, linestyle=":", linewidth=1.2, label="outside the training range")
        curve = np.where(inside, center, np.nan)
        ax.plot(points, curve, color=shade, linestyle=dashes, marker=marker, markersize=4, label=label)
        _set_ticks(ax, points)
        if observed is not None:
            _mark_deciles(ax, np.asarray(observed))
    ax.set(xlabel=_escape(xlabel), ylabel=_escape(ylabel))
    legend_on_top(ax)
    return ax


def effect_map(
    x: ArrayLike,
    y: ArrayLike,
    values: ArrayLike | Tensor,
    ax: Axes | None = None,
    *,
    xlabel: str = "first column",
    ylabel: str = "second column",
    label: str = "effect",
    outside: ArrayLike | None = None,
) -> Axes:
    """Plot the joint effect of two columns as a map.

    Args:
        x: the values of the first column, ``[G]``.
        y: the values of the second column, ``[H]``.
        values: the effect ``[G, H]``.
        ax: the axes to draw on; ``None``: those of a new figure.
        xlabel: the name of the first column.
        ylabel: the name of the second column.
        label: the label of the color bar.
        outside: which grid points are outside the training range, ``[G, H]``; they are crossed out.

    Returns:
        The axes.

    Raises:
        InputError: if the shapes do not match.
    """
    horizontal, vertical, cells = np.asarray(x), np.asarray(y), to_array(values)
    if cells.shape != (len(horizontal), len(vertical)):
        raise InputError(
            f"values must have shape [{len(horizontal)}, {len(vertical)}], the numbers of values of both columns, got "
            f"{list(cells.shape)}"
        )
    ax = axes_or_new(ax)
    axes = [np.arange(len(points)) if points.dtype.kind in "OUS" else points for points in (horizontal, vertical)]
    image = ax.pcolormesh(*axes, cells.T, shading="nearest", cmap="viridis", rasterized=True)
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label=_escape(label))
    flagged = np.argwhere(_flags(outside, cells.size).reshape(cells.shape))
    ax.plot(axes[0][flagged[:, 0]], axes[1][flagged[:, 1]], "x", color="white", markersize=4, linestyle="none")
    if horizontal.dtype.kind in "OUS":
        _name_categories(ax, [str(point) for point in horizontal])
    if vertical.dtype.kind in "OUS":
        ax.set_yticks(axes[1], [_shorten(point) for point in vertical])
    ax.set(xlabel=_escape(xlabel), ylabel=_escape(ylabel))
    return ax


def _check_values(values: Any, names: Sequence[Any] | NDArray[Any], what: str) -> NDArray[np.float64]:
    array = to_array(values)
    if not len(names) or array.shape != (len(names),):
        raise InputError(
            f"{what} must hold one number for each of the {len(names)} names, got shape {list(array.shape)}"
        )
    return array


def _flags(outside: Any, size: int) -> NDArray[np.bool]:
    if outside is None:
        return np.zeros(size, dtype=bool)
    flags = np.asarray(outside, dtype=bool).reshape(-1)
    if len(flags) != size:
        raise InputError(f"outside must hold one flag for each of the {size} grid points, got {len(flags)}")
    return flags


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Label the rows of a horizontal chart, the first at the top, with room for a legend above."""
    ax.set_yticks(np.arange(len(names)), [_shorten(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color=MUTED, alpha=0.25, linewidth=0.6)


def _name_categories(ax: Axes, names: Sequence[str]) -> None:
    slanted = max(map(len, names)) * len(names) > 40
    ax.set_xticks(
        np.arange(len(names)),
        [_shorten(name) for name in names],
        rotation=40 if slanted else 0,
        ha="right" if slanted else "center",
    )
    ax.set_xlim(-0.6, len(names) - 0.4)


def _set_ticks(ax: Axes, points: NDArray[Any]) -> None:
    """Ticks at the values of a short grid of numbers, and short dates."""
    if points.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=_MAX_TICKS)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    elif len(points) <= _MAX_TICKS:
        ax.set_xticks(points, [f"{point:g}" for point in points])


def _mark_deciles(ax: Axes, values: NDArray[Any]) -> None:
    """Short marks at the deciles of the data, at the bottom of the axes."""
    deciles = np.unique(np.quantile(values, _DECILES, method="inverted_cdf"))
    height = np.full(len(deciles), 0.02)
    ax.plot(deciles, height, "|", color=DATA, markersize=6, alpha=0.7, transform=ax.get_xaxis_transform())


def _shorten(name: object) -> str:
    text = str(name)
    return _escape(text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…")


def _escape(text: str) -> str:
    """Text in which a dollar sign does not start a formula."""
    return text.replace("$", r"\$")
