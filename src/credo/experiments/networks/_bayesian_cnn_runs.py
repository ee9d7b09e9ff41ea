"""One training run of ``bayesian-cnn``: a network, a method and a seed, measured as a record that JSON can hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

import credo
from credo import metrics
from credo._arguments import check_option
from credo.architectures import AllConvNet, LeNet
from credo.datasets import Images, rotate
from credo.errors import InputError
from credo.experiments.networks._images import Data, measure_images
from credo.experiments.networks._records import Record, first_member, rounded
from credo.seeding import seeded

if TYPE_CHECKING:
    from credo.methods.base import Method
    from credo.predictive import Predictive
    from credo.priors import Prior

NETWORKS = ("lenet", "allconv")
METHODS = ("flipout", "local", "dropout", "ensemble")
ANGLES = 5.0 * torch.arange(37)
RISING = 90.0
"""Beyond this angle a 1 turns into an upright one again."""


@dataclass(frozen=True)
class Variant:
    """A network trained by a method.

    Attributes:
        network: one of ``NETWORKS``.
        method: one of ``METHODS``; ``"flipout"`` and ``"local"`` are two estimators of Bayes by Backprop.
    """

    network: str
    method: str

    @property
    def name(self) -> str:
        """Such as ``"lenet-flipout"``."""
        return f"{self.network}-{self.method}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The variant of a :attr:`name`."""
        network, _, method = name.partition("-")
        if network not in NETWORKS or method not in METHODS:
            raise InputError(f"a row must have a name such as lenet-flipout or allconv-ensemble, got {name!r}")
        return cls(network, method)


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of a run.

    Attributes:
        epochs: passes over the training images.
        batch_size: images per step.
        lr: learning rate at the start of its cosine.
        widths: channels of the two stages of the all-convolutional network.
        precision: of the training, as Fabric names it; predictions are in float32.
        relu: whether LeNet has a ReLU after each pooling.
        prior: of Bayes by Backprop: ``"normal"``, N(0, prior_scale²); ``"he"``, N(0, prior_scale²·2/fan in), after the
            initial weights of He et al.; or ``"adaptive"``, a scale per tensor by empirical Bayes.
        prior_scale: see ``prior``.
        temperature: T of Bayes by Backprop.
        initial_scale: σ at the start.
        kl_warmup: steps over which the KL's weight rises; ``None``: the first half of the training.
        dropout: drop rate of MC dropout.
        member_dropout: drop rate in the training of the ensemble's networks, which predict without it; ``None``: they
            have none.
        length_scale: of the prior of MC dropout and of the ensemble's networks.
        members: networks of the ensemble.
        draws: number of draws of a prediction.
        ones: number of images of a 1 that are rotated; the first is that of the figure.
    """

    epochs: int = 60
    batch_size: int = 128
    lr: float = 1e-3
    widths: tuple[int, int] = (32, 64)
    precision: str = "32-true"
    relu: bool = False
    prior: str = "normal"
    prior_scale: float = 1.0
    temperature: float = 0.1
    initial_scale: float = 0.01
    kl_warmup: int | None = None
    dropout: float = 0.5
    member_dropout: float | None = None
    length_scale: float = 1.0
    members: int = 5
    draws: int = 100
    ones: int = 100


def measure(variant: Variant, data: Data, settings: Settings, seed: int, device: str | None = None) -> Record:
    """Train one network, or an ensemble, and measure it.

    Args:
        variant: the network and the method.
        data: digits and other images.
        settings: the hyper-parameters.
        seed: of the initial weights, the training and the draws.
        device: device to train on; ``None`` is the CPU.

    Returns:
        Errors, NLL and calibration error on the test images, the mean aleatoric and epistemic uncertainty of each
        class, how well entropy and mutual information separate other images from digits, and both for a rotated 1.
    """
    digits = data.digits
    with seeded(seed, torch.device("cpu")):
        model = _build(variant, digits, settings)
    if device in (None, "cpu"):  # convolutions are a third faster there
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub of torch
    start = time.perf_counter()
    model.fit(
        (digits.x_train, digits.y_train),
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=settings.lr,
        precision=settings.precision,
        device=device,
        seed=seed,
        progress=False,
    )
    seconds = time.perf_counter() - start

    def predict(x: Tensor, draws: int = settings.draws) -> Predictive:
        return model.predict(x.to(device or "cpu"), samples=draws, seed=seed).cpu()

    tested = predict(digits.x_test)
    return {
        "variant": variant.name,
        "seed": seed,
        "settings": {**asdict(settings), "widths": list(settings.widths)},
        **measure_images(tested, data, predict),
        "aleatoric": _by_class(tested.aleatoric, digits),
        "epistemic": _by_class(tested.epistemic, digits),
        "rotated": _measure_rotated(digits, settings.ones, predict),
        "train_seconds": round(seconds, 1),
        "trained_by": first_member(model)._training_path,
    }


def _build(variant: Variant, digits: Images, settings: Settings) -> Method:
    classes, size = len(digits.classes), digits.x_train.shape[-1]

    def network(dropout: float | None = None) -> nn.Module:
        if variant.network == "lenet":
            return LeNet(classes, size=size, dropout=dropout, relu=settings.relu)
        return AllConvNet(classes, widths=settings.widths, dropout=dropout)

    likelihood = credo.Categorical()
    if variant.method == "ensemble":
        return credo.DeepEnsemble(
            lambda: network(settings.member_dropout),
            members=settings.members,
            likelihood=likelihood,
            prior=credo.Normal(0.0, 1.0 / settings.length_scale),
        )
    if variant.method == "dropout":
        return credo.MCDropout(network(settings.dropout), likelihood, length_scale=settings.length_scale)
    net = network()
    return credo.BayesByBackprop(
        net,
        likelihood,
        _prior(net, settings),
        initial_scale=settings.initial_scale,
        estimator=variant.method,
        kl_warmup=settings.kl_warmup,
        temperature=settings.temperature,
    )


def _prior(net: nn.Module, settings: Settings) -> Prior:
    check_option(settings.prior, "prior", ("normal", "he", "adaptive"))
    if settings.prior == "adaptive":
        return credo.AdaptiveNormal()
    if settings.prior == "normal":
        return credo.Normal(0.0, settings.prior_scale)
    fan_in = {name: p[0].numel() for name, p in net.named_parameters() if name.endswith("weight")}
    he = {name: credo.Normal(0.0, settings.prior_scale * math.sqrt(2.0 / fan)) for name, fan in fan_in.items()}
    return {**he, "*": credo.Normal(0.0, settings.prior_scale)}


def _by_class(uncertainty: Tensor, digits: Images) -> list[float]:
    """The mean over the test images of each class."""
    classes = range(len(digits.classes))
    return [rounded(uncertainty[digits.y_test == c].double().mean().item()) for c in classes]


def _measure_rotated(digits: Images, count: int, predict: Callable[[Tensor], Predictive]) -> dict[str, object]:
    """Uncertainty and class of rotated 1s at ``ANGLES``: means over images, and the first image by itself."""
    ones = digits.x_test[digits.y_test == 1][:count]
    steps = len(ANGLES)
    p = predict(rotate(ones.repeat_interleave(steps, 0), ANGLES.repeat(len(ones))))
    entropy, information = (u.double().view(len(ones), steps) for u in (p.entropy, p.mutual_information))
    misread = (p.mode != 1).double().view(len(ones), steps)
    label = torch.ones(len(ones) * steps, dtype=torch.long)
    return {
        "image": [bytes(row).hex() for row in (255 * ones[0, 0]).round().byte().tolist()],
        "class": p.mode.view(len(ones), steps)[0].tolist(),
        "entropy": [rounded(value) for value in entropy[0].tolist()],
        "mutual_information": [rounded(value) for value in information[0].tolist()],
        "mean_entropy": [rounded(value) for value in entropy.mean(0).tolist()],
        "mean_mutual_information": [rounded(value) for value in information.mean(0).tolist()],
        "misread": [rounded(value) for value in misread.mean(0).tolist()],
        "auroc_entropy": _or_chance(metrics.misclassification(p, label, "entropy").auroc),
        "auroc_mutual_information": _or_chance(metrics.misclassification(p, label, "mutual_information").auroc),
    }


def _or_chance(auroc: float) -> float:
    """The AUROC, or 0.5 if there are no images of one kind."""
    return 0.5 if math.isnan(auroc) else rounded(auroc)
