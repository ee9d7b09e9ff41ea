"""MNIST by a variational auto-encoder and by an importance-weighted one, as in table 1 of Burda et al. (2016).

    python benchmarks/vae_mnist.py --data data/mnist --objective elbo --device cuda --minutes 5
    python benchmarks/vae_mnist.py --data data/mnist --objective iwae --device cuda --minutes 5
    python benchmarks/vae_mnist.py --data data/mnist --objective elbo --smoke                     # a minute on a CPU

One stochastic layer of 50 units; encoder and decoder have two hidden layers of 200 tanh units; k = 50 for the
importance-weighted bound. As published: Glorot's initial weights, output biases from the mean training image, fresh
binary images at every step, Adam with ε = 10⁻⁴, all 60,000 training images. Other than published: a larger batch, and a
learning rate that falls to 0 along a cosine over the time given, where the paper takes 3,280 epochs of batches of 20.

The figure is −log p(x) per test image in nats, from 5,000 importance samples each, over all 10,000 test images, drawn
binary once with seed 0 of torch's CPU generator.

The model is credo's; the loop is this script's, since a GPU computes a step in less time than it takes to ask for it:
the loss is compiled, and it, its gradient and Adam's step are captured as a CUDA graph. On a CPU the steps are plain.

References: Y. Burda, R. Grosse, R. Salakhutdinov, "Importance weighted autoencoders", ICLR 2016, arXiv:1509.00519.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import credo
from credo.architectures import DenseDecoder, DenseEncoder
from credo.generative import VAE
from credo.seeding import seeded

RESULTS = Path(__file__).parent / "results"
LATENT, HIDDEN = 50, (200, 200)
PUBLISHED = {"elbo": 86.76, "iwae": 84.78}
PUBLISHED_UNITS = {"elbo": 19, "iwae": 25}
TEST_SEED = 0
STEPS_IN_A_GRAPH = 20
SECONDS_BETWEEN_LOGS = 10.0
MARGIN = 1.25
"""How much longer than measured the evaluation may take."""


@dataclass
class Report:
    """What the result file says; written again whenever there is news."""

    path: Path
    head: dict[str, Any]
    row: dict[str, Any]
    log: list[dict[str, Any]] = field(default_factory=list)

    def write(self) -> None:
        content = {**self.head, "rows": [self.row], "log": self.log}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def say(self, entry: dict[str, Any]) -> None:
        self.log.append(entry)
        print("  ".join(f"{name} {value}" for name, value in entry.items()), flush=True)
        self.write()


def build(objective: str, k: int, mean_image: Tensor) -> VAE:
    """The published networks and initial weights."""
    shape = tuple(mean_image.shape)
    encoder = DenseEncoder(shape, 2 * LATENT, HIDDEN, "tanh")
    decoder = DenseDecoder(LATENT, shape, HIDDEN, "tanh")
    layers = [module for net in (encoder, decoder) for module in net.modules() if isinstance(module, nn.Linear)]
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    with torch.no_grad():
        layers[-1].bias.copy_(torch.logit(mean_image.flatten(), eps=1e-3))
    return VAE(encoder, decoder, latent=LATENT, objective=objective, samples=k)


class Steps:
    """Training steps on ``images``, several at a time; as a CUDA graph where the model is on a GPU."""

    def __init__(self, model: VAE, images: Tensor, batch: int, lr: float, eps: float) -> None:
        self.images = images
        cuda = images.device.type == "cuda"
        self.loss: Callable[[Tensor], Tensor] = torch.compile(model) if cuda else model
        self.per_epoch = len(images) // batch
        self.at_once = math.gcd(self.per_epoch, STEPS_IN_A_GRAPH) if cuda else 1
        self.rows = torch.randint(len(images), (self.at_once, batch), device=images.device)
        rate = torch.tensor(lr, device=images.device)  # a tensor, which a graph reads anew at every replay
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate, eps=eps, capturable=cuda, fused=cuda)
        self.lr: Tensor = self.optimizer.param_groups[0]["lr"]
        self.total = torch.zeros((), device=images.device)
        self.run: Callable[[], None] = self._plain
        if cuda:
            self.run = self._captured()

    def epoch(self, rate: Callable[[], float]) -> float:
        """One pass over the images, in a new order; the mean loss. ``rate`` gives the learning rate as it goes."""
        order = torch.randperm(len(self.images), device=self.images.device)
        self.total.zero_()
        for rows in order[: self.per_epoch * self.rows.shape[1]].view(-1, *self.rows.shape):
            self.rows.copy_(rows)
            self.lr.fill_(rate())
            self.run()
        return float(self.total) / self.per_epoch

    def _plain(self) -> None:
        for rows in self.rows:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self.images[rows])
            loss.backward()
            self.optimizer.step()
            self.total += loss.detach()

    def _captured(self) -> Callable[[], None]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up in the first steps, which a graph must not hold
            self._plain()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._plain()
        return graph.replay


def train(model: VAE, images: Tensor, arguments: argparse.Namespace, deadline: float, report: Report) -> None:
    """Until ``deadline``, with the learning rate on its way to 0 by then."""
    torch.set_float32_matmul_precision("high" if arguments.tf32 else "highest")
    model.train()
    steps = Steps(model, images, arguments.batch, arguments.lr, arguments.eps)
    begin = logged = time.perf_counter()
    epochs = logged_epochs = 0

    def rate() -> float:
        progress = min((time.perf_counter() - begin) / max(deadline - begin, 1e-9), 1.0)
        return 0.5 * arguments.lr * (1.0 + math.cos(math.pi * progress))

    while time.perf_counter() < deadline:
        loss = steps.epoch(rate)
        epochs += 1
        if not math.isfinite(loss):
            raise SystemExit(f"training diverged in epoch {epochs}: try a smaller --lr")
        now = time.perf_counter()
        report.row |= {"epochs": epochs, "train_seconds": round(now - begin, 1), "train_bound": round(-loss, 3)}
        if now - logged > SECONDS_BETWEEN_LOGS or now >= deadline:
            per_epoch = (now - logged) / (epochs - logged_epochs)
            entry = {"epoch": epochs, "seconds": round(now - begin, 1), "seconds_per_epoch": round(per_epoch, 4)}
            report.say({**entry, "train_bound": round(-loss, 3), "lr": f"{float(steps.lr):.2e}"})
            logged, logged_epochs = now, epochs
            if arguments.save is not None:
                model.save(arguments.save)
    torch.set_float32_matmul_precision("highest")
    model.eval()


def evaluate(model: VAE, test: Tensor, samples: int, report: Report) -> None:
    """The test log likelihood, a tenth of the images at a time."""
    begin = time.perf_counter()
    parts: list[Tensor] = []
    for part in test.split(max(len(test) // 10, 1)):
        parts.append(model.log_likelihood(part, samples, seed=len(parts)).double().cpu())
        nll = -torch.cat(parts)
        report.row |= {
            "test_images": len(nll),
            "importance_samples": samples,
            "nll": round(float(nll.mean()), 3),
            "nll_se": round(float(nll.std() / math.sqrt(len(nll))), 3),
            "evaluation_seconds": round(time.perf_counter() - begin, 1),
        }
        report.say({"test_images": len(nll), "nll": report.row["nll"], "seconds": report.row["evaluation_seconds"]})
    report.row["negative_elbo"] = round(-float(model.elbo(test, 10, seed=0).double().mean()), 3)
    report.row["active_units"] = int((model.encode(test).mean.var(0) > 0.01).sum())
    report.write()


def evaluation_seconds(model: VAE, test: Tensor, samples: int) -> float:
    """How long :func:`evaluate` will take, from a fiftieth of it."""
    model.log_likelihood(test[:1], samples, seed=0)
    begin = time.perf_counter()
    part = test[: max(len(test) // 50, 1)]
    float(model.log_likelihood(part, samples, seed=0).sum())
    return MARGIN * (time.perf_counter() - begin) * len(test) / len(part)


def load_images(folder: Path) -> credo.datasets.Images:
    os.environ["CREDO_DATA"] = str(folder.parent if folder.name == "mnist" else folder)
    return credo.datasets.load("mnist")  # type: ignore[return-value]


def hardware(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return f"{name}, torch {torch.__version__}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder mnist with the four IDX files")
    parser.add_argument("--objective", choices=list(PUBLISHED), default="elbo")
    parser.add_argument("--k", type=int, help="draws for each datum; by default 1, and 50 for iwae")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=5.0, help="for training and evaluation together")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--eps", type=float, default=1e-4, help="Adam's")
    parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True, help="for training alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=5000, help="importance samples of the evaluation")
    parser.add_argument("--smoke", action="store_true", help="few images, few samples, half a minute")
    parser.add_argument("--save", type=Path, help="a folder for the model, written as training goes")
    parser.add_argument("--out", type=Path, help="result file; by default benchmarks/results/vae_mnist_OBJECTIVE.json")
    arguments = parser.parse_args()
    arguments.k = arguments.k or (50 if arguments.objective == "iwae" else 1)
    arguments.out = arguments.out or RESULTS / f"vae_mnist_{arguments.objective}.json"
    if arguments.smoke:
        arguments.minutes, arguments.samples, arguments.k = 0.5, 50, min(arguments.k, 5)
    return arguments


def main() -> int:
    start = time.perf_counter()
    arguments = parse()
    device = torch.device(arguments.device)
    data = load_images(arguments.data)
    train_images, gray = (data.x_train[:2000], data.x_test[:200]) if arguments.smoke else (data.x_train, data.x_test)
    test = torch.bernoulli(gray, generator=torch.Generator().manual_seed(TEST_SEED)).to(device)
    report = Report(
        arguments.out,
        {
            "name": f"vae_mnist_{arguments.objective}",
            "command": f"python benchmarks/vae_mnist.py {' '.join(sys.argv[1:])}",
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(device),
        },
        {
            "objective": arguments.objective,
            "k": arguments.k,
            "published_nll": PUBLISHED[arguments.objective],
            "published_active_units": PUBLISHED_UNITS[arguments.objective],
            **{name: getattr(arguments, name) for name in ("batch", "lr", "eps", "tf32", "seed", "minutes")},
        },
    )
    with seeded(arguments.seed, device):
        model = build(arguments.objective, arguments.k, train_images.mean(0)).to(device)
        reserve = evaluation_seconds(model, test, arguments.samples)
        report.say({"seconds_kept_for_evaluation": round(reserve, 1)})
        train(model, train_images.to(device), arguments, start + 60.0 * arguments.minutes - reserve, report)
        evaluate(model, test, arguments.samples, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
