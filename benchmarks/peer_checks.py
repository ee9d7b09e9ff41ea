"""What the contestants of ``benchmarks/peers.py`` compute, compared with exact values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from contestants import CONTESTANTS, Contestant
from dropout_contestants import DROPOUT
from racing import mlp
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

KL_DRAWS = 5
VARIANCE_DRAWS = 600


class PositionMean(nn.Module):
    """The mean over the positions of ``[B, T, C]``."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def check_posterior(name: str) -> dict[str, object]:
    """The KL inside the loss, and the variance of outputs averaged over positions, as ratios to the exact values."""
    torch.manual_seed(0)
    build = CONTESTANTS[name].build
    images = nn.Sequential(nn.Conv2d(3, 10, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    tokens = nn.Sequential(nn.Linear(16, 10), PositionMean())
    x_images, x_tokens = 1.0 + torch.randn(4, 3, 8, 8), 1.0 + torch.randn(4, 12, 16)
    return {
        "kl": kl_ratio(build(mlp()), torch.randn(8, 784), torch.randint(0, 10, (8,))),
        "conv_variance": variance_ratio(build(images), x_images, F.unfold(x_images, 3, padding=1).mean(-1)),
        "linear_variance": variance_ratio(build(tokens), x_tokens, x_tokens.mean(1)),
    }


def kl_ratio(contestant: Contestant, x: Tensor, y: Tensor) -> float | None:
    """The KL that the loss contains over the exact one: with the same draw, loss(n = 1) − loss(n = 2) is half of it."""
    if contestant.loss is None or contestant.posterior is None:
        return None
    exact = sum(
        float(kl_divergence(Normal(mean, scale), Normal(0.0, 1.0)).double().sum())
        for mean, scale in contestant.posterior()
    )
    found = 0.0
    for seed in range(KL_DRAWS):
        losses = []
        for n in (1, 2):
            torch.manual_seed(seed)
            losses.append(float(contestant.loss(x, y, n)))
        found += 2.0 * (losses[0] - losses[1]) / KL_DRAWS
    return float(f"{found / exact:.3g}")


@torch.no_grad()
def variance_ratio(contestant: Contestant, x: Tensor, inputs: Tensor) -> float | None:
    """The variance of the output in training over its exact value.

    The output ``[B, C]`` is linear in the weights, w·``inputs`` + b, with variance Σ σ_w²·``inputs``² + σ_b². The ratio
    of mean variances has a standard error below sqrt(2 / ``VARIANCE_DRAWS``) = 0.06, and of about 0.02 because the C
    outputs are independent.
    """
    if contestant.forward is None or contestant.posterior is None:
        return None
    weight, bias = sorted((scale.detach() for _, scale in contestant.posterior()), key=Tensor.dim, reverse=True)
    exact = inputs.square() @ weight.flatten(1).square().T + bias.square()
    found = torch.stack([contestant.forward(x) for _ in range(VARIANCE_DRAWS)]).var(0)
    return round(float(found.mean() / exact.mean()), 2)


def check_dropout(name: str) -> dict[str, object]:
    """Whether rows of a draw share its masks, and whether prediction leaves batch norm as it was."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Dropout(0.5), nn.Linear(50, 10))
    before = {key: buffer.clone() for key, buffer in net.named_buffers()}
    draws = DROPOUT[name].build(net)(torch.randn(1, 20).expand(6, 20).contiguous(), 8)
    after = dict(net.named_buffers())
    return {
        "one_mask_per_draw": torch.allclose(draws, draws[:, :1].expand_as(draws), atol=1e-5),
        "batch_norm_unchanged": all(torch.equal(before[key], after[key]) for key in before),
    }
