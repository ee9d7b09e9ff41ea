"""Directed graphs of models: their variables, what each depends on, and what is repeated.

A builder reads the structure of one kind of model: which quantities have a prior, which are point estimates or given,
and how many components there are. Builders are found by the full name of a model's class, so that models of any package
can be described here without importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from credo.errors import InputError
from credo.hierarchical import HierarchicalNormal
from credo.plots._graph import Edge, Kind, Node, Plate, PlateGraph
from credo.posteriors.dropout_layers import LayerDropout
from credo.posteriors.empirical import Empirical
from credo.posteriors.point import PointMass


class _Builder:
    """Collects the parts of a graph."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self.plates: list[Plate] = []

    def add(self, kind: Kind, name: str, label: str, x: float, y: float, to: tuple[str, ...] = ()) -> None:
        """Add a node and its edges; the label is math, without dollar signs."""
        self.nodes[name] = Node(name, f"${label}$", kind, (x, y))
        self.edges += [Edge(name, target) for target in to]

    def constant(self, name: str, symbol: str, value: object, x: float, y: float, to: tuple[str, ...] = ()) -> None:
        """Add a number that is given, with its value, or estimated (``None``), with its symbol only."""
        shown = symbol if value is None else rf"{symbol} = {_number(value)}"
        self.add("parameter", name, shown, x, y, to)

    def plate(self, label: str, *names: str, size: int | None = None) -> None:
        """Add a plate around those of the nodes that exist."""
        text = label if size is None else f"{label} = {size}"
        self.plates.append(Plate(f"${text}$", tuple(name for name in names if name in self.nodes)))

    def predict(self, target: str, label: str, x: float, y: float, above: float) -> None:
        """Add a new input and its target, with the parents that a training target has."""
        parents = [edge.source for edge in self.edges if edge.target == target and edge.source != "x"]
        self.add("latent", "new " + target, label, x, y)
        self.add("parameter", "new x", r"\hat{\mathbf{x}}", x, above, ("new " + target,))
        self.edges += [Edge(parent, "new " + target) for parent in parents]

    def graph(self) -> PlateGraph:
        return PlateGraph(tuple(self.nodes.values()), tuple(self.edges), tuple(self.plates))


def _number(value: object) -> str:
    """A number in math notation, with three digits; several numbers as dots."""
    array = np.asarray(value, dtype=np.float64)
    if array.size != 1:
        return r"\ldots"
    digits = f"{array.item():.3g}"
    mantissa, _, exponent = digits.partition("e")
    if not exponent:
        return mantissa
    return rf"10^{{{int(exponent)}}}" if mantissa == "1" else rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


def _linear_regression(model: Any, prediction: bool) -> PlateGraph:
    """α → w → t_n ← β, as in Bishop's Figure 8.7; every weight has its own α for relevance determination."""
    graph, ard = _Builder(), model.hyperparameters == "ard"
    precision = 1.0 if model.weight_precision is None and model.prior_covariance is not None else model.weight_precision
    variational = model.hyperparameters == "variational"
    graph.add("observed", "t", "t_n", 0.0, 0.0)
    graph.add("parameter", "x", r"\mathbf{x}_n", 0.0, 1.25, ("t",))
    high = 2.0 if ard and model.fit_intercept else 1.25
    graph.add("latent", "w", "w_m" if ard else r"\mathbf{w}", 1.7, high, ("t",))
    symbol = r"\alpha_m" if ard else r"\alpha"
    _precision(graph, "alpha", symbol, precision, variational, 1.7, high + 1.25, 2.9, ("w",))
    if model.fit_intercept:
        graph.add("latent", "b", "b", 1.7, 0.1, ("t",))
    low = -1.0 if model.fit_intercept else -0.7
    _precision(graph, "beta", r"\beta", model.noise_precision, variational, 1.7, low, 2.9, ("t",))
    if prediction:
        graph.predict("t", r"\hat{t}", 3.4, 0.0, 1.25)
    graph.plate("N", "x", "t")
    if ard:
        graph.plate("M", "alpha", "w")
    return graph.graph()


