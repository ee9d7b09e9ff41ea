"""The Fréchet distance between the features of two sets of images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from credo.architectures import LeNet
from credo.errors import InputError
from credo.likelihoods import Categorical
from credo.methods import MAP
from credo.seeding import seeded
from credo.training.generative import evaluation_mode

_ROWS_AT_ONCE = 1024


def frechet_distance(features_a: Tensor, features_b: Tensor) -> float:
    """The squared Wasserstein-2 distance of two Gaussians with the moments of the features, ``[N, D]`` and ``[M, D]``.

        d² = ‖μ_a − μ_b‖² + tr(Σ_a + Σ_b − 2 (Σ_a Σ_b)^½)

    With any roots Σ = RᵀR, tr (Σ_a Σ_b)^½ is the sum of the singular values of R_a R_bᵀ. The roots are the triangular
    factors of the centered features, so that no covariance is formed and none of less than full rank, such as that of
    fewer rows than features, costs digits: the result is exact to about D·10⁻¹⁶ of the two traces. The estimate is too
    large by an amount that falls with the number of rows: compare only distances from the same number of rows.

    References:
        M. Heusel et al. GANs trained by a two time-scale update rule converge to a local Nash equilibrium. NeurIPS
        2017. arXiv:1706.08500.
    """
    for features in (features_a, features_b):
        if not isinstance(features, Tensor):
            raise InputError(f"features must be tensors, got {type(features).__name__}: convert with torch.as_tensor")
    if features_a.ndim != 2 or features_b.ndim != 2 or features_a.shape[1] != features_b.shape[1]:
        raise InputError(
            f"features must have shapes [N, D] and [M, D], got {list(features_a.shape)} and {list(features_b.shape)}"
        )
    if min(len(features_a), len(features_b)) < 2:
        raise InputError(f"a covariance needs two rows or more, got {len(features_a)} and {len(features_b)}")
    a, b = features_a.double(), features_b.to(features_a.device).double()
    if not bool(a.isfinite().all() and b.isfinite().all()):
        raise InputError("features hold NaN or infinite values: so may the images they are of")
    root_a, root_b = _covariance_root(a), _covariance_root(b)
    shared = torch.linalg.svdvals(root_a @ root_b.mT).sum()
    traces = root_a.square().sum() + root_b.square().sum()
    return max(float((a.mean(0) - b.mean(0)).square().sum() + traces - 2.0 * shared), 0.0)


def lenet_features(x: Tensor, lenet: MAP | LeNet, batch_size: int = _ROWS_AT_ONCE) -> Tensor:
    """The 500 features before the last layer of a trained LeNet, ``[N, 500]``, for images ``[N, C, H, W]``.

    Args:
        x: images in the range that the network was trained with.
        lenet: the network, or the method that trained it, such as :func:`fit_lenet` gives.
        batch_size: images at once.
    """
    net = lenet.net if isinstance(lenet, MAP) else lenet
    if not isinstance(net, LeNet):
        raise InputError(f"lenet must be a LeNet or a method around one, got {type(net).__name__}")
    channels, size = net.config["in_channels"], net.config["size"]
    if x.shape[1:] != (channels, size, size):
        raise InputError(
            f"images must be of the size the network takes, {[channels, size, size]}, got {list(x.shape[1:])}"
        )
    weight = next(net.parameters())
    with evaluation_mode(net), torch.no_grad():
        parts = x.to(weight.dtype).split(batch_size)
        return torch.cat([net.classifier[:-1](net.features(part.to(weight.device))) for part in parts])


def fit_lenet(x: Tensor, y: Tensor, *, epochs: int = 10, device: str | None = None, seed: int = 0) -> MAP:
    """A LeNet that has learned to classify images ``x [N, C, S, S]`` by labels ``y [N]``: features, and a judge.

    Train it once on real images, and measure all samples with the same one: its features, and so Fréchet distances,
    are its own.
    """
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise InputError(f"x and y must be tensors, got {type(x).__name__} and {type(y).__name__}")
    if x.ndim != 4 or x.shape[2] != x.shape[3]:
        raise InputError(f"x must be square images, [N, C, S, S], got {list(x.shape)}")
    if y.is_floating_point():
        raise InputError(f"y must be labels, integers from 0, got {y.dtype}: convert with y.long()")
    with seeded(seed, torch.device("cpu")):
        method = MAP(LeNet(int(y.max()) + 1, x.shape[1], x.shape[2]), likelihood=Categorical())
    return method.fit((x, y), epochs=epochs, batch_size=128, device=device, seed=seed, progress=False)


def _covariance_root(features: Tensor) -> Tensor:
    """R with RᵀR the covariance of ``features [N, D]``, ``[min(N, D), D]``."""
    centered = (features - features.mean(0)) / math.sqrt(len(features) - 1)
    root: Tensor = torch.linalg.qr(centered, mode="r").R
    return root
