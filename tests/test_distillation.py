"""Distillation: the student's moments are the teacher's, and the loss that is stored is the KL by definition."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import credo
from credo.errors import InputError, UnsupportedError
from credo.likelihoods.split import SplitCategorical, SplitGaussian, SplitLikelihood, SplitMixture
from credo.methods import Distilled
from credo.predictive import RealPredictive
from credo.predictive.location_scale import GaussianComponents


def student_network(inputs: int, outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, outputs))


@pytest.fixture(scope="module")
def teacher() -> credo.Laplace:
    """The exact posterior of a Bayesian linear model: noise 0.3, and an epistemic variance that grows quadratically."""
    torch.manual_seed(0)
    x = torch.randn(12, 1)
    return credo.Laplace(nn.Linear(1, 1), credo.Gaussian(0.3), structure="full").fit(
        (x, 2 * x + 0.3 * torch.randn(12, 1)), epochs=200, lr=0.1, seed=0, progress=False
    )


def inputs(rows: int) -> Tensor:
    return torch.linspace(-2, 2, rows)[:, None]


def test_the_moments_of_a_bayesian_linear_model_are_recovered(teacher: credo.Laplace) -> None:
    """The loss is a sum of divergences, so a loss L bounds each error: |Δm| ≤ √(2L v) and |Δ log σ²| ≲ 2√L.

    With a mean held-out loss below 1e-3 nats, both are below 0.1 in their units for typical rows.
    """
    student = credo.distill(
        teacher, inputs(300), net=student_network(1, 3), components=1, augmentation=0, epochs=300, lr=0.03
    )
    assert student.distillation["kl"] < 1e-3
    x = inputs(41)[2:-2]
    p, q = teacher.predict(x), student.predict(x)
    assert float(((p.mean - q.mean) / p.std).abs().max()) < 0.1
    assert float((q.aleatoric / p.aleatoric).log().abs().max()) < 0.1
    assert float((q.epistemic / p.epistemic).log().abs().max()) < 0.3
    assert torch.allclose(q.variance, q.aleatoric + q.epistemic)


@pytest.mark.parametrize(("likelihood", "size"), [(SplitGaussian(), 3), (SplitMixture(2), 5)])
def test_the_kl_is_that_of_its_definition(likelihood: SplitLikelihood, size: int) -> None:
    """E_teacher[log teacher − log student] by 20,000 samples of a mixture, within 4 standard errors."""
    torch.manual_seed(1)
    teacher = credo.Gaussian("heteroscedastic").predictive(torch.randn(3, 1, 2, dtype=torch.float64))
    student = likelihood.predictive(torch.randn(1, 1, size, dtype=torch.float64))
    y = teacher.sample(20_000, seed=0)[:, 0, 0]
    rows = [
        p.components.log_density(y[:, None, None, None]).logsumexp(1) - math.log(p.n_draws) for p in (teacher, student)
    ]
    gain = (rows[0] - rows[1]).flatten()
    found = float(likelihood.kl(teacher, student))
    assert abs(found - float(gain.mean())) < 4 * float(gain.std()) / math.sqrt(len(gain))


def test_the_divergence_of_a_mixture_is_its_kl_and_those_of_both_parts() -> None:
    """Against the quadrature of ``kl``: the trapezoidal rule leaves out z beyond ±4, 6e-5 of the probability.

    There log p_t − log p is below 50 for these outputs, which bounds the error by 3e-3.
    """
    torch.manual_seed(4)
    likelihood = SplitMixture(3).eval()
    teacher = credo.Gaussian("heteroscedastic").predictive(0.5 * torch.randn(4, 20, 2, dtype=torch.float64))
    output = 0.5 * torch.randn(20, 7, dtype=torch.float64)
    student = likelihood.predictive(output[None])
    found = likelihood.divergence(output, likelihood.targets(teacher))
    wanted = likelihood.kl(teacher, student)
    for name in ("aleatoric", "epistemic"):
        ratio = (getattr(teacher, name) / getattr(student, name))[:, 0]
        wanted = wanted + 0.1 * 0.5 * (ratio - 1 - ratio.log())
    torch.testing.assert_close(found, wanted, rtol=0, atol=3e-3)
    shifted = torch.stack([likelihood.train().divergence(output, likelihood.targets(teacher)) for _ in range(200)])
    error = shifted.std(0) / math.sqrt(200)
    assert bool(((shifted.mean(0) - wanted).abs() < 5 * error + 3e-3).all())


def test_the_loss_of_some_draws_is_unbiased() -> None:
    """Of 40 draws a training step uses 16: their mean over 2,000 steps is the loss of all, within 5 standard errors."""
    torch.manual_seed(5)
    likelihood = SplitMixture(2)
    teacher = credo.Gaussian("heteroscedastic").predictive(0.5 * torch.randn(40, 3, 2, dtype=torch.float64))
    output, target = 0.5 * torch.randn(3, 5, dtype=torch.float64), likelihood.targets(teacher)
    found = torch.stack([likelihood.divergence(output, target) for _ in range(2000)])
    wanted = likelihood.eval().divergence(output, target)
    assert bool(((found.mean(0) - wanted).abs() < 5 * found.std(0) / math.sqrt(2000) + 3e-3).all())


def test_weights_and_other_components_become_gaussians_of_the_same_distribution() -> None:
    """Weights are kept to 1/256, so that a cdf changes by 1/256 per draw at most.

    Each of 64 quantiles stands for 1/64, of which at most one half lies on the wrong side of a point inside its part,
    and a third of each neighbor that reaches over its end by more than a standard deviation.
    """
    torch.manual_seed(6)
    gaussian = credo.Gaussian("heteroscedastic").predictive(torch.randn(3, 5, 2, dtype=torch.float64))
    weighted = dataclasses.replace(gaussian, weights=torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64))
    heavy = credo.StudentT(df=4.0, noise=0.5).predictive(torch.randn(3, 5, 1, dtype=torch.float64))
    for teacher, tolerance in ((gaussian, 1e-12), (weighted, 3 / 256), (heavy, 1.5 / 64)):
        target = SplitMixture().targets(teacher)[:, :-3]
        mean, log_variance = target.T.unsqueeze(-1).chunk(2)
        again = RealPredictive(GaussianComponents(mean, log_variance))
        for y in torch.linspace(-3, 3, 13, dtype=torch.float64):
            points = y.expand(5, 1)
            assert float((again.cdf(points) - teacher.cdf(points)).abs().max()) <= tolerance


def test_a_mixture_keeps_two_modes_and_both_parts_of_the_variance() -> None:
    """y = ±2 + noise of 0.3: the best Gaussian loses ½ log(v/0.09) − log 2 = 1.2 nats, v = 4.09."""
    teacher = credo.Gaussian(0.3).predictive(torch.tensor([-2.0, 2.0]).double()[:, None, None].expand(2, 8, 1))
    x = torch.ones(8, 1, dtype=torch.float64)
    likelihood = SplitMixture(2)
    student = Distilled(nn.Linear(1, 5).double(), likelihood)
    student.fit((x, likelihood.targets(teacher)), epochs=1500, lr=0.03, seed=0, progress=False)
    p = student.predict(x)
    assert float(likelihood.kl(teacher, p).mean()) < 0.01
    torch.testing.assert_close(p.aleatoric, teacher.aleatoric, rtol=0.1, atol=0)
    torch.testing.assert_close(p.epistemic, teacher.epistemic, rtol=0.1, atol=0)
    moments = SplitGaussian()
    best = moments.predictive(moments.targets(teacher)[None])
    assert float(moments.kl(teacher, best)[0]) == pytest.approx(0.5 * math.log(4.09 / 0.09) - math.log(2), abs=1e-3)


def test_the_divergence_is_zero_at_the_target_and_positive_elsewhere() -> None:
    torch.manual_seed(2)
    for likelihood, size in ((SplitGaussian(), 6), (SplitCategorical(), 4)):
        target = torch.randn(50, size, dtype=torch.float64)
        assert torch.allclose(likelihood.divergence(target, target), torch.zeros(50, dtype=torch.float64), atol=1e-12)
        other = likelihood.divergence(target + 0.1 * torch.randn_like(target), target)
        assert bool((other > 0).all())


def test_targets_are_the_teachers_moments() -> None:
    p = credo.Gaussian("heteroscedastic").predictive(torch.randn(5, 7, 2, dtype=torch.float64))
    own = SplitGaussian().predictive(SplitGaussian().targets(p)[None])
    for name in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(own, name), getattr(p, name))
    p_classes = credo.Categorical().predictive(torch.randn(5, 7, 3, dtype=torch.float64))
    split = SplitCategorical().predictive(SplitCategorical().targets(p_classes)[None])
    for name in ("mean", "entropy", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(split, name), getattr(p_classes, name))


def test_classes_and_saving(tmp_path: Path) -> None:
    torch.manual_seed(3)
    x = torch.randn(200, 2)
    model = credo.BayesByBackprop(student_network(2, 3), credo.Categorical(), initial_scale=0.1)
    student = credo.distill(model, (x, None), extra=torch.randn(50, 2), augmentation=1, epochs=40, samples=20)
    p, q = model.predict(x, samples=20, seed=1), student.predict(x)
    assert student.distillation["rows"] == 2 * (180 + 50)
    assert student.distillation["held_out_rows"] == 20
    assert 0 <= student.distillation["kl"] < 0.02
    assert float((p.mean - q.mean).abs().mean()) < 0.05
    torch.testing.assert_close(q.entropy, q.aleatoric + q.epistemic)
    assert q.n_draws == 1
    assert float(q.epistemic.min()) > 0
    student.save(tmp_path / "student")
    again = credo.load(tmp_path / "student", net=student_network(2, 4))
    assert isinstance(again, Distilled)
    assert again.distillation == student.distillation
    assert torch.equal(again.predict(x).mutual_information, q.mutual_information)


def test_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y = X[:, 0] + 0.1 * rng.normal(size=150)
    model = credo.Regressor("ensemble", epochs=30, random_state=0, likelihood="gaussian").fit(X, y)
    student = credo.distill(model, X, augmentation=4, epochs=60)
    assert "distilled from ensemble" in student.method_reason_
    p, q = model.predict_dist(X), student.predict_dist(X)
    assert q.n_draws == 3
    assert float(((p.mean - q.mean) / p.std).abs().mean()) < 0.2
    assert float(q.epistemic.min()) > 0
    student.save(tmp_path / "student")
    again = credo.load(tmp_path / "student")
    assert torch.equal(again.predict_dist(X).std, q.std)
    assert again.model_.distillation["kl"] == student.model_.distillation["kl"]


def test_arguments() -> None:
    model = credo.BayesByBackprop(nn.Linear(2, 1), credo.Poisson())
    with pytest.raises(UnsupportedError, match="can be distilled"):
        credo.distill(model, torch.randn(30, 2))
    with pytest.raises(InputError, match="more inputs than 2 rows"):
        credo.distill(model, torch.randn(2, 2))
    with pytest.raises(InputError, match="data must be the inputs"):
        credo.distill(model, None)
    with pytest.raises(InputError, match="epochs"):
        credo.distill(model, torch.randn(30, 2), epochs=0)
    with pytest.raises(InputError, match="held_out"):
        credo.distill(model, torch.randn(30, 2), held_out=1.5)
    with pytest.raises(InputError, match="components"):
        credo.distill(model, torch.randn(30, 2), components=0)
    gaussian = credo.BayesByBackprop(nn.Linear(2, 1), credo.Gaussian(0.1))
    with pytest.raises(InputError, match="outputs"):
        credo.distill(gaussian, torch.randn(30, 2), net=nn.Linear(2, 3))
    with pytest.raises(InputError, match="SplitMixture"):
        Distilled(nn.Linear(2, 3), credo.Gaussian(0.1))  # type: ignore[arg-type]
