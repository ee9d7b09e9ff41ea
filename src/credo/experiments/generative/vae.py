"""The latent plane and samples of variational auto-encoders (Kingma & Welling 2014, Figures 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import credo
from credo import plots
from credo._threads import one_thread
from credo.architectures import DenseDecoder, DenseEncoder
from credo.datasets.files import arrays
from credo.experiments._shared import handwritten_digits
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.generative import VAE
from credo.plots.images import draw_images
from credo.seeding import generator, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANIFOLD_LATENT = 2
BATCH_SIZE = 100
FACES_HELD_OUT = 0.1
LEARNING_RATE = {"bernoulli": 1e-3, "gaussian": 3e-3}
INITIAL_LOG_VARIANCE = -3.5
"""An initial noise of 0.17; with noise as large as the range of the pixels the codes carry little information."""
MANIFOLD_EPOCHS: dict[Budget, dict[str, int]] = {
    "full": {"bernoulli": 100, "gaussian": 300},
    "quick": {"bernoulli": 200, "gaussian": 200},
    "smoke": {"bernoulli": 3, "gaussian": 3},
}
SAMPLE_LATENT = (2, 5, 10, 20)
SAMPLE_SIDE = 10  # samples along each side of a panel
SAMPLE_HIDDEN: dict[Budget, int] = {"full": 500, "quick": 100, "smoke": 100}
SAMPLE_EPOCHS: dict[Budget, int] = {"full": 40, "quick": 150, "smoke": 2}
IN_USE = 0.01  # variance of the posterior mean over images
IMPORTANCE_SAMPLES: dict[Budget, int] = {"full": 1000, "quick": 200, "smoke": 10}


@dataclass(frozen=True, eq=False)
class ManifoldData:
    """Images ``[N, 1, H, W]``, and the networks and the figure for them.

    Attributes:
        name: name of the data.
        decoder: ``"bernoulli"`` or ``"gaussian"``, also the name of the figure.
        train: training images.
        test: held-out images.
        hidden: units in the hidden layer.
        side: number of images along each side of the figure.
    """

    name: str
    decoder: str
    train: Tensor
    test: Tensor
    hidden: int
    side: int


class UnitMeanDecoder(nn.Module):
    """Map a code to the mean, between 0 and 1, and the log variance of an image, side by side: ``[B, 1, H, 2W]``."""

    def __init__(self, latent: int, shape: tuple[int, ...], hidden: int) -> None:
        super().__init__()
        self.layers = DenseDecoder(latent, (*shape[:-1], 2 * shape[-1]), (hidden,), "tanh")

    def forward(self, z: Tensor) -> Tensor:
        """Map ``[B, latent]`` to ``[B, 1, H, 2W]``."""
        mean, log_variance = self.layers(z).chunk(2, -1)
        return torch.cat([mean.sigmoid(), INITIAL_LOG_VARIANCE + log_variance], -1)


@experiment(
    "vae-manifold",
    title="Digits and faces on the plane of two latent variables",
    reference="Kingma & Welling, Auto-encoding variational Bayes, ICLR 2014, Figure 4 (arXiv:1312.6114)",
    figures=["bernoulli", "gaussian"],
)
def manifold(config: RunConfig) -> Result:
    """The latent plane of auto-encoders with two latent variables, for digits and faces.

    The paper's claim. With two latent variables the generative model can be drawn: the inverse Gaussian CDF maps the
    unit square to codes z that are equally probable under the prior, and p(x | z) is drawn for each. Neighbors on the
    plane look alike, and one digit or expression changes into the next (Figure 4).

    What is run. MNIST with a Bernoulli decoder and Frey faces with a Gaussian one, whose network outputs a mean between
    0 and 1 and a variance for every pixel; one hidden layer of 500 and 200 tanh units, batches of 100, one draw of z
    per datum. The figures are the planes; the table has the bound and the log likelihood of held-out images, for which
    the paper gives no numbers at two latent variables.

    What differs. Adam with a decaying learning rate in place of Adagrad, and no prior on the weights. For the Bernoulli
    decoder the gray images are binarized at random at every step. A random tenth of the faces is held out; they have
    neighbors in time in the training set. The number of epochs and the learning rate for the faces were chosen by
    looking at their plane. The quick and the smoke run use the 8×8 digits of scikit-learn for both decoders; for the
    Gaussian one their 17 gray levels are dequantized by uniform noise, since the density of a discrete value is
    unbounded.

    What to look for. All classes of digits, and a face that turns along one direction and changes its expression along
    another; corners that the data do not reach are the least sharp.
    """
    rows: list[Row] = []
    figures = {}
    with one_thread(config.budget != "full"):
        for data in _manifold_data(config):
            name = f"{data.name}, {data.decoder.capitalize()} decoder"
            config.report(f"{name}: {len(data.train):,} images")
            model = _train(
                data.train,
                config,
                latent=MANIFOLD_LATENT,
                hidden=data.hidden,
                epochs=MANIFOLD_EPOCHS[config.budget][data.decoder],
                lr=LEARNING_RATE[data.decoder],
                decoder=data.decoder,
            )
            rows += _likelihood_rows(name, "held-out", model, data.test, config)
            figures[data.decoder] = plots.image_grid(
                model.manifold(data.side), data.side, value_range=(0.0, 1.0), gap=1
            )
    return Result(tuple(rows), figures)


@experiment(
    "vae-samples",
    title="Random digits from 2, 5, 10 and 20 latent variables",
    reference="Kingma & Welling, Auto-encoding variational Bayes, ICLR 2014, Figure 5 (arXiv:1312.6114)",
    figures=["samples"],
)
def samples(config: RunConfig) -> Result:
    """Digits drawn from auto-encoders with 2, 5, 10 and 20 latent variables.

    The paper's claim. More latent variables give sharper and more varied digits, and do not overfit, since the KL
    divergence from the prior switches off those that are not needed (Figure 5, and Figure 2 for the bounds).

    What is run. MNIST with a Bernoulli decoder; one hidden layer of 500 tanh units, batches of 100, one draw of z per
    datum. The figure has 100 draws from each prior, decoded to pixel probabilities; the table has the bound and the log
    likelihood of test images, and the number of latent variables in use: those whose posterior mean varies over the
    images with a variance above 0.01 (Burda et al. 2016). The paper gives its bounds as curves, without numbers.

    What differs. Adam with a decaying learning rate in place of Adagrad, no prior on the weights, and binary images
    drawn from the gray ones at every step. The quick and the smoke run use the 8×8 digits of scikit-learn.

    What to look for. Blurred digits at 2, incomplete strokes at 20; a bound that increases with the number of latent
    variables, by less and less. In the full run all of the 20 are in use.
    """
    data = handwritten_digits(config)
    rows: list[Row] = []
    samples_by_size = {}
    with one_thread(config.budget != "full"):
        for latent in SAMPLE_LATENT:
            name = f"{latent} latent variables"
            config.report(f"{name}, {len(data.x_train):,} digits")
            model = _train(
                data.x_train,
                config,
                latent=latent,
                hidden=SAMPLE_HIDDEN[config.budget],
                epochs=SAMPLE_EPOCHS[config.budget],
                lr=LEARNING_RATE["bernoulli"],
            )
            in_use = int((model.encode(data.x_test).mean.var(0) > IN_USE).sum())
            rows += [
                *_likelihood_rows(name, "test", model, data.x_test, config),
                Row(f"{name}: in use", (float(in_use),)),
            ]
            samples_by_size[latent] = model.sample(SAMPLE_SIDE**2, seed=config.seed).cpu()
    return Result(tuple(rows), {"samples": _samples_figure(samples_by_size)})


def _train(
    x: Tensor, config: RunConfig, *, latent: int, hidden: int, epochs: int, lr: float, decoder: str = "bernoulli"
) -> VAE:
    """Train the paper's networks with one hidden layer on images ``[N, 1, H, W]``."""
    shape = tuple(x.shape[1:])
    with seeded(config.seed, torch.device("cpu")):
        encoder = DenseEncoder(shape, 2 * latent, (hidden,), "tanh")
        if decoder == "bernoulli":
            model = VAE(encoder, DenseDecoder(latent, shape, (hidden,), "tanh"), latent=latent)
        else:
            unit_mean = UnitMeanDecoder(latent, shape, hidden)
            model = VAE(encoder, unit_mean, latent=latent, likelihood=credo.Gaussian(noise="heteroscedastic"))
    return model.fit(
        x.to(config.device or "cpu"),
        epochs=epochs,
        batch_size=BATCH_SIZE,
        lr=lr,
        device=config.device,
        seed=config.seed,
        progress=False,
    )