def _precision(
    graph: _Builder,
    name: str,
    symbol: str,
    given: float | None,
    variational: bool,
    x: float,
    y: float,
    prior_x: float,
    to: tuple[str, ...],
) -> None:
    """A precision: a given number, a maximum of the evidence, or a variable with a Gamma prior."""
    if given is None and variational:
        graph.add("latent", name, symbol, x, y, to)
        graph.constant(f"{name} prior", rf"a_{{{symbol}}},\, b_{{{symbol}}}", None, prior_x, y, (name,))
    else:
        graph.constant(name, symbol, given, x, y, to)


def _logistic_regression(model: Any, prediction: bool) -> PlateGraph:
    """α → w → t_n, and an intercept."""
    graph = _Builder()
    given = None if model.weight_precision == "evidence" else model.weight_precision
    graph.add("observed", "t", "t_n", 0.0, 0.0)
    graph.add("parameter", "x", r"\mathbf{x}_n", 0.0, 1.25, ("t",))
    graph.add("latent", "w", r"\mathbf{w}", 1.7, 1.25, ("t",))
    graph.constant("alpha", r"\alpha", given, 1.7, 2.3, ("w",))
    if model.fit_intercept:
        graph.add("latent", "b", "b", 1.7, 0.0, ("t",))
    if prediction:
        graph.predict("t", r"\hat{t}", 3.4, 0.0, 1.25)
    graph.plate("N", "x", "t")
    return graph.graph()


def _gaussian_mixture(model: Any, prediction: bool) -> PlateGraph:
    """π → z_n → x_n ← μ_k, Σ_k, as in Bishop's Figure 9.6; a tied covariance is outside the plate of components."""
    graph, tied = _Builder(), model.covariance_type == "tied"
    graph.add("observed", "x", r"\mathbf{x}_n", 0.0, 0.0)
    graph.add("latent", "z", r"\mathbf{z}_n", 0.0, 1.5, ("x",))
    graph.constant("pi", r"\mathbf{\pi}", None, -1.6, 1.5, ("z",))
    graph.constant("mu", r"\mathbf{\mu}_k", None, 1.8, 0.5, ("x",))
    symbol = r"\mathbf{\Sigma}" if tied else r"\mathbf{\Sigma}_k"
    graph.constant("Sigma", symbol, None, *((-1.6, 0.0) if tied else (1.8, -0.4)), to=("x",))
    graph.plate("N", "z", "x")
    graph.plate("K", "mu", *(() if tied else ("Sigma",)), size=model.n_components)
    return graph.graph()


def _variational_mixture(model: Any, prediction: bool) -> PlateGraph:
    """The mixture with priors on π, μ_k and Λ_k, as in Bishop's Figure 10.5."""
    graph = _Builder()
    graph.add("observed", "x", r"\mathbf{x}_n", 0.0, 0.0)
    graph.add("latent", "z", r"\mathbf{z}_n", 0.0, 1.5, ("x",))
    graph.add("latent", "pi", r"\mathbf{\pi}", -1.7, 1.5, ("z",))
    graph.constant("alpha0", r"\alpha_0", model.weight_concentration_prior, -1.7, 2.6, ("pi",))
    graph.add("latent", "mu", r"\mathbf{\mu}_k", 2.0, 1.2, ("x",))
    graph.add("latent", "Lambda", r"\mathbf{\Lambda}_k", 2.0, -0.2, ("x", "mu"))
    graph.constant("m0", r"\mathbf{m}_0", model.mean_prior, 3.5, 1.55, ("mu",))
    graph.constant("beta0", r"\beta_0", model.mean_precision_prior, 3.5, 0.85, ("mu",))
    graph.constant("W0", r"\mathbf{W}_0", model.covariance_prior, 3.5, 0.15, ("Lambda",))
    graph.constant("nu0", r"\nu_0", model.degrees_of_freedom_prior, 3.5, -0.55, ("Lambda",))
    graph.plate("N", "z", "x")
    graph.plate("K", "mu", "Lambda", size=model.n_components)
    return graph.graph()


def _probabilistic_pca(model: Any, prediction: bool) -> PlateGraph:
    """z_n → x_n ← W, μ, σ², as in Bishop's Figure 12.10."""
    graph = _Builder()
    graph.add("observed", "x", r"\mathbf{x}_n", 0.0, 0.0)
    graph.add("latent", "z", r"\mathbf{z}_n", 0.0, 1.5, ("x",))
    graph.constant("sigma2", r"\sigma^2", None, -1.6, 0.6, ("x",))
    graph.constant("mu", r"\mathbf{\mu}", None, -1.6, -0.3, ("x",))
    graph.constant("W", r"\mathbf{W}", None, 1.6, 0.6, ("x",))
    graph.plate("N", "z", "x")
    return graph.graph()


