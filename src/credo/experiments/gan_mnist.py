"""Two networks in a game draw digits, and three measures say how well.

The paper's claim. A generator trained only to fool a discriminator draws samples that are no copies of training images
(Figure 2), with a Parzen-window log likelihood of 225 ± 2 nats on MNIST, as good as the generative models of its time
(Table 1).

What is run. The GAN of the paper, a generator of two rectified layers of 1,200 units against a discriminator of two
maxout layers with dropout, and beside it the DCGAN of Radford et al. (2016), on the first 50,000 digits of MNIST. The
table has the Parzen-window log likelihood of the 10,000 test digits around 10,000 samples, its width chosen on the next
1,000 training digits; the Fréchet distance between the features of samples and of test digits in a LeNet trained here;
and how many of the ten digits that LeNet finds among the samples. Training images in place of samples stand beside.

What differs. Noise is Gaussian and learning rates decay to 0. The generator of the GAN has batch norm, and both its
players have Adam: with gradient descent and momentum instead, and no batch norm, as in the authors' program, it
collapsed in three full runs of four. In the full run the generators learn five times as fast as the discriminators, as
in the authors' program of InfoGAN; a DCGAN with equal rates ended at a Fréchet distance of 106, with many strokes that
make no digit. The DCGAN sees digits with a margin that makes them 32×32, a size that can be halved down to 4×4. The
quick and the smoke run use smaller networks on the 8×8 digits of scikit-learn.

What to look for. The right-hand column of the figure: the training images next to the last samples are others. The
DCGAN should have the lower Fréchet distance and the cleaner strokes.

Why not to trust the first number. In 784 dimensions, 10,000 samples are far too few for a Parzen window to come near
the log likelihood of the model. The estimate prefers samples without detail: blurred averages beat true images, and
the centers of k-means beat every model (Theis, van den Oord & Bethge, A note on the evaluation of generative models,
ICLR 2016). It is reported because the paper reports it; training images, than which no samples are better, have 243
nats. Ours stays below the 225 of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo._threads import one_thread
from credo.architectures import DenseGenerator
from credo.datasets import load_digits
from credo.datasets.files import images as image_set
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.generative import DCGAN, GAN
from credo.generative.evaluation import (
    fit_lenet,
    frechet_distance,
    lenet_features,
    mode_coverage,
    parzen_log_likelihood,
)
from credo.plots.images import draw_images
from credo.seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.methods import MAP

LATENT = 100
PIECES = 5
GENERATOR_RATE = 1e-3
SAMPLES = 10_000
VALIDATION = 1000
ROWS = COLUMNS = 8
PUBLISHED, SOURCE = 225.0, "Table 1, ± 2"


@dataclass(frozen=True)
class Plan:
    """How much is done.

    Attributes:
        hidden: units of each layer of the GAN's generator.
        maxout: units of each layer of its discriminator.
        width: of the DCGAN.
        gan_epochs: passes over the data.
        gan_batch_size: digits in a step of the GAN.
        gan_discriminator_lr: the learning rate of its discriminator.
        dcgan_epochs: passes over the data.
        lenet_epochs: passes over the data.
        held_out: rows at the end of the training set that are not trained on.
    """

    hidden: int
    maxout: int
    width: int
    gan_epochs: int
    gan_batch_size: int
    gan_discriminator_lr: float
    dcgan_epochs: int
    lenet_epochs: int
    held_out: int


PLANS: dict[Effort, Plan] = {
    "full": Plan(
        hidden=1200,
        maxout=240,
        width=64,
        gan_epochs=50,
        gan_batch_size=100,
        gan_discriminator_lr=2e-4,
        dcgan_epochs=30,
        lenet_epochs=5,
        held_out=10_000,
    ),
    "quick": Plan(
        hidden=240,
        maxout=100,
        width=32,
        gan_epochs=90,
        gan_batch_size=50,
        gan_discriminator_lr=1e-3,
        dcgan_epochs=100,
        lenet_epochs=10,
        held_out=200,
    ),
    "smoke": Plan(
        hidden=60,
        maxout=20,
        width=4,
        gan_epochs=2,
        gan_batch_size=100,
        gan_discriminator_lr=1e-3,
        dcgan_epochs=2,
        lenet_epochs=1,
        held_out=200,
    ),
}


@dataclass(frozen=True, eq=False)
class Digits:
    """Digits between 0 and 1, ``[N, 1, S, S]`` each, and labels of the training part, where they are to be."""

    train: Tensor
    labels: Tensor
    validation: Tensor
    test: Tensor


class Maxout(nn.Module):
    """The largest of several linear maps, unit by unit: ``[B, in_features]`` to ``[B, units]``."""

    def __init__(self, in_features: int, units: int, pieces: int = PIECES) -> None:
        super().__init__()
        self.linear, self.pieces = nn.Linear(in_features, units * pieces), pieces

    def forward(self, x: Tensor) -> Tensor:
        """``[B, in_features]`` to ``[B, units]``."""
        largest: Tensor = self.linear(x).unflatten(1, (-1, self.pieces)).amax(2)
        return largest


@experiment(
    title="A GAN and a DCGAN of digits",
    reference="Goodfellow et al., Generative adversarial nets, NeurIPS 2014, Table 1 and Figure 2 (arXiv:1406.2661)",
    figures=["samples"],
)
def run(setting: Setting) -> Result:
    """Train both models, draw from them, and measure what they drew."""
    plan, digits = PLANS[setting.effort], load(setting)
    with one_thread(setting.effort != "full"):
        setting.report("training LeNet to measure with")
        lenet = fit_lenet(
            digits.train, digits.labels, epochs=plan.lenet_epochs, device=setting.device, seed=setting.seed
        )
        drawn = {
            "GAN": draw_gan(digits, plan, setting),
            "DCGAN": draw_dcgan(digits, plan, setting),
            "training digits": digits.train[:SAMPLES],
        }
        rows = list(_measure(drawn, digits, lenet, setting))
    return Result(tuple(rows), {"samples": _figure({name: drawn[name] for name in ("GAN", "DCGAN")}, digits.train)})


def load(setting: Setting) -> Digits:
    """MNIST for the full run, scikit-learn's digits else, where the models will be."""
    plan = PLANS[setting.effort]
    data = image_set("mnist") if setting.effort == "full" else load_digits(seed=setting.seed)
    kept = len(data.x_train) - plan.held_out
    parts = (data.x_train[:kept], data.y_train[:kept], data.x_train[kept:][:VALIDATION], data.x_test)
    return Digits(*(part.to(setting.device or "cpu") for part in parts))


