r"""A bound on the spectral norms of weights, enforced by projection.

After a step of the optimizer, the weight W of a layer whose largest singular value σ exceeds the bound c becomes W·c/σ;
others stay as they are. In training σ is estimated by one step of power iteration from the vectors of the step before,

    v ← Wᵀu/‖Wᵀu‖,    u ← Wv/‖Wv‖,    σ ≈ uᵀWv ≤ σ_max,

and at the end it is computed exactly.

References: T. Miyato, T. Kataoka, M. Koyama, Y. Yoshida, "Spectral normalization for generative adversarial networks",
ICLR 2018. J. Liu et al., "Simple and principled uncertainty estimation with deterministic deep learning via distance
awareness", NeurIPS 2020, equation 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo.posteriors._wide_parameters import as_key
from credo.selection import parameter_owners

_FIRST_ITERATIONS = 15
_BOUNDED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def bounded_weights(net: nn.Module, last_layer: str) -> list[str]:
    """The names of the trained weights of all linear and convolution layers but the last one."""
    return [
        f"{path}.weight"
        for path, module in net.named_modules()
        if isinstance(module, _BOUNDED) and path != last_layer and module.weight.requires_grad
    ]


class SpectralBound(nn.Module):
    """Keeps the largest singular value of weights, as matrices ``[out, in·kernel]``, at or below a bound.

    Its buffers are the vectors u of the power iteration.

    Args:
        net: the network.
        names: the weights.
        bound: c.
    """

    def __init__(self, net: nn.Module, names: Sequence[str], bound: float) -> None:
        super().__init__()
        self.bound = bound
        self._owners = parameter_owners(net, names)
        source = torch.Generator().manual_seed(0)
        for name, weight in self._weights().items():
            self.register_buffer(as_key(name), torch.randn(len(weight), generator=source).to(weight))
            for _ in range(_FIRST_ITERATIONS):
                self._estimate_norm(name)

    @torch.no_grad()
    def project(self) -> None:
        """Scale down the weights whose estimated norm exceeds the bound; one step of power iteration for each."""
        for name in self._owners:
            self._scale_down(name, self._estimate_norm(name))

    @torch.no_grad()
    def project_exactly(self) -> None:
        """Scale down the weights whose norm exceeds the bound."""
        for name, norm in self.norms().items():
            self._scale_down(name, norm)

    @torch.no_grad()
    def norms(self) -> dict[str, Tensor]:
        """The largest singular value of every weight, by name."""
        return {
            name: torch.linalg.matrix_norm(weight.flatten(1).double(), ord=2).to(weight.dtype)
            for name, weight in self._weights().items()
        }

    def _weights(self) -> dict[str, Tensor]:
        return {name: module.get_parameter(key).detach() for name, (module, key) in self._owners.items()}

    def _estimate_norm(self, name: str) -> Tensor:
        """One step of power iteration."""
        weight, u = self._weights()[name].flatten(1), self.get_buffer(as_key(name))
        product = weight @ F.normalize(weight.mT @ u, dim=0)
        u.copy_(F.normalize(product, dim=0))
        norm: Tensor = torch.linalg.vector_norm(product)
        return norm

    def _scale_down(self, name: str, norm: Tensor) -> None:
        self._weights()[name].mul_((self.bound / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0))
