"""Bayes by Backprop of 784-1200-1200-10 beside other libraries, as ratios to the deterministic network, in one run.

    pip install --no-deps --target peers -r benchmarks/peers-requirements.txt
    PYTHONPATH=peers python benchmarks/peers.py [--out benchmarks/results/peers_cpu.json]

Every library has a mean-field Gaussian posterior over all weights, the prior N(0, 1), one draw per step, and the same
fused Adam; a step is the loss with its KL over 60,000 data, the gradient and the update. A prediction is the class
probabilities of 100 draws for 1,000 rows: by ``predict`` for credo, by a loop of forwards with a draw each for the
others. Rounds are interleaved, and ratios are medians over rounds. Libraries that are not installed are left out.

``kl_ratio`` is the library's KL at its start over the sum of ``torch.distributions.kl_divergence`` over all weights and
biases; blitz and posteriors estimate it from the draw of each step and have none.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from step_and_predict import Step, hardware, network, race, ratios, train_step
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import credo

N_DATA = 60_000
CPU = torch.device("cpu")


@dataclass
class Contestant:
    """What a library is asked for.

    Attributes:
        loss: of a batch, per datum.
        parameters: all that is learned.
        predict: the mean class probabilities ``[B, 10]`` of S draws.
        kl: the KL that the library takes, and the true one; ``None`` where it only estimates it from a draw.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    parameters: list[Tensor]
    predict: Callable[[Tensor, int], object]
    kl: tuple[float, float] | None