def build_gan(train: Tensor, plan: Plan) -> GAN:
    """A generator of two hidden layers, and the discriminator of the paper, for images between 0 and 1."""
    shape, pixels = tuple(train.shape[1:]), train[0].numel()
    discriminator = nn.Sequential(
        nn.Flatten(),
        nn.Dropout(0.2),
        Maxout(pixels, plan.maxout),
        nn.Dropout(0.5),
        Maxout(plan.maxout, plan.maxout),
        nn.Dropout(0.5),
        nn.Linear(plan.maxout, 1),
    )
    generator = DenseGenerator(LATENT, shape, (plan.hidden, plan.hidden))
    return GAN(
        generator,
        discriminator,
        latent=LATENT,
        generator_lr=GENERATOR_RATE,
        discriminator_lr=plan.gan_discriminator_lr,
    )


def draw_gan(digits: Digits, plan: Plan, setting: Setting) -> Tensor:
    """Samples of a trained GAN, between 0 and 1."""
    setting.report("training the GAN")
    with seeded(setting.seed, torch.device("cpu")):
        model = build_gan(digits.train, plan)
    model.fit(
        digits.train,
        epochs=plan.gan_epochs,
        batch_size=plan.gan_batch_size,
        device=setting.device,
        seed=setting.seed,
        progress=False,
    )
    return model.sample(len(digits.train[:SAMPLES]), seed=setting.seed)


def draw_dcgan(digits: Digits, plan: Plan, setting: Setting) -> Tensor:
    """Samples of a trained DCGAN, taken from its range of −1 to 1, and its size, to those of the data."""
    setting.report("training the DCGAN")
    margin = 2 if setting.effort == "full" else 0
    framed = F.pad(2.0 * digits.train - 1.0, (margin,) * 4, value=-1.0)
    with seeded(setting.seed, torch.device("cpu")):
        model = DCGAN(tuple(framed.shape[1:]), latent=LATENT, width=plan.width, generator_lr=GENERATOR_RATE)
    model.fit(
        framed,
        epochs=plan.dcgan_epochs,
        batch_size=128,
        device=setting.device,
        seed=setting.seed,
        progress=False,
    )
    samples = F.pad(model.sample(len(digits.train[:SAMPLES]), seed=setting.seed), (-margin,) * 4)
    return 0.5 * (samples + 1.0)


def _measure(drawn: dict[str, Tensor], digits: Digits, lenet: MAP, setting: Setting) -> Iterator[Row]:
    setting.report("measuring samples")
    real = lenet_features(digits.test, lenet)
    for name, samples in drawn.items():
        found = parzen_log_likelihood(samples, digits.test, validation=digits.validation)
        published = name == "GAN" and setting.effort == "full"
        yield Row(
            f"{name}: Parzen-window log likelihood of test digits, nats",
            (found.mean,),
            PUBLISHED if published else None,
            SOURCE if published else "",
            f"± {found.standard_error:.1f} over test digits, σ = {found.sigma:.3f}, first seed",
        )
    for name, samples in drawn.items():
        distance = frechet_distance(lenet_features(samples, lenet), real)
        yield Row(f"{name}: Fréchet distance to test digits, LeNet features", (distance,))
    for name, samples in drawn.items():
        found_modes = mode_coverage(samples, lenet)
        yield Row(f"{name}: digits present, of 10", (float(found_modes.present),))
        rarest = 100.0 * int(found_modes.counts.min()) / found_modes.total
        yield Row(f"{name}: share of the rarest digit, %", (rarest,))


def _figure(drawn: dict[str, Tensor], train: Tensor) -> Figure:
    """Samples, and right of them the training digit nearest to the last of each row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    panels = figure.subplots(1, 2 * len(drawn), width_ratios=[COLUMNS, 1] * len(drawn))
    for (name, samples), left, right in zip(drawn.items(), panels[::2], panels[1::2], strict=True):
        shown = samples[: ROWS * COLUMNS]
        draw_images(left, shown, COLUMNS, name)
        draw_images(right, nearest(shown[COLUMNS - 1 :: COLUMNS], train), 1, "nearest")
    return figure


def nearest(samples: Tensor, train: Tensor) -> Tensor:
    """The training image at the least Euclidean distance of each sample."""
    return train[torch.cdist(samples.flatten(1), train.flatten(1)).argmin(1)]
