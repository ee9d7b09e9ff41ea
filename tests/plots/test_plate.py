"""Plate diagrams: the graph follows the structure of the model, and every graph is drawn."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from torch import nn

import credo
from credo import plots
from credo.conjugate import ConditionalTable
from credo.decomposition import PCA, BayesianPCA, ProbabilisticPCA
from credo.errors import InputError
from credo.generative import VAE
from credo.linear import BayesianLinearRegression, BayesianLogisticRegression, Polynomial
from credo.mixture import GaussianMixture, VariationalGaussianMixture
from credo.plots import Edge, Node, Plate, PlateGraph
from credo.plots._plate_graphs import BUILDERS


@pytest.fixture(autouse=True)
def agg():
    mpl.use("Agg")
    yield
    plt.close("all")


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def bayesian_vae():
    decoder = credo.BayesByBackprop(nn.Linear(2, 8), credo.Bernoulli(), prior=credo.ScaleMixture())
    return VAE(nn.Linear(8, 4), decoder, latent=2)


MODELS = {
    "linear": lambda: BayesianLinearRegression(),
    "linear, variational": lambda: BayesianLinearRegression(hyperparameters="variational"),
    "linear, relevance": lambda: BayesianLinearRegression(hyperparameters="ard"),
    "logistic": lambda: BayesianLogisticRegression(),
    "mixture": lambda: GaussianMixture(3),
    "mixture, tied": lambda: GaussianMixture(2, covariance_type="tied"),
    "mixture, variational": lambda: VariationalGaussianMixture(6),
    "probabilistic PCA": lambda: ProbabilisticPCA(2),
    "Bayesian PCA": lambda: BayesianPCA(4),
    "VAE": lambda: VAE("dense", latent=2, shape=(1, 4, 4)),
    "VAE, Bayesian decoder": bayesian_vae,
    "Bayes by Backprop": lambda: credo.BayesByBackprop(network(), credo.Gaussian(noise=0.1)),
    "scale mixture": lambda: credo.BayesByBackprop(network(), credo.Categorical(), prior=credo.ScaleMixture()),
    "MC dropout": lambda: credo.MCDropout(network(), p=0.1),
    "MAP": lambda: credo.MAP(network()),
    "table": lambda: ConditionalTable([[0.25, 0.75], [0.75, 0.25]], of="fruit", given="box"),
}


def edges(graph):
    return {(edge.source, edge.target) for edge in graph.edges}


def kinds(graph):
    return {node.name: node.kind for node in graph.nodes}


def plates(graph):
    return {plate.label: set(plate.nodes) for plate in graph.plates}


def test_polynomial_regression_is_figure_8_7():
    graph = plots.plate_graph(BayesianLinearRegression(Polynomial(9, include_bias=True), fit_intercept=False))
    assert kinds(graph) == {
        "t": "observed",
        "x": "parameter",
        "w": "latent",
        "alpha": "parameter",
        "beta": "parameter",
        "new t": "latent",
        "new x": "parameter",
    }
    assert edges(graph) == {
        ("x", "t"), ("w", "t"), ("beta", "t"), ("alpha", "w"), ("new x", "new t"), ("w", "new t"), ("beta", "new t"),
    }  # fmt: skip
    assert plates(graph) == {"$N$": {"x", "t"}}


def test_gaussian_mixture_is_figure_9_6():
    graph = plots.plate_graph(GaussianMixture(3))
    assert edges(graph) == {("pi", "z"), ("z", "x"), ("mu", "x"), ("Sigma", "x")}
    assert {name for name, kind in kinds(graph).items() if kind == "parameter"} == {"pi", "mu", "Sigma"}
    assert plates(graph) == {"$N$": {"z", "x"}, "$K = 3$": {"mu", "Sigma"}}


def test_probabilistic_pca_is_figure_12_10():
    graph = plots.plate_graph(ProbabilisticPCA(2))
    assert edges(graph) == {("z", "x"), ("W", "x"), ("mu", "x"), ("sigma2", "x")}
    assert [name for name, kind in kinds(graph).items() if kind == "latent"] == ["z"]
    assert plates(graph) == {"$N$": {"z", "x"}}


def test_variational_mixture_is_figure_10_5_with_its_prior():
    graph = plots.plate_graph(VariationalGaussianMixture(6, weight_concentration_prior=1e-3))
    assert {("Lambda", "mu"), ("mu", "x"), ("Lambda", "x"), ("pi", "z"), ("z", "x")} <= edges(graph)
    assert {name for name, kind in kinds(graph).items() if kind == "latent"} == {"pi", "z", "mu", "Lambda"}
    assert graph["alpha0"].label == r"$\alpha_0 = 0.001$"
    assert graph["beta0"].label == r"$\beta_0$"  # chosen by the model
    assert plates(graph)["$K = 6$"] == {"mu", "Lambda"}


def test_vae_has_a_dashed_inference_network():
    graph = plots.plate_graph(MODELS["VAE"]())
    solid = {(edge.source, edge.target) for edge in graph.edges if not edge.dashed}
    assert solid == {("z", "x"), ("theta", "x")}
    assert edges(graph) - solid == {("phi", "z"), ("x", "z")}
    bayesian = plots.plate_graph(bayesian_vae())
    assert kinds(graph)["theta"] == "parameter"
    assert kinds(bayesian)["theta"] == "latent"
    assert {("pi", "theta"), ("sigma1", "theta"), ("sigma2", "theta")} <= edges(bayesian)


def test_given_precisions_have_values_and_learned_ones_have_priors_where_the_model_has():
    given = plots.plate_graph(BayesianLinearRegression(weight_precision=2.0, noise_precision=25.0))
    assert (given["alpha"].label, given["beta"].label) == (r"$\alpha = 2$", r"$\beta = 25$")
    assert ("b", "t") in edges(given)
    fitted = plots.plate_graph(BayesianLinearRegression())
    assert (fitted["alpha"].label, fitted["alpha"].kind) == (r"$\alpha$", "parameter")
    variational = plots.plate_graph(BayesianLinearRegression(hyperparameters="variational", noise_precision=4.0))
    assert kinds(variational)["alpha"] == "latent"
    assert ("alpha prior", "alpha") in edges(variational)
    assert kinds(variational)["beta"] == "parameter"
    relevance = plots.plate_graph(BayesianLinearRegression(hyperparameters="ard"))
    assert plates(relevance)["$M$"] == {"alpha", "w"}


def test_a_tied_covariance_is_not_repeated():
    assert plates(plots.plate_graph(MODELS["mixture, tied"]()))["$K = 2$"] == {"mu"}


def test_network_weights_are_random_under_a_posterior_and_a_number_under_map():
    bayes = plots.plate_graph(MODELS["Bayes by Backprop"]())
    assert kinds(bayes)["w"] == "latent"
    assert bayes["prior"].label == r"$\sigma_w = 1$"
    assert bayes["noise"].label == r"$\sigma = 0.1$"
    assert edges(bayes) == {
        ("x", "y"), ("w", "y"), ("prior", "w"), ("noise", "y"), ("new x", "new y"), ("w", "new y"), ("noise", "new y"),
    }  # fmt: skip
    point = plots.plate_graph(credo.MAP(network(), credo.Gaussian(noise="learned")))
    assert kinds(point)["w"] == "parameter"
    assert point["noise"].label == r"$\sigma$"


def test_scales_of_a_hierarchical_prior_are_random_for_a_sampler_and_numbers_elsewhere():
    prior = credo.HierarchicalNormal()
    sampled = plots.plate_graph(credo.HMC(network(), credo.Gaussian(noise=0.1), prior))
    assert kinds(sampled)["prior"] == "latent"
    best = plots.plate_graph(credo.BayesByBackprop(network(), credo.Gaussian(noise=0.1), prior))
    assert kinds(best)["prior"] == "parameter"


def test_deterministic_layers_and_outputs_of_the_network_are_seen():
    head = credo.BayesByBackprop(network(), credo.Gaussian(noise="heteroscedastic"), bayesian="2.*")
    graph = plots.plate_graph(head, prediction=False)
    assert ("theta", "y") in edges(graph)
    assert kinds(graph).keys() == {"x", "y", "w", "prior", "theta"}
    own = credo.MCDropout(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 2)), credo.Categorical())
    assert kinds(plots.plate_graph(own, prediction=False)) == {
        "y": "observed",
        "x": "parameter",
        "w": "latent",
        "prior": "parameter",
    }


def test_a_conditional_table_is_a_bayesian_network():
    probabilities = [[[0.5, 0.5], [0.5, 0.5]], [[0.1, 0.9], [0.1, 0.9]]]
    graph = plots.plate_graph(ConditionalTable(probabilities, of="wet", given=("rain", "sprinkler")))
    assert edges(graph) == {("rain", "wet"), ("sprinkler", "wet")}


@pytest.mark.parametrize("name", MODELS)
def test_every_graph_is_acyclic_and_drawn_inside_the_axes(name):
    """The model without its approximate posterior factorizes; nothing is cut off, and no two labels overlap."""
    model = MODELS[name]()
    graph = plots.plate_graph(model)
    remaining = {edge for edge in graph.edges if not edge.dashed}
    names = {node.name for node in graph.nodes}
    while names:
        roots = names - {edge.target for edge in remaining}
        assert roots, "the graph has a cycle"
        names -= roots
        remaining = {edge for edge in remaining if edge.source in names}
    ax = plots.plate(model)
    ax.figure.canvas.draw()
    assert {text.get_text() for text in ax.texts} == {node.label for node in graph.nodes} | {
        plate.label for plate in graph.plates
    }
    frame = ax.get_window_extent()
    for artist in [*ax.texts, *ax.patches]:
        box = artist.get_window_extent()
        assert box.x0 >= frame.x0 - 1
        assert box.x1 <= frame.x1 + 1
        assert box.y0 >= frame.y0 - 1
        assert box.y1 <= frame.y1 + 1
    boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
    assert not [(a, b) for a in boxes for b in boxes if a < b and boxes[a].overlaps(boxes[b])]


def test_own_graphs_with_nested_plates():
    nodes = tuple(Node(name, f"${name}$", "latent", (0.0, float(y))) for y, name in enumerate("abc"))
    graph = PlateGraph(nodes, (Edge("c", "b"), Edge("b", "a")), (Plate("$M$", ("a",)), Plate("$N$", ("a", "b"))))
    ax = plots.plate(graph)
    ax.figure.canvas.draw()
    inner, outer = (patch.get_window_extent() for patch in ax.patches[:2])
    assert outer.x0 < inner.x0
    assert outer.y0 < inner.y0
    assert outer.x1 > inner.x1
    assert outer.y1 > inner.y1


def test_bad_graphs_and_unknown_models_raise():
    node = Node("a", "$a$", "latent", (0.0, 0.0))
    with pytest.raises(InputError, match="different names"):
        PlateGraph((node, node), ())
    with pytest.raises(InputError, match="must name nodes of the graph, got b"):
        PlateGraph((node,), (Edge("a", "b"),))
    other = Node("b", "$b$", "latent", (1.0, 0.0))
    cycle = (Edge("a", "b"), Edge("b", "a"))
    for nodes, edges, plates, message in (
        ((), (), (), "at least one node, got none"),
        ((node, Node("b", "$b$", "latent", (0.0, 0.0))), (), (), "different positions, but a and b share one"),
        ((Node("a", "$a$", "latnt", (0.0, 0.0)),), (), (), "unknown kind 'latnt': did you mean 'latent'"),
        ((Node("a", "", "latent", (0.0, 0.0)),), (), (), "must not be empty"),
        ((node,), (), (Plate("", ("a",)),), "must not be empty"),
        ((node,), (), (Plate("$N$", ()),), "plates must hold at least one node"),
        ((node,), (Edge("a", "a"),), (), "from a to itself"),
        ((node, other), cycle, (), "must have no cycle, got (a → b → a|b → a → b)"),
    ):
        with pytest.raises(InputError, match=message):
            PlateGraph(nodes, edges, plates)
    PlateGraph((node, other), (cycle[0], Edge("b", "a", dashed=True)))  # as of an auto-encoder
    with pytest.raises(InputError, match="no graph of a PCA"):
        plots.plate(PCA(2))
    with pytest.raises(InputError, match=r"such as PCA\(\.\.\.\), not its class"):
        plots.plate(PCA)


def test_every_builder_is_for_a_class_that_exists():
    import importlib

    for name in BUILDERS:
        module, _, qualified = name.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), qualified), type)
