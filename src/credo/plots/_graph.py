"""Directed graphs with plates: variables, what each depends on, and what is repeated."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, get_args

from credo._arguments import check_option
from credo.errors import InputError

Kind = Literal["observed", "latent", "parameter"]


@dataclass(frozen=True)
class Node:
    r"""A variable of a model.

    Attributes:
        name: identifies the node in edges and plates.
        label: what is written in it or beside it, in matplotlib's math notation.
        kind: ``"observed"``: a random variable with data, shaded; ``"latent"``: one without, open; ``"parameter"``: a
            number that is given or estimated, or an input: a dot.
        position: (x, y), in units of about two circles.

    Example:
        >>> credo.plots.Node("w", r"$\mathbf{w}$", "latent", (0.0, 1.0))
    """

    name: str
    label: str
    kind: Kind
    position: tuple[float, float]


@dataclass(frozen=True)
class Edge:
    """A dependence: the distribution of ``target`` is a function of ``source``.

    Attributes:
        source: the name of the parent.
        target: the name of the child.
        dashed: whether it belongs to an approximate posterior rather than to the model.

    Example:
        >>> credo.plots.Edge("w", "y")
    """

    source: str
    target: str
    dashed: bool = False


@dataclass(frozen=True)
class Plate:
    """A part of a graph that is repeated.

    Attributes:
        label: the number of repetitions, in matplotlib's math notation.
        nodes: the names of the nodes in it.

    Example:
        >>> credo.plots.Plate("$N$", ("x", "z"))
    """

    label: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class PlateGraph:
    """A directed graph with plates.

    Attributes:
        nodes: the variables.
        edges: the dependences.
        plates: the repeated parts; they may be nested, or share nodes.

    Raises:
        InputError: if there are no nodes, two of them have the same name or position, a kind is unknown, a label is
            empty, an edge or a plate names a node that does not exist, a plate is empty, or the edges of the model,
            which are not dashed, have a cycle.

    Example:
        >>> coin = credo.plots.Node("p", "$p$", "latent", (0, 1)), credo.plots.Node("x", "$x_n$", "observed", (0, 0))
        >>> graph = credo.plots.PlateGraph(coin, (credo.plots.Edge("p", "x"),), (credo.plots.Plate("$N$", ("x",)),))
        >>> credo.plots.plate(graph)
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    plates: tuple[Plate, ...] = ()

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if not names:
            raise InputError("nodes must hold at least one node, got none")
        if len(set(names)) != len(names):
            raise InputError(f"nodes must have different names, got {', '.join(names)}")
        for node in self.nodes:
            check_option(node.kind, "kind", get_args(Kind))
            same = next(other.name for other in self.nodes if other.position == node.position)
            if same != node.name:
                raise InputError(f"nodes must have different positions, but {same} and {node.name} share one")
        if "" in [*(node.label for node in self.nodes), *(plate.label for plate in self.plates)]:
            raise InputError("labels of nodes and plates must not be empty")
        if not all(plate.nodes for plate in self.plates):
            raise InputError("plates must hold at least one node each")
        used = [name for edge in self.edges for name in (edge.source, edge.target)]
        unknown = {*used, *(name for plate in self.plates for name in plate.nodes)} - set(names)
        if unknown:
            raise InputError(f"edges and plates must name nodes of the graph, got {', '.join(sorted(unknown))}")
        parents: dict[str, set[str]] = {name: set() for name in names}
        for edge in self.edges:
            if edge.source == edge.target:
                raise InputError(f"edges must lead to another node, but one leads from {edge.source} to itself")
            if not edge.dashed:
                parents[edge.target].add(edge.source)
        try:
            TopologicalSorter(parents).prepare()
        except CycleError as error:
            raise InputError(f"edges that are not dashed must have no cycle, got {' → '.join(error.args[1])}") from None

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)
