"""Digits drawn from auto-encoders with 2, 5, 10 and 20 latent variables.

The paper's claim. More latent variables give sharper and more varied digits, and do not over-fit, since the divergence
from the prior switches off those that are not needed (Figure 5, and Figure 2 for the bounds).

What is run. MNIST with a Bernoulli decoder; one hidden layer of 500 tanh units, batches of 100, one draw of z a datum.
The figure has 100 draws from each prior, decoded to the probabilities of ink; the table has the bound and the log
likelihood of test images, and how many latent variables are in use: those whose posterior mean varies over the images
with a variance above 0.01 (Burda et al. 2016). The paper gives its bounds as curves, without numbers.

What differs. Adam with a falling learning rate in place of Adagrad, no prior on the weights, and binary images drawn
from the gray ones at every step. The quick and the smoke run use the 8×8 digits of scikit-learn.

What to look for. Blurred digits at 2, strokes that end nowhere at 20; a bound that rises with the latent variables,
and by less and less. In the full run none of the 20 is switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from credo._threads import one_thread
from credo.architectures import DenseDecoder, DenseEncoder
from credo.datasets import load_digits
from credo.datasets.files import images as image_set
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.generative import VAE
from credo.plots.images import draw_images
from credo.seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATENT = (2, 5, 10, 20)
BATCH = 100
SIDE = 10  # samples along each side of a panel
IN_USE = 0.01
HIDDEN: dict[Effort, int] = {"full": 500, "quick": 100, "smoke": 100}
EPOCHS: dict[Effort, int] = {"full": 40, "quick": 150, "smoke": 2}
IMPORTANCE_SAMPLES: dict[Effort, int] = {"full": 1000, "quick": 200, "smoke": 10}


@experiment(
    title="Random digits from 2, 5, 10 and 20 latent variables",
    reference="Kingma & Welling, Auto-encoding variational Bayes, ICLR 2014, Figure 5 (arXiv:1312.6114)",
    figures=["samples"],
)
def run(setting: Setting) -> Result:
    """Train one auto-encoder for each number of latent variables; draw from it, and measure it."""
    data = image_set("mnist") if setting.effort == "full" else load_digits(seed=setting.seed)
    rows: list[Row] = []
    samples = {}
    with one_thread(setting.effort != "full"):
        for latent in LATENT:
            setting.report(f"{latent} latent variables, {len(data.x_train):,} digits")
            model = train_model(data.x_train, latent, setting)
            rows += _measure(model, data.x_test, setting)
            samples[latent] = model.sample(SIDE**2, seed=setting.seed).cpu()
    return Result(tuple(rows), {"samples": _panels(samples)})


def train_model(x: Tensor, latent: int, setting: Setting) -> VAE:
    """The paper's networks around ``latent`` variables."""
    shape, hidden = tuple(x.shape[1:]), (HIDDEN[setting.effort],)
    with seeded(setting.seed, torch.device("cpu")):
        encoder = DenseEncoder(shape, 2 * latent, hidden, "tanh")
        model = VAE(encoder, DenseDecoder(latent, shape, hidden, "tanh"), latent=latent)
    return model.fit(
        x.to(setting.device or "cpu"),
        epochs=EPOCHS[setting.effort],
        batch_size=BATCH,
        device=setting.device,
        seed=setting.seed,
        progress=False,
    )


def _measure(model: VAE, test: Tensor, setting: Setting) -> list[Row]:
    samples = IMPORTANCE_SAMPLES[setting.effort]
    bound = model.elbo(test, samples=10, seed=setting.seed).mean().item()
    likelihood = model.log_likelihood(test, samples, seed=setting.seed).mean().item()
    in_use = int((model.encode(test).mean.var(0) > IN_USE).sum())
    name = f"{model.latent} latent variables"
    return [
        Row(f"{name}: ELBO of a test image, nats", (bound,)),
        Row(f"{name}: its log likelihood, nats", (likelihood,), note=f"{samples:,} importance samples"),
        Row(f"{name}: in use", (float(in_use),)),
    ]


def _panels(samples: dict[int, Tensor]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 8.4), layout="constrained")
    for ax, (latent, images) in zip(figure.subplots(2, 2).flat, samples.items(), strict=True):
        draw_images(ax, images, SIDE, f"{latent} latent variables")
    return figure
