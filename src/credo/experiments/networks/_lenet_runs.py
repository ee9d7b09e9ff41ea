"""One training run of ``lenet-by-method``: a method and a seed, measured as a record that JSON can hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

import credo
from credo.architectures import LeNet
from credo.errors import unknown_name
from credo.experiments.networks._images import Data, measure_images
from credo.experiments.networks._records import Record, first_member
from credo.methods.sampler import Sampler
from credo.seeding import seeded

if TYPE_CHECKING:
    from credo.methods.base import Method
    from credo.predictive import Predictive

EXPLORED = 0.7
"""The part of a sampler's cycle that looks for a mode, without noise."""


@dataclass(frozen=True)
class Settings:
    """The hyper-parameters of a run.

    Attributes:
        epochs: passes over the training images.
        noisy_epochs: those of dropout, Bayes by Backprop and IVON, whose gradients have the noise of their draws.
        sampler_epochs: passes of SGLD and SGHMC, over all cycles.
        batch_size: images per step.
        lr: learning rate of Adam at the start of its cosine.
        ivon_lr: learning rate of IVON, whose steps are relative to the curvature.
        ivon_decay: β₂ of IVON.
        swag_lr: learning rate of SWAG's gradient descent with momentum 0.9; a fifth of it while weights are collected.
        sgld_lr: step size of SGLD at the start of each cycle.
        sghmc_lr: that of SGHMC.
        cycles: of both samplers; their draws are divided among them.
        prior_scale: s of the prior N(0, s²) of all weights; of dropout, one over the length scale.
        temperature: T of Bayes by Backprop, IVON and the samplers.
        dropout: drop rate of MC dropout.
        rank: of the low-rank posterior.
        features: random features of SNGP.
        length_scale: of SNGP's kernel on the last hidden layer.
        spectral_bound: of SNGP's layers.
        members: networks of the ensemble.
        draws: number of draws of a prediction.
    """

    epochs: int = 20
    noisy_epochs: int = 30
    sampler_epochs: int = 40
    batch_size: int = 128
    lr: float = 1e-3
    ivon_lr: float = 0.02
    ivon_decay: float = 0.9999
    swag_lr: float = 0.02
    sgld_lr: float = 0.05
    sghmc_lr: float = 0.005
    cycles: int = 4
    prior_scale: float = 0.1
    temperature: float = 1.0
    dropout: float = 0.5
    rank: int = 5
    features: int = 1024
    length_scale: float = 1.0
    spectral_bound: float = 6.0
    members: int = 5
    draws: int = 100


def _network(data: Data, dropout: float | None = None) -> LeNet:
    return LeNet(len(data.digits.classes), size=data.digits.x_train.shape[-1], dropout=dropout)


def _with_prior(method: Callable[..., Method], **options: Any) -> Callable[[Data, Settings], Method]:
    """A function that builds a method for LeNet with the prior of all weights."""

    def build(data: Data, settings: Settings) -> Method:
        return method(_network(data), credo.Categorical(), credo.Normal(0.0, settings.prior_scale), **options)

    return build


def _build_dropout(data: Data, settings: Settings) -> Method:
    net = _network(data, settings.dropout)
    return credo.MCDropout(net, credo.Categorical(), length_scale=1.0 / settings.prior_scale)


def _build_concrete_dropout(data: Data, settings: Settings) -> Method:
    return credo.ConcreteDropout(_network(data), credo.Categorical(), length_scale=1.0 / settings.prior_scale)


def _build_bayes_by_backprop(data: Data, settings: Settings, rank: int = 0) -> Method:
    return _with_prior(credo.BayesByBackprop, rank=rank, temperature=settings.temperature)(data, settings)


def _build_ivon(data: Data, settings: Settings) -> Method:
    betas = (0.9, settings.ivon_decay)
    return _with_prior(credo.IVON, betas=betas, temperature=settings.temperature)(data, settings)


def _build_sngp(data: Data, settings: Settings) -> Method:
    """The prior is that of the Gaussian process, of standard deviation 1, as in the paper."""
    return credo.SNGP(
        _network(data),
        credo.Categorical(),
        credo.Normal(0.0, 1.0),
        features=settings.features,
        length_scale=settings.length_scale,
        spectral_bound=settings.spectral_bound,
    )


