"""One adapter for each library of ``benchmarks/peers.py``: what it is asked for, in its own way.

Every posterior is a mean-field Gaussian over all weights and biases with standard deviations of about 0.01 at the
start, and the prior is N(0, 1). The data are 60,000 rows, one draw is taken per step, and the optimizer is the same
fused Adam for all but IVON, which is one itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import credo

N_DATA = 60_000
RHO = -4.6  # softplus(RHO) and exp(RHO) are 0.01
PEERS = Path(__file__).parent.parent / "peers" / f"cp{sys.version_info.major}{sys.version_info.minor}"
sys.path.append(str(PEERS))  # at the end, so that installed packages come first


@dataclass
class Contestant:
    """A network as a library makes it Bayesian.

    Attributes:
        predict: the mean class probabilities ``[B, C]`` of S draws.
        loss: of a batch, per datum, with the KL over n data; ``None``: it is not trained here.
        parameters: all that is learned.
        forward: the output ``[B, C]`` of one noisy forward, as in training.
        posterior: the means and scales of all tensors.
        step: one training step on a batch, for a library that is itself the optimizer.
        loops: whether a prediction is a loop over draws, each with its own time.
    """

    predict: Callable[[Tensor, int], object]
    loss: Callable[[Tensor, Tensor, int], Tensor] | None = None
    parameters: Iterable[Tensor] = ()
    forward: Callable[[Tensor], Tensor] | None = None
    posterior: Callable[[], list[tuple[Tensor, Tensor]]] | None = None
    step: Callable[[Tensor, Tensor], object] | None = None
    loops: bool = False


def convert(net: nn.Sequential, linear: Callable[..., nn.Module], conv: Callable[..., nn.Module]) -> nn.Sequential:
    """The network with its layers replaced by Bayesian ones of the same sizes, on the same device."""
    device = next(net.parameters()).device
    layers: list[nn.Module] = []
    for layer in net:
        if isinstance(layer, nn.Linear):
            layers.append(linear(layer.in_features, layer.out_features))
        elif isinstance(layer, nn.Conv2d):
            layers.append(conv(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding))
        else:
            layers.append(layer)
    return nn.Sequential(*layers).to(device)


def by_loop(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], Tensor]:
    """The mean class probabilities of several forwards, each with its own draw."""

    @torch.no_grad()
    def predict(x: Tensor, samples: int) -> Tensor:
        return torch.stack([forward(x).softmax(-1) for _ in range(samples)]).mean(0)

    return predict


def of_layers(
    net: nn.Module, kl: Callable[[], Tensor], mean: str, scale: str, link: Callable[[Tensor], Tensor]
) -> Contestant:
    """A network of Bayesian layers; scales are ``link`` of the parameters named ``scale`` where means have ``mean``."""
    own = dict(net.named_parameters())
    pairs = [(own[name], own[name.replace(mean, scale)]) for name in own if mean in name]
    return Contestant(
        by_loop(net),
        lambda x, y, n: F.cross_entropy(net(x), y) + kl() / n,
        list(net.parameters()),
        net,
        lambda: [(value, link(raw)) for value, raw in pairs],
        loops=True,
    )


def of_plain(net: nn.Sequential) -> Contestant:
    @torch.no_grad()
    def forwards(x: Tensor, samples: int) -> None:
        for _ in range(samples):
            net(x)

    return Contestant(forwards, lambda x, y, n: F.cross_entropy(net(x), y), list(net.parameters()), loops=True)


def of_credo(net: nn.Sequential, estimator: str = "auto") -> Contestant:
    outputs: list[Tensor] = []

    def model_of(forward: Callable[[nn.Module, Tensor], Tensor] | None = None) -> credo.BayesByBackprop:
        prior = credo.Normal(0.0, 1.0)
        return credo.BayesByBackprop(net, credo.Categorical(), prior=prior, estimator=estimator, forward=forward)

    def recorded(inner: nn.Module, x: Tensor) -> Tensor:
        outputs[:] = [inner(x)]
        return outputs[0]

    @cache
    def recorder() -> credo.BayesByBackprop:
        return model_of(recorded)

    def noisy(x: Tensor) -> Tensor:
        recorder().loss(x, torch.zeros(len(x), dtype=torch.long, device=x.device), N_DATA)
        return outputs[0]

    model = model_of()
    return Contestant(
        lambda x, samples: model.predict(x, samples=samples, seed=0).mean,
        lambda x, y, n: model(x, y, n),
        list(model.parameters()),
        noisy,
        lambda: [(mean, model.posterior.scale()[name]) for name, mean in model.posterior.mean().items()],
    )


def of_bayesian_torch(net: nn.Sequential, kind: str) -> Contestant:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    device = next(net.parameters()).device
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": RHO}
    dnn_to_bnn(net, {**prior, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    net.to(device)
    return of_layers(net, lambda: get_kl_loss(net), "mu_", "rho_", F.softplus)


def of_blitz(net: nn.Sequential) -> Contestant:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianConv2d, BayesianLinear

    prior = {"prior_sigma_1": 1.0, "prior_pi": 1.0, "posterior_rho_init": RHO}
    net = convert(net, partial(BayesianLinear, **prior), partial(BayesianConv2d, **prior))
    return of_layers(net, lambda: kl_divergence_from_nn(net), "_mu", "_rho", F.softplus)


def of_torchbnn(net: nn.Sequential) -> Contestant:
    import torchbnn

    net = convert(net, partial(torchbnn.BayesLinear, 0.0, 1.0), partial(torchbnn.BayesConv2d, 0.0, 1.0))
    for name, parameter in net.named_parameters():
        if name.endswith("log_sigma"):
            nn.init.constant_(parameter, RHO)
    kl = torchbnn.BKLLoss(reduction="sum")
    return of_layers(net, lambda: kl(net).squeeze(), "_mu", "_log_sigma", torch.exp)


def of_torch_uncertainty(net: nn.Sequential) -> Contestant:
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear
    from torch_uncertainty.losses import ELBOLoss
    from torch_uncertainty.methods import StochasticModel

    prior = {"prior_sigma_1": 1.0, "prior_pi": 1.0, "sigma_init": RHO}
    net = convert(net, partial(BayesLinear, **prior), partial(BayesConv2d, **prior))
    elbo = ELBOLoss(net, nn.CrossEntropyLoss(), 1.0 / N_DATA, num_samples=1)

    def loss(x: Tensor, y: Tensor, n: int) -> Tensor:
        elbo.kl_weight = 1.0 / n
        return elbo(x, y).squeeze()

    @torch.no_grad()
    def predict(x: Tensor, samples: int) -> Tensor:
        logits = StochasticModel(net, samples).eval()(x)
        return logits.unflatten(0, (samples, len(x))).softmax(-1).mean(0)

    layers = of_layers(net, lambda: torch.zeros(()), "_mu", "_sigma", F.softplus)
    return Contestant(predict, loss, layers.parameters, net, layers.posterior, loops=True)


def of_torchbayesian(net: nn.Sequential) -> Contestant:
    from torchbayesian.bnn import BayesianModule
    from torchbayesian.bnn.variational_posteriors import GaussianPosterior

    wrapped = BayesianModule(net)
    posteriors = [module for module in wrapped.modules() if isinstance(module, GaussianPosterior)]
    return Contestant(
        by_loop(wrapped),
        lambda x, y, n: F.cross_entropy(wrapped(x), y) + wrapped.kl_divergence() / n,
        list(wrapped.parameters()),
        wrapped,
        lambda: [(q.distribution.mean, q.distribution.stddev) for q in posteriors],
        loops=True,
    )


def of_posteriors(net: nn.Sequential, vmap: bool = False) -> Contestant:
    from posteriors import diag_normal_log_prob
    from posteriors.vi import diag
    from torch.func import functional_call

    means = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    log_scales = {name: torch.full_like(p, RHO).requires_grad_() for name, p in means.items()}
    state = diag.VIDiagState(means, log_scales, None)

    def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, weights, (x,))

    def loss(x: Tensor, y: Tensor, n: int) -> Tensor:
        def log_posterior(weights: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            logits = call(weights, batch[0])
            return -F.cross_entropy(logits, batch[1]) + diag_normal_log_prob(weights) / n, logits

        scales = {name: value.exp() for name, value in log_scales.items()}
        bound: Tensor = diag.nelbo(means, scales, (x, y), log_posterior, temperature=1.0 / n)[0]
        return bound

    @torch.no_grad()
    def at_once(x: Tensor, samples: int) -> Tensor:
        return torch.vmap(call, (0, None))(diag.sample(state, (samples,)), x).softmax(-1).mean(0)

    def forward(x: Tensor) -> Tensor:
        return call(diag.sample(state), x)

    return Contestant(
        at_once if vmap else by_loop(forward),
        loss,
        [*means.values(), *log_scales.values()],
        forward,
        lambda: [(mean, log_scales[name].exp()) for name, mean in means.items()],
        loops=not vmap,
    )


def of_ivon(net: nn.Sequential) -> Contestant:
    from ivon import IVON

    # 1/(ess·(hess + weight_decay)) is the variance, 0.01² at the start, and 1/(ess·weight_decay) that of the prior, 1
    decay = 1.0 / N_DATA
    optimizer = IVON(net.parameters(), lr=1e-3, ess=N_DATA, hess_init=1e4 / N_DATA - decay, weight_decay=decay)

    def step(x: Tensor, y: Tensor) -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    def forward(x: Tensor) -> Tensor:
        with optimizer.sampled_params():
            return net(x)

    return Contestant(
        by_loop(forward),
        forward=forward,
        posterior=lambda: [(p, torch.full_like(p, 0.01)) for p in net.parameters()],
        step=step,
        loops=True,
    )


def of_laplace(net: nn.Sequential, subset: str, structure: str, **options: object) -> Contestant:
    """Fitted on two rows: the time of a prediction does not depend on the data."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    device = next(net.parameters()).device
    shape = (784,) if isinstance(net[0], nn.Linear) else (1, 28, 28)
    data = TensorDataset(torch.randn(2, *shape, device=device), torch.zeros(2, dtype=torch.long, device=device))
    model = Laplace(net, "classification", subset_of_weights=subset, hessian_structure=structure)
    model.fit(DataLoader(data, batch_size=2))
    return Contestant(lambda x, samples: model(x, n_samples=samples, **options))