def _manifold_data(config: RunConfig) -> list[ManifoldData]:
    digits = handwritten_digits(config)
    if config.budget == "full":
        faces, held_out_faces = _faces(config.seed)
        return [
            ManifoldData("MNIST", "bernoulli", digits.x_train, digits.x_test, hidden=500, side=20),
            ManifoldData("Frey faces", "gaussian", faces, held_out_faces, hidden=200, side=10),
        ]
    draws = generator(torch.device("cpu"), config.seed)
    train, test = ((16.0 * x + torch.rand(x.shape, generator=draws)) / 17.0 for x in (digits.x_train, digits.x_test))
    return [
        ManifoldData("8×8 digits", "bernoulli", digits.x_train, digits.x_test, hidden=100, side=20),
        ManifoldData("8×8 digits", "gaussian", train, test, hidden=100, side=20),
    ]


def _faces(seed: int) -> tuple[Tensor, Tensor]:
    """The 1,965 frames in [0, 1], ``[N, 1, 28, 20]``: the training part and the held-out part."""
    frames = torch.from_numpy(arrays("small/frey_faces.npz")["X"])[:, None].float() / 255.0
    order = torch.randperm(len(frames), generator=generator(torch.device("cpu"), seed))
    held_out = round(FACES_HELD_OUT * len(frames))
    return frames[order[held_out:]], frames[order[:held_out]]


def _likelihood_rows(name: str, kind: str, model: VAE, test: Tensor, config: RunConfig) -> list[Row]:
    """The bound and the log likelihood of images, ``kind`` being ``"test"`` or ``"held-out"``."""
    draws = IMPORTANCE_SAMPLES[config.budget]
    bound = model.elbo(test, samples=10, seed=config.seed).mean().item()
    likelihood = model.log_likelihood(test, draws, seed=config.seed).mean().item()
    return [
        Row(f"{name}: ELBO of a {kind} image, nats", (bound,)),
        Row(f"{name}: its log likelihood, nats", (likelihood,), note=f"{draws:,} importance samples"),
    ]


def _samples_figure(samples: dict[int, Tensor]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 8.4), layout="constrained")
    for ax, (latent, images) in zip(figure.subplots(2, 2).flat, samples.items(), strict=True):
        draw_images(ax, images, SAMPLE_SIDE, f"{latent} latent variables")
    return figure
