"""Plate diagrams: the variables of a model, what each depends on, and what is repeated."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from credo.plots._graph import Edge, Node, Plate, PlateGraph
from credo.plots._plate_graphs import plate_graph
from credo.plots.style import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_RADIUS = 0.36  # of a variable
_DOT = 0.065  # radius of a number
_POINTS, _DOT_POINTS, _PLATE_POINTS = 13.0, 12.0, 11.0  # type of variables, numbers and plates
_SPACE = 0.12  # beside a label
_PAD = 0.22  # between nodes and their plate
_INCH = 0.62  # per unit of the positions
_OUTLINE, _PLATE, _SHADE = OKABE_ITO["vermilion"], OKABE_ITO["blue"], "#CFE3F2"


class _Box(NamedTuple):
    """A rectangle."""

    left: float
    bottom: float
    right: float
    top: float

    @classmethod
    def around(cls, boxes: list[_Box]) -> _Box:
        lefts, bottoms, rights, tops = zip(*boxes, strict=True)
        return cls(min(lefts), min(bottoms), max(rights), max(tops))

    def grown(self, left: float, bottom: float, right: float, top: float) -> _Box:
        return _Box(self.left - left, self.bottom - bottom, self.right + right, self.top + top)


def plate(model: object, ax: Axes | None = None, *, prediction: bool = True) -> Axes:
    r"""Plot the plate diagram of a model, drawn from its own structure.

    A circle is a random variable: shaded if there are data for it, open if it is latent. A dot is a number: an input, a
    hyperparameter with its value, or a point estimate. An arrow leads from each variable to those whose distribution
    depends on it; dashed arrows are an approximate posterior. A box is a plate, whose content is repeated as often as
    its corner says. Together they are the factorization p(x₁, …, x_K) = Π_k p(x_k | parents of x_k).

    The graph depends on the model: a precision that is given is a dot with its value, one that maximizes the evidence a
    dot, one with a Gamma prior a circle; weights are a circle under a posterior and a dot under ``MAP``; a learned
    noise is a dot and a heteroscedastic one an output of the network.

    Args:
        model: a model, fitted or not, as for :func:`credo.plots.plate_graph`, or a :class:`credo.plots.PlateGraph` of
            your own.
        ax: the axes to draw on; ``None``: those of a new figure.
        prediction: whether a regression or a network also shows a new input and its target.

    Returns:
        The axes.

    Raises:
        InputError: if the model is of an unknown kind.

    References:
        C. M. Bishop. Pattern Recognition and Machine Learning. 2006, Figures 8.7, 9.6, 10.5 and 12.10.

    Example:
        >>> credo.plots.plate(credo.mixture.GaussianMixture(3))
    """
    graph = model if isinstance(model, PlateGraph) else plate_graph(model, prediction=prediction)
    boxes = {node.name: _box(node, _label_side(node, graph)) for node in graph.nodes}
    plates = _plate_boxes(graph, boxes)
    frame = _Box.around([*boxes.values(), *plates]).grown(0.1, 0.1, 0.1, 0.1)
    ax = _new_axes(frame) if ax is None else ax
    size = _scale(ax, frame)
    for repeated, box in zip(graph.plates, plates, strict=True):
        _draw_plate(ax, repeated, box, size)
    for edge in graph.edges:
        _draw_edge(ax, edge, graph, size)
    for node in graph.nodes:
        _draw_node(ax, node, _label_side(node, graph), size)
    ax.set(xlim=(frame.left, frame.right), ylim=(frame.bottom, frame.top), aspect="equal")
    ax.set_axis_off()
    return ax


def _scale(ax: Axes, frame: _Box) -> float:
    """The size of type and lines: 1 in a figure of its own, less where the graph is drawn smaller."""
    width, height = ax.figure.dpi_scale_trans.inverted().transform(ax.get_window_extent().size)
    return float(min(width / (frame.right - frame.left), height / (frame.top - frame.bottom)) / _INCH)


def _new_axes(frame: _Box) -> Axes:
    """Axes that fill a new figure, one unit of the graph the same length in every figure."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(_INCH * (frame.right - frame.left), _INCH * (frame.top - frame.bottom)))
    return figure.add_axes((0.0, 0.0, 1.0, 1.0))


def _radius(node: Node) -> float:
    return _DOT if node.kind == "parameter" else _RADIUS


def _label_side(node: Node, graph: PlateGraph) -> tuple[int, int]:
    """The side of a dot on which there is most room for its label: the axis direction farthest from its edges."""
    touching = [edge for edge in graph.edges if node.name in (edge.source, edge.target)]
    neighbors = [graph[edge.target if edge.source == node.name else edge.source] for edge in touching]
    angles = [
        math.atan2(other.position[1] - node.position[1], other.position[0] - node.position[0]) for other in neighbors
    ]

    def room(side: tuple[int, int]) -> float:
        """The angle to the nearest edge."""
        return min((abs(math.remainder(math.atan2(side[1], side[0]) - a, math.tau)) for a in angles), default=0.0)

    return max(((0, 1), (-1, 0), (1, 0), (0, -1)), key=lambda side: round(room(side), 6))