LIBRARIES = {
    "baal": "baal.modelwrapper",
    "bayesian-torch": "bayesian_torch.models.dnn_to_bnn",
    "blitz-bayesian-pytorch": "blitz.modules",
    "ivon-opt": "ivon",
    "laplace-torch": "laplace",
    "posteriors": "posteriors",
    "torch-uncertainty": "torch_uncertainty.methods",
    "torchbayesian": "torchbayesian.bnn",
    "torchbnn": "torchbnn",
}
NOT_RACED = {
    "laplace-torch, diagonal, probit": "the Jacobian of 1,000 rows and 10 outputs by 2,395,210 weights takes 96 GB"
}


@dataclass(frozen=True)
class Entry:
    """A contestant by its name.

    Attributes:
        library: the distribution it comes from.
        build: makes a network Bayesian.
        step: whether its training step is raced.
        predict: whether its prediction is raced.
    """

    library: str
    build: Callable[[nn.Sequential], Contestant]
    step: bool = True
    predict: bool = True


REFERENCE = "deterministic"
CONTESTANTS = {
    REFERENCE: Entry("torch", of_plain),
    "credo": Entry("credo", of_credo),
    "credo, weight": Entry("credo", lambda net: of_credo(net, "weight"), predict=False),
    "credo, flipout": Entry("credo", lambda net: of_credo(net, "flipout"), predict=False),
    "bayesian-torch, Reparameterization": Entry(
        "bayesian-torch", lambda net: of_bayesian_torch(net, "Reparameterization")
    ),
    "bayesian-torch, Flipout": Entry("bayesian-torch", lambda net: of_bayesian_torch(net, "Flipout")),
    "blitz": Entry("blitz-bayesian-pytorch", of_blitz),
    "torchbnn": Entry("torchbnn", of_torchbnn),
    "torchbayesian": Entry("torchbayesian", of_torchbayesian),
    "posteriors": Entry("posteriors", of_posteriors),
    "posteriors, vmap": Entry("posteriors", lambda net: of_posteriors(net, vmap=True), step=False),
    "torch-uncertainty": Entry("torch-uncertainty", of_torch_uncertainty),
    "ivon": Entry("ivon-opt", of_ivon),
    "laplace-torch, diagonal, sampled": Entry(
        "laplace-torch", lambda net: of_laplace(net, "all", "diag", pred_type="nn", link_approx="mc"), step=False
    ),
    "laplace-torch, last layer, sampled": Entry(
        "laplace-torch",
        lambda net: of_laplace(net, "last_layer", "kron", pred_type="nn", link_approx="mc"),
        step=False,
    ),
    "laplace-torch, last layer, probit": Entry(
        "laplace-torch",
        lambda net: of_laplace(net, "last_layer", "kron", pred_type="glm", link_approx="probit"),
        step=False,
    ),
}