def _bayesian_pca(model: Any, prediction: bool) -> PlateGraph:
    """Probabilistic PCA with priors on the columns of W, on μ and on the noise."""
    graph = _Builder()
    graph.add("observed", "x", r"\mathbf{x}_n", 0.0, 0.0)
    graph.add("latent", "z", r"\mathbf{z}_n", 0.0, 1.5, ("x",))
    graph.add("latent", "w", r"\mathbf{w}_k", 2.0, 0.4, ("x",))
    graph.add("latent", "alpha", r"\alpha_k", 2.0, 1.8, ("w",))
    graph.constant("a0", "a_0", model.precision_shape, 3.5, 2.1, ("alpha",))
    graph.constant("b0", "b_0", model.precision_rate, 3.5, 1.5, ("alpha",))
    graph.add("latent", "mu", r"\mathbf{\mu}", -1.8, 0.7, ("x",))
    graph.constant("beta0", r"\beta_0", model.mean_precision, -3.2, 0.7, ("mu",))
    graph.add("latent", "tau", r"\tau", -1.8, -0.6, ("x",))
    graph.constant("c0", "c_0", model.noise_shape, -3.2, -0.25, ("tau",))
    graph.constant("d0", "d_0", model.noise_rate, -3.2, -0.95, ("tau",))
    graph.plate("N", "z", "x")
    graph.plate("K", "alpha", "w", size=model.n_components)
    return graph.graph()


def _vae(model: Any, prediction: bool) -> PlateGraph:
    """θ → x_n ← z_n, and dashed the amortized posterior q(z_n | x_n, φ) (Kingma & Welling, Figure 1)."""
    graph = _Builder()
    graph.add("observed", "x", r"\mathbf{x}_n", 0.0, 0.0)
    graph.add("latent", "z", r"\mathbf{z}_n", 0.0, 1.5, ("x",))
    weights = getattr(model.decoder, "posterior", None)
    graph.add("parameter" if weights is None else "latent", "theta", r"\mathbf{\theta}", 1.7, 0.75, ("x",))
    if weights is not None:
        _weight_prior(graph, model.decoder, "theta", (3.1, 0.75), (0.0, 0.55))
    graph.add("parameter", "phi", r"\mathbf{\phi}", -1.6, 1.5)
    graph.edges += [Edge("phi", "z", dashed=True), Edge("x", "z", dashed=True)]
    _noise(graph, model.likelihood, "x", 1.7, -0.5)
    graph.plate("N", "z", "x")
    return graph.graph()


def _network(model: Any, prediction: bool) -> PlateGraph:
    """A network with a distribution over its weights w, point estimates θ for the rest, and a likelihood."""
    graph = _Builder()
    trained = {name for name, parameter in model.net.named_parameters() if parameter.requires_grad}
    # The masks of a network's own dropout layers act on all its weights.
    random = trained if isinstance(model.posterior, LayerDropout) else set(model.posterior.names())
    graph.add("observed", "y", "y_n", 0.0, 0.0)
    graph.add("parameter", "x", r"\mathbf{x}_n", 0.0, 1.25, ("y",))
    if isinstance(model.posterior, PointMass):
        graph.constant("w", r"\mathbf{w}", None, 1.7, 1.25, ("y",))
    else:
        graph.add("latent", "w", r"\mathbf{w}", 1.7, 1.25, ("y",))
        _weight_prior(graph, model, "w", (1.7, 2.5), (1.6, 0.0))
        if trained - random:
            graph.constant("theta", r"\mathbf{\theta}", None, 1.7, 0.35, ("y",))
    _noise(graph, model.likelihood, "y", 1.7, -0.7)
    if prediction:
        graph.predict("y", r"\hat{y}", 3.4, 0.0, 1.25)
    graph.plate("N", "x", "y")
    return graph.graph()