def _box(node: Node, side: tuple[int, int]) -> _Box:
    """The room that a node takes, with its label."""
    (x, y), radius = node.position, _radius(node)
    box = _Box(x - radius, y - radius, x + radius, y + radius)
    if node.kind != "parameter":
        return box
    width, height = _text_size(node.label, _DOT_POINTS)
    right, up = side
    if right:
        return box.grown((right < 0) * (width + _SPACE), height / 2, (right > 0) * (width + _SPACE), height / 2)
    room = max(width / 2 - radius, 0.0)
    return box.grown(room, (up < 0) * (height + _SPACE), room, (up > 0) * (height + _SPACE))


@cache
def _text_size(label: str, points: float) -> tuple[float, float]:
    """Width and height of a label, in the units of the graph, and as high as a letter with an index at least."""
    from matplotlib.textpath import TextPath

    box = TextPath((0.0, 0.0), label, size=points).get_extents()
    return box.width / (72 * _INCH), max(box.height, points) / (72 * _INCH)


def _plate_boxes(graph: PlateGraph, boxes: dict[str, _Box]) -> list[_Box]:
    """The rectangle of every plate; one that holds all nodes of another leaves room for its border."""
    found: dict[int, _Box] = {}
    for i in sorted(range(len(graph.plates)), key=lambda i: len(graph.plates[i].nodes)):
        names = set(graph.plates[i].nodes)
        inner = [box for j, box in found.items() if set(graph.plates[j].nodes) < names]
        around = _Box.around([*(boxes[name] for name in names), *inner])
        width, height = _text_size(graph.plates[i].label, _PLATE_POINTS)
        missing = max(width + 2 * _SPACE - (around.right - around.left) - 2 * _PAD, 0.0) / 2
        found[i] = around.grown(_PAD + missing, _PAD + height, _PAD + missing, _PAD)
    return [found[i] for i in range(len(graph.plates))]


def _draw_plate(ax: Axes, repeated: Plate, box: _Box, size: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = 0.12
    ax.add_patch(
        FancyBboxPatch(
            (box.left + corner, box.bottom + corner),
            box.right - box.left - 2 * corner,
            box.top - box.bottom - 2 * corner,
            boxstyle=f"round,pad={corner},rounding_size={corner}",
            facecolor="none",
            edgecolor=_PLATE,
            linewidth=1.2 * size,
        )
    )
    ax.text(
        box.right - _SPACE,
        box.bottom + 0.75 * _SPACE,
        repeated.label,
        ha="right",
        va="bottom",
        fontsize=_PLATE_POINTS * size,
    )


def _draw_edge(ax: Axes, edge: Edge, graph: PlateGraph, size: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    source, target = graph[edge.source], graph[edge.target]
    (x0, y0), (x1, y1) = source.position, target.position
    back = any(other.source == edge.target and other.target == edge.source for other in graph.edges)
    bend = 0.45 if edge.dashed and back else 0.0  # two nodes with arrows both ways
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    turn = -math.atan(2 * bend)  # direction in which the arc leaves the source
    ends = []
    for (x, y), radius, angle, sign in (
        ((x0, y0), _radius(source), turn, 1.0),
        ((x1, y1), _radius(target), -turn, -1.0),
    ):
        cos, sin = math.cos(angle), math.sin(angle)
        ends.append((x + sign * radius * (cos * ux - sin * uy), y + sign * radius * (sin * ux + cos * uy)))
    style: dict[str, Any] = {"linestyle": (0, (4, 3))} if edge.dashed else {}
    ax.add_patch(
        FancyArrowPatch(
            *ends,
            arrowstyle="-|>",
            mutation_scale=11 * size,
            shrinkA=0.0,
            shrinkB=0.0,
            linewidth=1.1 * size,
            color="black",
            connectionstyle=f"arc3,rad={bend}",
            zorder=1.5,
            **style,
        )
    )


def _draw_node(ax: Axes, node: Node, side: tuple[int, int], size: float) -> None:
    from matplotlib.patches import Circle

    (x, y), radius = node.position, _radius(node)
    if node.kind == "parameter":
        ax.add_patch(Circle((x, y), radius, facecolor=_OUTLINE, edgecolor="none", zorder=2))
        right, up = side
        ax.text(
            x + right * (radius + 0.5 * _SPACE),
            y + up * (radius + 0.5 * _SPACE),
            node.label,
            ha={-1: "right", 0: "center", 1: "left"}[right],
            va={-1: "top", 0: "center", 1: "bottom"}[up],
            fontsize=_DOT_POINTS * size,
        )
        return
    shade = _SHADE if node.kind == "observed" else "white"
    ax.add_patch(Circle((x, y), radius, facecolor=shade, edgecolor=_OUTLINE, linewidth=1.4 * size, zorder=2))
    fitting = min(1.0, 1.7 * radius / _text_size(node.label, _POINTS)[0])
    ax.text(x, y, node.label, ha="center", va="center", fontsize=_POINTS * fitting * size, zorder=3)
