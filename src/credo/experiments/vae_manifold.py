"""Digits and faces laid out on a plane by auto-encoders with two latent variables.

The paper's claim. With two latent variables the generative model is a picture: the unit square, sent through the
inverse Gaussian CDF, becomes a plane of codes z that are equally probable under the prior, and p(x | z) is drawn for
each. Neighbors on the plane look alike, and one digit or expression passes into the next (Figure 4).

What is run. MNIST with a Bernoulli decoder and Frey faces with a Gaussian one, whose network outputs a mean between 0
and 1 and a variance for every pixel; one hidden layer of 500 and 200 tanh units, batches of 100, one draw of z a datum.
The figures are the planes; the table has the bound and the log likelihood of held-out images, for which the paper gives
no numbers at two latent variables.

What differs. Adam with a falling learning rate in place of Adagrad, and no prior on the weights. A Bernoulli decoder
sees binary images drawn from the gray ones at every step. A random tenth of the faces is held out; they have neighbors
in time among those learned from. How long and how fast the faces are learned was chosen by looking at their plane. The
quick and the smoke run use the 8×8 digits of scikit-learn for both decoders; for the Gaussian one their 17 levels of
gray are spread by uniform noise, since the density of a discrete value has no bound.

What to look for. All classes of digits, and a face that turns along one direction and changes its expression along
another; corners that the data do not reach are the least sharp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import credo
from credo import plots
from credo._threads import one_thread
from credo.architectures import DenseDecoder, DenseEncoder
from credo.datasets import load_digits
from credo.datasets.files import arrays
from credo.datasets.files import images as image_set
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.generative import VAE
from credo.seeding import generator, seeded

LATENT = 2
BATCH = 100
HELD_OUT = 0.1  # of the faces
LEARNING_RATE = {"bernoulli": 1e-3, "gaussian": 3e-3}
INITIAL_LOG_VARIANCE = -3.5
"""A noise of 0.17 at the start: with one as large as the pixels' range the codes learn to say little."""
EPOCHS: dict[Effort, dict[str, int]] = {
    "full": {"bernoulli": 100, "gaussian": 300},
    "quick": {"bernoulli": 200, "gaussian": 200},
    "smoke": {"bernoulli": 3, "gaussian": 3},
}
IMPORTANCE_SAMPLES: dict[Effort, int] = {"full": 1000, "quick": 200, "smoke": 10}


@dataclass(frozen=True, eq=False)
class Task:
    """Images ``[N, 1, H, W]``, and how they are learned.

    Attributes:
        name: of the data.
        decoder: ``"bernoulli"`` or ``"gaussian"``, the name of the figure.
        train: to learn from.
        test: held out.
        hidden: units of the hidden layer.
        side: pictures along each side of the figure.
    """

    name: str
    decoder: str
    train: Tensor
    test: Tensor
    hidden: int
    side: int


class UnitMeanDecoder(nn.Module):
    """A code to the mean, between 0 and 1, and the log variance of an image, side by side: ``[B, 1, H, 2W]``."""

    def __init__(self, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.layers = DenseDecoder(LATENT, (*shape[:-1], 2 * shape[-1]), (hidden,), "tanh")

    def forward(self, z: Tensor) -> Tensor:
        """``[B, latent]`` to ``[B, 1, H, 2W]``."""
        mean, log_variance = self.layers(z).chunk(2, -1)
        return torch.cat([mean.sigmoid(), INITIAL_LOG_VARIANCE + log_variance], -1)


@experiment(
    title="Digits and faces on a plane of two latent variables",
    reference="Kingma & Welling, Auto-encoding variational Bayes, ICLR 2014, Figure 4 (arXiv:1312.6114)",
    figures=["bernoulli", "gaussian"],
)
def run(setting: Setting) -> Result:
    """Train both auto-encoders, measure them on held-out images, and draw their planes."""
    rows, figures = [], {}
    with one_thread(setting.effort != "full"):
        for task in _tasks(setting):
            setting.report(f"{len(task.train):,} images of {task.name}, {task.decoder.capitalize()} decoder")
            model = train_model(task, setting)
            rows += _measure(task, model, setting)
            figures[task.decoder] = plots.image_grid(
                model.manifold(task.side), task.side, value_range=(0.0, 1.0), gap=1
            )
    return Result(tuple(rows), figures)


def train_model(task: Task, setting: Setting) -> VAE:
    """The paper's networks around two latent variables."""
    shape = tuple(task.train.shape[1:])
    with seeded(setting.seed, torch.device("cpu")):
        encoder = DenseEncoder(shape, 2 * LATENT, (task.hidden,), "tanh")
        if task.decoder == "bernoulli":
            model = VAE(encoder, DenseDecoder(LATENT, shape, (task.hidden,), "tanh"), latent=LATENT)
        else:
            decoder = UnitMeanDecoder(shape, task.hidden)
            model = VAE(encoder, decoder, latent=LATENT, likelihood=credo.Gaussian(noise="heteroscedastic"))
    return model.fit(
        task.train.to(setting.device or "cpu"),
        epochs=EPOCHS[setting.effort][task.decoder],
        batch_size=BATCH,
        lr=LEARNING_RATE[task.decoder],
        device=setting.device,
        seed=setting.seed,
        progress=False,
    )


def _tasks(setting: Setting) -> list[Task]:
    if setting.effort == "full":
        digits, (faces, other_faces) = image_set("mnist"), _faces(setting.seed)
        return [
            Task("MNIST", "bernoulli", digits.x_train, digits.x_test, hidden=500, side=20),
            Task("Frey faces", "gaussian", faces, other_faces, hidden=200, side=10),
        ]
    digits = load_digits(seed=setting.seed)
    draws = generator(torch.device("cpu"), setting.seed)
    train, test = ((16.0 * x + torch.rand(x.shape, generator=draws)) / 17.0 for x in (digits.x_train, digits.x_test))
    return [
        Task("8×8 digits", "bernoulli", digits.x_train, digits.x_test, hidden=100, side=20),
        Task("8×8 digits", "gaussian", train, test, hidden=100, side=20),
    ]


def _faces(seed: int) -> tuple[Tensor, Tensor]:
    """The 1,965 frames in [0, 1], ``[N, 1, 28, 20]``, without and of the held-out part."""
    frames = torch.from_numpy(arrays("small/frey_faces.npz")["X"])[:, None].float() / 255.0
    order = torch.randperm(len(frames), generator=generator(torch.device("cpu"), seed))
    held_out = round(HELD_OUT * len(frames))
    return frames[order[held_out:]], frames[order[:held_out]]


def _measure(task: Task, model: VAE, setting: Setting) -> list[Row]:
    samples = IMPORTANCE_SAMPLES[setting.effort]
    name = f"{task.name}, {task.decoder.capitalize()} decoder"
    bound = model.elbo(task.test, samples=10, seed=setting.seed).mean().item()
    likelihood = model.log_likelihood(task.test, samples, seed=setting.seed).mean().item()
    return [
        Row(f"{name}: ELBO of a held-out image, nats", (bound,)),
        Row(f"{name}: its log likelihood, nats", (likelihood,), note=f"{samples:,} importance samples"),
    ]