def true_kl(posterior: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Σ KL(N(mean, scale²) ‖ N(0, 1)) over tensors of means and scales."""
    return sum(float(kl_divergence(Normal(mean, scale), Normal(0.0, 1.0)).double().sum()) for mean, scale in posterior)


def by_loop(net: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int], object]:
    """The mean class probabilities of several forwards, each with its own draw."""

    @torch.no_grad()
    def predict(x: Tensor, samples: int) -> Tensor:
        return torch.stack([net(x).softmax(-1) for _ in range(samples)]).mean(0)

    return predict


def of_credo(**options: object) -> Contestant:
    model = credo.BayesByBackprop(network(), credo.Categorical(), prior=credo.Normal(0.0, 1.0), **options)  # type: ignore[arg-type]
    model._prepare(torch.randn(128, 784))
    means, scales = model.posterior.mean(), model.posterior.scale()
    return Contestant(
        lambda x, y: model(x, y, N_DATA),
        list(model.parameters()),
        lambda x, samples: model.predict(x, samples=samples, seed=0).mean,
        (float(model.kl()), true_kl((means[name], scales[name]) for name in means)),
    )


def of_bayesian_torch(kind: str) -> Contestant:
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

    net = network()
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.6}
    dnn_to_bnn(net, {**prior, "type": kind, "moped_enable": False, "moped_delta": 0.5})
    own = dict(net.named_parameters())
    pairs = [(own[name], F.softplus(own[name.replace("mu_", "rho_")])) for name in own if "mu_" in name]
    return Contestant(
        lambda x, y: F.cross_entropy(net(x), y) + get_kl_loss(net) / N_DATA,
        list(net.parameters()),
        by_loop(net),
        (float(get_kl_loss(net)), true_kl(pairs)),
    )


def of_blitz() -> Contestant:
    from blitz.losses import kl_divergence_from_nn
    from blitz.modules import BayesianLinear

    sizes = [(784, 1200), (1200, 1200), (1200, 10)]
    layers = [BayesianLinear(*size, prior_sigma_1=1.0, prior_pi=1.0, posterior_rho_init=-4.6) for size in sizes]
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    return Contestant(
        lambda x, y: F.cross_entropy(net(x), y) + kl_divergence_from_nn(net) / N_DATA,
        list(net.parameters()),
        by_loop(net),
        None,
    )


def of_torchbayesian() -> Contestant:
    from torchbayesian.bnn import BayesianModule
    from torchbayesian.bnn.variational_posteriors import GaussianPosterior

    net = BayesianModule(network())
    posteriors = [module.distribution for module in net.modules() if isinstance(module, GaussianPosterior)]
    return Contestant(
        lambda x, y: F.cross_entropy(net(x), y) + net.kl_divergence() / N_DATA,
        list(net.parameters()),
        by_loop(net),
        (float(net.kl_divergence()), true_kl((q.mean, q.stddev) for q in posteriors)),
    )


def of_posteriors() -> Contestant:
    from posteriors.vi import diag
    from torch.func import functional_call

    from posteriors import diag_normal_log_prob

    net = network()
    means = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    log_scales = {name: torch.full_like(p, -4.6).requires_grad_() for name, p in means.items()}

    def log_posterior(parameters: dict[str, Tensor], batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        logits = functional_call(net, parameters, (x,))
        return -F.cross_entropy(logits, y) + diag_normal_log_prob(parameters) / N_DATA, logits

    def loss(x: Tensor, y: Tensor) -> Tensor:
        scales = {name: value.exp() for name, value in log_scales.items()}
        bound: Tensor = diag.nelbo(means, scales, (x, y), log_posterior, temperature=1.0 / N_DATA)[0]
        return bound

    @torch.no_grad()
    def predict(x: Tensor, samples: int) -> Tensor:
        state = diag.VIDiagState(means, log_scales, None)
        calls = (functional_call(net, diag.sample(state), (x,)) for _ in range(samples))
        return torch.stack([logits.softmax(-1) for logits in calls]).mean(0)

    return Contestant(loss, [*means.values(), *log_scales.values()], predict, None)


CONTESTANTS: dict[str, tuple[str, Callable[[], Contestant]]] = {
    "credo": ("", of_credo),
    "credo, weight": ("", lambda: of_credo(estimator="weight")),
    "credo, flipout": ("", lambda: of_credo(estimator="flipout")),
    "bayesian-torch, Reparameterization": ("bayesian-torch", lambda: of_bayesian_torch("Reparameterization")),
    "bayesian-torch, Flipout": ("bayesian-torch", lambda: of_bayesian_torch("Flipout")),
    "blitz": ("blitz-bayesian-pytorch", of_blitz),
    "torchbayesian": ("torchbayesian", of_torchbayesian),
    "posteriors": ("posteriors", of_posteriors),
}


def installed() -> Iterator[tuple[str, str, Contestant]]:
    """The contestants that can be built here, with the version of their library."""
    for name, (package, build) in CONTESTANTS.items():
        try:
            version = importlib.metadata.version(package) if package else credo.__version__
            yield name, version, build()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--predict-rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    plain, x = network(), torch.randn(1000, 784)
    found = list(installed())

    @torch.no_grad()
    def forwards() -> None:
        for _ in range(arguments.samples):
            plain(x)

    def plain_loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(plain(x), y)

    steps: dict[str, Step] = {"deterministic": train_step(plain_loss, [{"params": list(plain.parameters())}], CPU)}
    predictions: dict[str, Step] = {"deterministic": forwards}
    for name, _, peer in found:
        steps[name] = train_step(peer.loss, [{"params": peer.parameters}], CPU)
        predictions[name] = lambda peer=peer: peer.predict(x, arguments.samples)  # type: ignore[misc]
    by_step = {row["name"]: row for row in ratios(race(steps, arguments.rounds, CPU), "deterministic")}
    by_prediction = {
        row["name"]: row for row in ratios(race(predictions, arguments.predict_rounds, CPU), "deterministic")
    }
    rows = []
    for name, version, peer in found:
        ratio = None if peer.kl is None else float(f"{peer.kl[0] / peer.kl[1]:.4g}")
        rows.append(
            {
                "name": name,
                "version": version,
                "train_step": by_step[name]["ratio"],
                "predict": by_prediction[name]["ratio"],
                "kl_ratio": ratio,
            }
        )
        print(f"{name:<36} step {rows[-1]['train_step']:>6}×  predict {rows[-1]['predict']:>6}×  KL {ratio}")
    result = {
        "name": "peers",
        "command": "PYTHONPATH=peers python benchmarks/peers.py",
        "date": datetime.date.today().isoformat(),
        "hardware": hardware(CPU),
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
