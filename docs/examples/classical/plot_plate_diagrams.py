r"""
Plate diagrams, drawn from the models themselves
================================================

A plate diagram shows at a glance what a model assumes: circles are random variables (shaded if observed), dots are
numbers, arrows say what depends on what, and a box is repeated as often as its corner says,

.. math:: p(x_1, \dots, x_K) = \prod_k p(x_k \mid \text{parents of } x_k).

:func:`credo.plots.plate` draws it from the model object, so that the picture cannot disagree with the code.

Look at what changes between the first two: one setting of the model, one circle.
"""

# %%
# Linear regression, with precisions that maximize the evidence, and with posteriors of their own; a mixture; the
# variational mixture, whose parameters are random as well.

import matplotlib.pyplot as plt
from torch import nn

import credo
from credo.decomposition import BayesianPCA
from credo.linear import BayesianLinearRegression
from credo.mixture import GaussianMixture, VariationalGaussianMixture
from credo.plots import Edge, Node, Plate, PlateGraph

models = {
    "linear regression, evidence": BayesianLinearRegression(),
    "linear regression, variational": BayesianLinearRegression(hyperparameters="variational"),
    "mixture, maximum likelihood": GaussianMixture(3),
    "mixture, variational": VariationalGaussianMixture(3),
    "Bayesian PCA": BayesianPCA(2),
}
figure, axes = plt.subplot_mosaic("aabbcc;dddeee", figsize=(10, 7), layout="constrained")
for ax, (name, model) in zip(axes.values(), models.items(), strict=True):
    credo.plots.plate(model, ax, prediction=False)
    ax.set_title(name, fontsize=9)
plt.show()

# %%
# Networks: the weights are a dot for a point estimate and a circle for a posterior. A VAE has a latent variable for
# every row; the dashed arrow is its encoder.

net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
networks = {
    "MAP": credo.MAP(net, credo.Gaussian("learned")),
    "Bayes by Backprop": credo.BayesByBackprop(net, credo.Gaussian("learned")),
    "heteroscedastic": credo.BayesByBackprop(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), credo.Gaussian("heteroscedastic")
    ),
    "VAE": credo.generative.VAE(nn.Linear(8, 4), nn.Linear(2, 8), latent=2),
}
figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
for ax, (name, model) in zip(axes, networks.items(), strict=True):
    credo.plots.plate(model, ax)
    ax.set_title(name, fontsize=9)
plt.show()

# %%
# A model of your own is a graph of nodes, edges and plates. Here schools have means of their own around a common one,
# and pupils scatter around their school's.

graph = PlateGraph(
    nodes=(
        Node("m", r"$\mu$", "latent", (0, 2)),
        Node("t", r"$\tau$", "latent", (1, 2)),
        Node("s", r"$\theta_j$", "latent", (0.5, 1)),
        Node("y", r"$y_{ij}$", "observed", (0.5, 0)),
    ),
    edges=(Edge("m", "s"), Edge("t", "s"), Edge("s", "y")),
    plates=(Plate("$J$ schools", ("s", "y")), Plate("$N$ pupils", ("y",))),
)
figure, ax = plt.subplots(figsize=(3.6, 4), layout="constrained")
credo.plots.plate(graph, ax)
plt.show()

# %%
# The graph of a model can be read as well as drawn.

found = credo.plots.plate_graph(VariationalGaussianMixture(3))
print("latent:", ", ".join(node.label for node in found.nodes if node.kind == "latent"))
print("repeated:", ", ".join(f"{', '.join(plate.nodes)} {plate.label} times" for plate in found.plates))

# %%
# With the evidence, the precisions α and β of the regression are dots: numbers that were chosen. With a variational
# posterior they are circles, with priors of their own.
