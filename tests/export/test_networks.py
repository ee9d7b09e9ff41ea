"""Methods as ONNX graphs: the numbers of ONNX Runtime are those of ``predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import credo
from credo.errors import InputError, UnsupportedError

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

pytestmark = pytest.mark.extras

LEVELS = (0.01, 0.5, 0.9)


def network(outputs: int, dropout: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 16), nn.ReLU(), *([nn.Dropout(0.2)] if dropout else []), nn.Linear(16, outputs)]
    return nn.Sequential(*layers)


def rows(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1)).to(dtype)


def run(path: Path, x: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    session = runtime.InferenceSession(path)
    return dict(
        zip([output.name for output in session.get_outputs()], session.run(None, {"x": x.numpy()}), strict=True)
    )


def expected(p: credo.Predictive) -> dict[str, Tensor]:
    lower, upper = p.interval(0.9)
    return {
        "mean": p.mean,
        "std": p.std,
        "epistemic": p.epistemic.sqrt(),
        "aleatoric": p.aleatoric.sqrt(),
        "quantiles": p.quantile(LEVELS).movedim(0, -1),
        "lower": lower,
        "upper": upper,
    }


def test_a_graph_in_double_precision_has_the_numbers_of_predict(tmp_path: Path) -> None:
    """Both compute the same formula in double precision: rounding errors of a few hundred operations, 1e-13."""
    model = credo.BayesByBackprop(network(2), credo.Gaussian("heteroscedastic"), initial_scale=0.3).double()
    model.export(tmp_path / "model.onnx", rows(3, torch.float64), samples=20, seed=5, quantiles=LEVELS, level=0.9)
    for count in (1, 50):
        x = rows(count, torch.float64)
        found, wanted = run(tmp_path / "model.onnx", x), expected(model.predict(x, samples=20, seed=5))
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-11, atol=1e-12, err_msg=name)


def test_an_ensemble_in_single_precision_is_within_its_error_bound(tmp_path: Path) -> None:
    """The bound of a dot product of n terms, γ_n Σ|w||a| with γ_n = n u/(1 − n u), carried through both layers.

    An error E of the hidden units, which ReLU does not enlarge, becomes |W| E + γ_n |W| |a|; the mean over members and
    the rounding of weights and sums add at most 3 u of the magnitudes.
    """
    model = credo.DeepEnsemble(network(1), members=3, likelihood=credo.Gaussian("learned"))
    model.export(tmp_path / "model.onnx", rows(3), samples=3, quantiles=(), level=None)
    x = rows(50)
    found = run(tmp_path / "model.onnx", x)
    assert set(found) == {"mean", "std", "epistemic", "aleatoric"}
    u, total, bound = 2.0**-24, torch.zeros(50, 1).double(), torch.zeros(50, 1).double()
    for member in model.members:
        first, _, last = (layer for layer in member.net)  # type: ignore[union-attr]
        w1, b1, w2, b2 = (p.detach().double() for p in (first.weight, first.bias, last.weight, last.bias))
        hidden = (x.double() @ w1.T + b1).relu()
        error = 6 * u * (x.double().abs() @ w1.T.abs() + b1.abs())
        magnitude = hidden @ w2.T.abs() + b2.abs()
        bound += (error @ w2.T.abs() + (18 + 3) * u * magnitude) / 3
        total += (hidden @ w2.T + b2) / 3
    assert ((torch.as_tensor(found["mean"]) - total).abs() <= bound).all()


def test_dropout_of_students_t(tmp_path: Path) -> None:
    model = credo.MCDropout(network(1, dropout=True), credo.StudentT(4.0))
    model.export(tmp_path / "model.onnx", rows(3), samples=8, seed=2, quantiles=LEVELS, level=0.9)
    x = rows(20)
    found, wanted = run(tmp_path / "model.onnx", x), expected(model.predict(x, samples=8, seed=2))
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


def test_classes(tmp_path: Path) -> None:
    model = credo.BayesByBackprop(network(3), credo.Categorical(), initial_scale=0.3).double()
    model.export(tmp_path / "model.onnx", rows(3, torch.float64), samples=20, seed=5)
    x = rows(30, torch.float64)
    found, p = run(tmp_path / "model.onnx", x), model.predict(x, samples=20, seed=5)
    wanted = {"probabilities": p.mean, "entropy": p.entropy, "mutual_information": p.mutual_information}
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-11, atol=1e-12, err_msg=name)


def test_what_cannot_be_exported_is_said_in_a_sentence(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", rows(3)
    counts = credo.BayesByBackprop(network(1), credo.Poisson())
    with pytest.raises(UnsupportedError, match=r"Poisson targets cannot be exported.*quantiles=\(\)"):
        counts.export(path, x)
    gaussian = credo.BayesByBackprop(network(1), credo.Gaussian(0.1))
    with pytest.raises(UnsupportedError, match="moments' cannot be exported"):
        gaussian.export(path, x, samples="moments")
    with pytest.raises(InputError, match="at least 2 rows"):
        gaussian.export(path, x[:1])
    with pytest.raises(InputError, match="quantiles"):
        gaussian.export(path, x, quantiles=(1.5,))
    assert not path.exists()


class Bag(nn.Module):
    """The mean of token vectors, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4, padding_idx=2), nn.Linear(4, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


@pytest.mark.parametrize("method", ["BayesByBackprop", "MCDropout", "DeepEnsemble"])
def test_drawn_embeddings_are_looked_up(method: str, tmp_path: Path) -> None:
    """In double precision, for other numbers of rows than those of the example; one token is padding.

    The noise is wide, so that quantiles are determined to rounding: between modes that are far apart they are not.
    """
    torch.manual_seed(0)
    likelihood = credo.Gaussian(0.5)
    model: credo.Method = {
        "BayesByBackprop": lambda: credo.BayesByBackprop(Bag(), likelihood, initial_scale=0.3),
        "MCDropout": lambda: credo.MCDropout(Bag(), likelihood, p=0.2),
        "DeepEnsemble": lambda: credo.DeepEnsemble(Bag(), members=3, likelihood=likelihood),
    }[method]().double()
    x = torch.randint(0, 6, (50, 5))
    model.export(tmp_path / "model.onnx", x[:3], samples=20, seed=5, quantiles=LEVELS, level=0.9)
    for count in (1, 50):
        found, wanted = run(tmp_path / "model.onnx", x[:count]), expected(model.predict(x[:count], samples=20, seed=5))
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values.numpy(), rtol=1e-11, atol=1e-12, err_msg=name)
