"""Plate diagrams of six models, drawn from the models themselves (Bishop 2006, Figures 8.7, 9.6, 10.5 and 12.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

import credo
from credo import plots
from credo.decomposition import ProbabilisticPCA
from credo.experiments.registry import Result, Row, RunConfig, experiment
from credo.generative import VAE
from credo.linear import BayesianLinearRegression, Polynomial
from credo.mixture import GaussianMixture, VariationalGaussianMixture
from credo.seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Diagram(NamedTuple):
    """A model, and the published figure of its graph."""

    title: str
    model: object
    source: str = ""
    published: tuple[int, int] | None = None  # nodes and arrows of that figure
    note: str = ""


@experiment(
    "plate-diagrams",
    title="Plate diagrams, drawn from the models themselves",
    reference="Bishop, Pattern Recognition and Machine Learning, 2006, Figures 8.7, 9.6, 10.5 and 12.10",
    figures=["plates"],
)
def run(config: RunConfig) -> Result:
    """The directed graphs of six models of this library, each read from the model object.

    What the book shows. A model is a factorization of a joint distribution, and its graph has a node for every
    variable, an arrow for every dependence and a plate around what is repeated. Polynomial regression with a new input
    (Figure 8.7), a Gaussian mixture (9.6), its Bayesian version (10.5) and probabilistic PCA (12.10) are the examples.

    What is run. Each model is built with its defaults and drawn by `credo.plots.plate`. A circle is a random variable,
    shaded if it is observed; a dot is an input, a hyperparameter or a point estimate. The table counts nodes and arrows
    beside those of the book.

    What differs. Components have a plate of their own, where the book writes one symbol for all of them. The noise has
    a precision β in place of a variance σ². The Bayesian mixture also shows the five constants of its priors, of which
    Figure 10.5 has none. The graph of the VAE is that of Kingma & Welling's Figure 1, with its inference network
    dashed.
    """
    config.report("drawing")
    with seeded(config.seed, torch.device("cpu")):
        diagrams = _diagrams()
    rows = []
    for title, model, source, published, note in diagrams:
        graph = plots.plate_graph(model)
        nodes, arrows = published or (None, None)
        rows += [
            Row(f"{title}: nodes", (float(len(graph.nodes)),), nodes, source, note),
            Row(f"{title}: arrows", (float(len(graph.edges)),), arrows, source, note),
        ]
    return Result(tuple(rows), {"plates": _figure(diagrams)})


def _diagrams() -> list[_Diagram]:
    network = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    return [
        _Diagram(
            "polynomial regression",
            BayesianLinearRegression(Polynomial(9, include_bias=True), fit_intercept=False),
            "Figure 8.7",
            (7, 7),
        ),
        _Diagram("Gaussian mixture", GaussianMixture(3), "Figure 9.6", (5, 4)),
        _Diagram("probabilistic PCA", ProbabilisticPCA(2), "Figure 12.10", (5, 4)),
        _Diagram(
            "Bayesian Gaussian mixture",
            VariationalGaussianMixture(6),
            "Figure 10.5",
            (5, 5),
            "ours with the five constants of the priors",
        ),
        _Diagram("variational auto-encoder", VAE("dense", latent=2, shape=(1, 8, 8))),
        _Diagram(
            "Bayesian neural network",
            credo.BayesByBackprop(network, credo.Gaussian(noise="learned"), prior=credo.ScaleMixture()),
        ),
    ]


def _figure(diagrams: list[_Diagram]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 6.4), layout="constrained")
    for ax, diagram in zip(figure.subplots(2, 3).flat, diagrams, strict=True):
        plots.plate(diagram.model, ax)
        ax.set_title(diagram.title, pad=10)
    return figure