def _weight_prior(
    graph: _Builder, model: Any, target: str, position: tuple[float, float], step: tuple[float, float]
) -> None:
    """The numbers of the prior of weights: those of a scale mixture, one scale, or the length scale of dropout.

    Samplers draw the scales of a hierarchical prior with the weights; elsewhere they are point estimates. Several
    numbers are ``step`` apart, around ``position``.
    """
    x, y = position
    if hasattr(model, "length_scale"):
        graph.constant("prior", r"\ell", model.length_scale, x, y, (target,))
        return
    prior = model.prior
    if isinstance(prior, Mapping) and len(prior) == 1:
        (prior,) = prior.values()
    if all(hasattr(prior, name) for name in ("pi", "sigma1", "sigma2")):
        for i, (name, symbol) in enumerate((("pi", r"\pi"), ("sigma1", r"\sigma_1"), ("sigma2", r"\sigma_2"))):
            at = x + (i - 1) * step[0], y - (i - 1) * step[1]
            graph.constant(name, symbol, getattr(prior, name), *at, to=(target,))
        return
    if isinstance(prior, HierarchicalNormal) and isinstance(model.posterior, Empirical):
        graph.add("latent", "prior", r"\sigma_w", x, y, (target,))
        return
    # Several priors, or one whose scale is learned, have no single number.
    scale = getattr(prior, "scale", None)
    graph.constant("prior", r"\sigma_w", scale, x, y, (target,))


def _noise(graph: _Builder, likelihood: Any, target: str, x: float, y: float) -> None:
    """The scale of a likelihood: given, estimated, or none; that of a heteroscedastic network is an output."""
    noise = getattr(likelihood, "noise", None)
    if noise is not None and noise != "heteroscedastic":
        graph.constant("noise", r"\sigma", noise if isinstance(noise, float) else None, x, y, (target,))


def _conditional_table(model: Any, prediction: bool) -> PlateGraph:
    """A Bayesian network of discrete variables: every variable that is conditioned on is a parent of the others."""
    graph = _Builder()
    for names, y in ((model.of, 0.0), (model.given, 1.5)):
        for i, name in enumerate(names):
            text = rf"\mathrm{{{name}}}".replace(" ", r"\ ")
            graph.add("latent", name, text, 1.5 * (i - (len(names) - 1) / 2), y)
    graph.edges += [Edge(parent, child) for parent in model.given for child in model.of]
    # p(a, b | given) is a joint table: its variables depend on each other, in the order of the product rule.
    graph.edges += [Edge(a, b) for i, a in enumerate(model.of) for b in model.of[i + 1 :]]
    return graph.graph()


BUILDERS: dict[str, Callable[[Any, bool], PlateGraph]] = {
    "credo.linear.regression.BayesianLinearRegression": _linear_regression,
    "credo.linear.logistic.BayesianLogisticRegression": _logistic_regression,
    "credo.mixture.gaussian_mixture.GaussianMixture": _gaussian_mixture,
    "credo.mixture.variational.VariationalGaussianMixture": _variational_mixture,
    "credo.decomposition.probabilistic.ProbabilisticPCA": _probabilistic_pca,
    "credo.decomposition.bayesian.BayesianPCA": _bayesian_pca,
    "credo.generative.vae.VAE": _vae,
    "credo.methods.network.NetworkMethod": _network,
    "credo.conjugate.joint_table.ConditionalTable": _conditional_table,
}


def _kind(model: object) -> str:
    return type(model).__name__


def plate_graph(model: object, *, prediction: bool = True) -> PlateGraph:
    """Return the directed graph of a model, from its structure.

    Args:
        model: a model, fitted or not: a Bayesian linear or logistic regression, a Gaussian mixture, probabilistic or
            Bayesian PCA, a VAE, a network with a posterior over its weights, or a conditional table.
        prediction: whether a regression or a network also has a new input and its target.

    Returns:
        The graph.

    Raises:
        InputError: if the model is of another kind.
    """
    for base in type(model).__mro__:
        builder = BUILDERS.get(f"{base.__module__}.{base.__qualname__}")
        if builder is not None:
            return builder(model, prediction)
    if isinstance(model, type):
        raise InputError(f"model must be a model, such as {model.__name__}(...), not its class")
    known = ", ".join(name.rpartition(".")[2] for name in BUILDERS)
    raise InputError(
        f"there is no graph of a {_kind(model)}; describe it as a PlateGraph, or pass one of these: {known}"
    )