def _build_sampler(data: Data, settings: Settings, method: type[Sampler], lr: float) -> Method:
    """One chain with a cyclical step size from the initial weights of the network, as Zhang et al. (2020) sample."""
    steps = settings.sampler_epochs * (len(data.digits.y_train) // settings.batch_size)
    draws = settings.cycles * max(1, settings.draws // settings.cycles)
    options = {
        "chains": 1,
        "warmup": int(EXPLORED * steps),
        "draws": draws,
        "thinning": max(1, int((1.0 - EXPLORED) * steps) // draws),
        "lr": lr,
        "batch_size": settings.batch_size,
        "cycles": settings.cycles,
        "preconditioned": False,
        "init": "network",
        "temperature": settings.temperature,
    }
    return _with_prior(method, **options)(data, settings)


def _build_ensemble(data: Data, settings: Settings) -> Method:
    return credo.DeepEnsemble(
        partial(_network, data),
        members=settings.members,
        likelihood=credo.Categorical(),
        prior=credo.Normal(0.0, settings.prior_scale),
    )


_BUILDERS: dict[str, Callable[[Data, Settings], Method]] = {
    "map": _with_prior(credo.MAP),
    "mc-dropout": _build_dropout,
    "concrete-dropout": _build_concrete_dropout,
    "bbb": _build_bayes_by_backprop,
    "bbb-low-rank": lambda data, settings: _build_bayes_by_backprop(data, settings, settings.rank),
    "ivon": _build_ivon,
    "swag": _with_prior(credo.SWAG),
    "laplace": _with_prior(credo.Laplace),
    "laplace-last-layer": _with_prior(credo.Laplace, parameters="last_layer"),
    "variational-last-layer": _with_prior(credo.VariationalLastLayer),
    "sngp": _build_sngp,
    "sgld": lambda data, settings: _build_sampler(data, settings, credo.SGLD, settings.sgld_lr),
    "sghmc": lambda data, settings: _build_sampler(data, settings, credo.SGHMC, settings.sghmc_lr),
    "ensemble": _build_ensemble,
}
METHODS = tuple(_BUILDERS)
NOISY = ("mc-dropout", "concrete-dropout", "bbb", "bbb-low-rank", "ivon")
PRIOR_ON_LAST_LAYER = ("laplace-last-layer", "variational-last-layer", "sngp")
"""The other layers have a weight decay that is the same prior."""


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
        name: one of ``METHODS``.
    """

    name: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """The variant of a name."""
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
        return cls(name)


def measure(variant: Variant, data: Data, settings: Settings, seed: int, device: str | None = None) -> Record:
    """Train LeNet by one method and measure it.

    Args:
        variant: the method.
        data: digits and other images.
        settings: the hyper-parameters.
        seed: of the initial weights, the training and the draws.
        device: device to train on; ``None`` is the CPU.

    Returns:
        Errors, NLL and calibration error on the test images, how well entropy and mutual information separate other
        images from digits, and the seconds of training and of the prediction of the test images.
    """
    digits = data.digits
    with seeded(seed, torch.device("cpu")):
        model = _BUILDERS[variant.name](data, settings)
    start = time.perf_counter()
    options = _fit_options(variant.name, settings, len(digits.y_train))
    model.fit((digits.x_train, digits.y_train), device=device, seed=seed, progress=False, **options)
    if isinstance(model, credo.Laplace):
        model.optimize_prior("layer")
    trained = time.perf_counter()

    def predict(x: Tensor, draws: int = settings.draws) -> Predictive:
        return model.predict(x.to(device or "cpu"), samples=draws, seed=seed).cpu()

    tested = predict(digits.x_test)
    predicted = time.perf_counter()
    return {
        "variant": variant.name,
        "seed": seed,
        "settings": asdict(settings),
        **measure_images(tested, data, predict),
        "train_seconds": round(trained - start, 2),
        "predict_seconds": round(predicted - trained, 2),
        "trained_by": first_member(model)._training_path,
    }


def _fit_options(method: str, settings: Settings, n_data: int) -> dict[str, Any]:
    """The arguments of ``fit``; samplers have theirs in the constructor."""
    if method in ("sgld", "sghmc"):
        return {}
    options: dict[str, Any] = {
        "epochs": settings.noisy_epochs if method in NOISY else settings.epochs,
        "batch_size": settings.batch_size,
        "lr": settings.lr,
    }
    if method == "ivon":
        options["lr"] = settings.ivon_lr
    if method == "swag":
        options |= {"lr": settings.swag_lr, "optimizer": partial(torch.optim.SGD, momentum=0.9)}
    if method in PRIOR_ON_LAST_LAYER:
        options["weight_decay"] = 1.0 / (n_data * settings.prior_scale**2)
    return options
