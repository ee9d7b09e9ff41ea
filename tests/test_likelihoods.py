"""Each likelihood against torch.distributions, scipy and numerical integrals."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor
from torch import distributions as D

from credo.errors import InputError, LoadError
from credo.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    Poisson,
    StudentT,
    infer_likelihood,
    likelihood_from_config,
)

Reference = Callable[[Tensor], D.Distribution]

# likelihood, the matching torch distribution of an output, and a target of the output's shape
CASES: dict[str, tuple[Callable[[], Likelihood], Reference, Callable[[Tensor], Tensor]]] = {
    "gaussian": (lambda: Gaussian(0.3), lambda f: D.Normal(f, 0.3), torch.randn_like),
    "gaussian-learned": (lambda: Gaussian(initial=0.7), lambda f: D.Normal(f, 0.7), torch.randn_like),
    "student-t": (lambda: StudentT(3.0, 0.5), lambda f: D.StudentT(3.0, f, 0.5), torch.randn_like),
    "student-t-learned": (lambda: StudentT("learned"), lambda f: D.StudentT(4.0, f, 1.0), torch.randn_like),
    "poisson": (Poisson, lambda f: D.Poisson(f.exp()), lambda f: torch.poisson(f.exp())),
    "bernoulli": (Bernoulli, lambda f: D.Bernoulli(logits=f), lambda f: torch.rand_like(f).round()),
}
ALL: list[Likelihood] = [
    Gaussian(),
    Gaussian(0.1),
    Gaussian([0.1, 0.2]),
    Gaussian("learned", initial=0.5, outputs=2),
    Gaussian("heteroscedastic", output_dim=1),
    StudentT(),
    StudentT("learned", 0.3),
    Poisson(),
    Bernoulli(),
    Categorical(),
    Categorical(logit_noise=True, class_dim=1, weight=[1.0, 2.0], ignore_index=-100, noise_samples=16),
]


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3), (4, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_trap_09_loss_is_the_likelihoods_own(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    make, reference, target = CASES[name]
    output = torch.randn(shape, dtype=dtype)
    y = target(output)
    expected = reference(output).log_prob(y)
    expected = expected.sum(dim=tuple(range(1, len(shape)))) if len(shape) > 1 else expected
    log_p = make().log_prob(output, y)
    assert log_p.shape == shape[:1]
    assert log_p.dtype == dtype
    # learned parameters are held in float32, so their values are right to its rounding
    rtol = 1e-12 if dtype == torch.float64 and "learned" not in name else 1e-5
    torch.testing.assert_close(log_p, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("class_dim", [1, -1, 3])
def test_trap_09_categorical_is_its_distribution_along_any_dimension(class_dim: int) -> None:
    torch.manual_seed(0)
    output = torch.randn(4, 3, 5, 6, dtype=torch.float64)
    logits = output.movedim(class_dim, -1)
    y = torch.randint(logits.shape[-1], logits.shape[:-1])
    expected = D.Categorical(logits=logits).log_prob(y).sum((1, 2))
    torch.testing.assert_close(Categorical(class_dim=class_dim).log_prob(output, y), expected)
    torch.testing.assert_close(Categorical(class_dim=class_dim).log_prob(output, y.to(torch.uint8)), expected)


@pytest.mark.parametrize(
    ("likelihood", "output", "y", "sentence"),
    [
        (
            Gaussian(),
            (5, 1),
            torch.zeros(5),
            "y has shape [5], the network's output calls for [5, 1]: reshape y with y[:, None]",
        ),
        (StudentT(), (5, 1), torch.zeros(5), "reshape y with y[:, None] or squeeze the output"),
        (Bernoulli(), (5, 1), torch.zeros(5), "reshape y with y[:, None]"),
        (Poisson(), (5, 1), torch.zeros(5), "reshape y with y[:, None]"),
        (Gaussian(), (5,), torch.zeros(5, 1), "squeeze y with y.squeeze(-1)"),
        (Gaussian(), (5, 2), torch.zeros(5, 1), "nothing is broadcast"),
        (Gaussian(), (5, 2), torch.zeros(1, 2), "same number of rows, here 5 and 1"),
        (Gaussian("heteroscedastic"), (5, 2), torch.zeros(5, 2), "calls for [5, 1]"),
        (Gaussian(), (5,), torch.zeros(5, dtype=torch.long), "call y.float()"),
        (Poisson(), (5,), torch.zeros(5, dtype=torch.bool), "counts are needed"),
        (Categorical(), (5, 3), torch.zeros(5), "call y.long()"),
        (Categorical(), (5, 3), torch.zeros(5, dtype=torch.bool), "call y.long()"),
        (Categorical(), (5, 3), torch.zeros(5, 1).long(), "squeeze y"),
        (Categorical(), (5, 3), torch.zeros(5, 3), "call y.argmax(-1)"),
        (Categorical(), (5, 1), torch.zeros(5).long(), "use Bernoulli()"),
        (Categorical(), (5,), torch.zeros(5).long(), "class_dim=-1 does not name a dimension behind the rows"),
        (Categorical(weight=[1, 2]), (5, 3), torch.zeros(5).long(), "weight holds 2 numbers"),
        (Categorical(logit_noise=True), (5, 5), torch.zeros(5).long(), "[logits, log variance]"),
        (Gaussian("heteroscedastic"), (5, 3), torch.zeros(5, 1), "[mean, log variance]"),
        (Gaussian([0.1, 0.2]), (5, 3), torch.zeros(5, 3), "2 scale(s)"),
    ],
)
def test_trap_09_wrong_targets_are_errors_that_tell_the_fix(
    likelihood: Likelihood, output: tuple[int, ...], y: Tensor, sentence: str
) -> None:
    for method in (likelihood.log_prob, likelihood.check):
        with pytest.raises(InputError, match=re.escape(sentence)):
            method(torch.zeros(output), y)


def test_trap_07_noise_is_a_standard_deviation() -> None:
    n, torch_seed = 100_000, 0
    zero = torch.zeros(1, n)
    for likelihood, std in [
        (Gaussian(0.2), 0.2),
        (Gaussian("learned", initial=0.2), 0.2),
        (StudentT(10.0, 0.2), 0.2 * math.sqrt(10 / 8)),
    ]:
        p = likelihood.predictive(zero)
        torch.testing.assert_close(p.std, torch.full((n,), std))
        # the sample std has relative standard error √((κ − 1)/4n), κ the kurtosis: 3, and 4 for t with 10 degrees
        error = 5 * math.sqrt(3 / (4 * n))
        assert float(p.sample(1, seed=torch_seed).std()) == pytest.approx(std, rel=error)
    hetero = Gaussian("heteroscedastic").predictive(torch.tensor([[[0.0, math.log(0.04)]]]))
    torch.testing.assert_close(hetero.std, torch.tensor([[0.2]]))


def test_learned_noise_is_stationary_at_the_residuals_root_mean_square() -> None:
    torch.manual_seed(0)
    output, y = torch.randn(50, 2, dtype=torch.float64), torch.randn(50, 2, dtype=torch.float64)
    rms = (output - y).square().mean(0).sqrt()
    likelihood = Gaussian("learned", outputs=2).double()
    with torch.no_grad():
        likelihood.log_scale.copy_(rms.log())
    likelihood.log_prob(output, y).sum().backward()
    # the gradient is Σ(z² − 1), 50 terms of order 1 that cancel
    torch.testing.assert_close(likelihood.log_scale.grad, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(likelihood.scale, rms)


def test_heteroscedastic_network_puts_out_mean_and_log_variance() -> None:
    torch.manual_seed(0)
    mean, log_variance, y = torch.randn(3, 6, 2, 4, dtype=torch.float64)
    for dim in (1, -1):
        output = torch.cat([mean, log_variance], dim)
        expected = D.Normal(mean, (0.5 * log_variance).exp()).log_prob(y).sum((1, 2))
        torch.testing.assert_close(Gaussian("heteroscedastic", output_dim=dim).log_prob(output, y), expected)
    extreme = Gaussian("heteroscedastic").log_prob(torch.tensor([[0.0, -150.0]]), torch.tensor([[0.0]]))
    torch.testing.assert_close(extreme, torch.tensor([75 - 0.5 * math.log(2 * math.pi)]))


def test_noise_per_output_lies_along_output_dim() -> None:
    torch.manual_seed(0)
    output, y = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    scale = torch.tensor([0.1, 2.0])
    expected = D.Normal(output, scale.double()[:, None]).log_prob(y).sum((1, 2))
    torch.testing.assert_close(Gaussian(scale, output_dim=1).log_prob(output, y), expected)
    learned = Gaussian("learned", initial=2.0, outputs=3)
    assert learned.log_scale is not None
    assert learned.log_scale.shape == (3,)
    torch.testing.assert_close(
        learned.log_prob(output, y), D.Normal(output, 2.0).log_prob(y).sum((1, 2)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("df", [0.5, 4.0, 99.9, 100.1, 1e4, 1e7])
def test_student_t_keeps_its_precision_for_any_degrees_of_freedom(df: float) -> None:
    y = torch.linspace(-5, 5, 11)
    expected = stats.t.logpdf(y.numpy().astype(float), df)
    log_p = StudentT(df, 1.0).log_prob(torch.zeros(11), y)
    # Below 100 degrees two lgamma of at most 150 are subtracted in float32: a rounding of about 150 · 1.2e-7.
    np.testing.assert_allclose(log_p.numpy(), expected, atol=2e-5, rtol=2e-6)
    exact = StudentT(df, 1.0).log_prob(torch.zeros(11, dtype=torch.float64), y.double())
    np.testing.assert_allclose(exact.numpy(), expected, atol=1e-8 if df > 1e6 else 1e-11)  # scipy cancels there


def test_categorical_weights_and_ignored_labels_agree_with_cross_entropy() -> None:
    torch.manual_seed(0)
    weight = [0.5, 1.0, 3.0]
    output = torch.randn(4, 3, 6, requires_grad=True)
    y = torch.randint(3, (4, 6))
    y[0, :] = -100
    y[1, 2] = -100
    likelihood = Categorical(class_dim=1, weight=weight, ignore_index=-100)
    expected = -F.cross_entropy(output, y, torch.tensor(weight), ignore_index=-100, reduction="none").sum(1)
    log_p = likelihood.log_prob(output, y)
    torch.testing.assert_close(log_p, expected)
    assert log_p[0] == 0
    log_p.sum().backward()
    assert output.grad is not None
    assert bool((output.grad[0] == 0).all())
    assert bool((output.grad[1, :, 2] == 0).all())
    assert bool(output.grad.isfinite().all())


def noisy_sigmoid(location: float, scale: float, power: int = 1) -> float:
    """E sigmoid(location + scale·ε)^power."""
    value, _ = integrate.quad(
        lambda e: stats.norm.pdf(e) * (1 / (1 + math.exp(-(location + scale * e)))) ** power, -12, 12, epsabs=1e-12
    )
    return float(value)


@pytest.mark.parametrize(
    ("logits", "log_variances"),
    [((0.3, -0.8), (0.5, -1.0)), ((2.0, -1.0), (1.5, 1.5)), ((0.0, 4.0), (-8.0, -8.0)), ((-3.0, 3.0), (2.0, 3.0))],
)
def test_kendall_gal_noise_is_the_numerical_integral(
    logits: tuple[float, float], log_variances: tuple[float, float]
) -> None:
    # of two classes the first wins with E sigmoid(z₀ − z₁ + √(e^s₀ + e^s₁) ε)
    location = logits[0] - logits[1]
    scale = math.sqrt(sum(math.exp(s) for s in log_variances))
    p, second_moment = noisy_sigmoid(location, scale), noisy_sigmoid(location, scale, power=2)
    deviation = math.sqrt(max(second_moment - p * p, 0))
    output = torch.tensor([[*logits, *log_variances]], dtype=torch.float64)

    samples = 20_000
    torch.manual_seed(0)
    log_p = float(Categorical(logit_noise=True, noise_samples=samples).log_prob(output, torch.tensor([0])))
    assert log_p == pytest.approx(math.log(p), abs=5 * deviation / (p * math.sqrt(samples)))

    # the fixed quasi-random set must do no worse than one standard error of as many random numbers
    predicted = float(Categorical(logit_noise=True, noise_samples=128).predictive(output[None]).mean[0, 0])
    assert predicted == pytest.approx(p, abs=deviation / math.sqrt(128) + 1e-12)


def test_logit_noise_is_integrated_out_before_entropies_reproducibly_and_row_by_row() -> None:
    torch.manual_seed(0)
    outputs = torch.randn(7, 10, 6)
    likelihood = Categorical(logit_noise=True)
    state = torch.get_rng_state()
    p = likelihood.predictive(outputs)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(p.mean, likelihood.predictive(outputs).mean)
    order = torch.randperm(10)
    torch.testing.assert_close(likelihood.predictive(outputs[:, order]).mean, p.mean[order], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(p.draws.sum(-1), torch.ones(7, 10))
    integrated = D.Categorical(probs=p.draws)
    torch.testing.assert_close(p.aleatoric, integrated.entropy().mean(0))
    one = likelihood.predictive(outputs[:1])
    assert bool((one.epistemic == 0).all())


def test_logit_noise_trains_with_fresh_noise() -> None:
    likelihood, output, y = Categorical(logit_noise=True, noise_samples=4), torch.zeros(2, 6), torch.tensor([0, 1])
    assert not torch.equal(likelihood.log_prob(output, y), likelihood.log_prob(output, y))
    segmentation = Categorical(logit_noise=True, class_dim=1)
    assert segmentation.log_prob(torch.randn(2, 6, 4, 4), torch.randint(3, (2, 4, 4))).shape == (2,)
    assert segmentation.predictive(torch.randn(5, 2, 6, 4, 4)).mean.shape == (2, 3, 4, 4)


def target_for(likelihood: Likelihood, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    output = torch.randn(rows, 4 if getattr(likelihood, "logit_noise", False) else 2, generator=generator)
    if isinstance(likelihood, Categorical):
        return output, torch.zeros(rows).long()
    if isinstance(likelihood, (Bernoulli, Poisson)):
        return output, torch.ones(rows, 2)
    return output, torch.zeros(rows, 1 if likelihood.get_config()["noise"] == "heteroscedastic" else 2)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_compiles_as_one_graph(likelihood: Likelihood) -> None:
    output, y = target_for(likelihood, 5)
    compiled = torch.compile(likelihood.log_prob, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = likelihood.log_prob(output, y)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(output, y), expected)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_empty_half_and_double_batches(likelihood: Likelihood) -> None:
    output, y = target_for(likelihood, 0)
    assert likelihood.log_prob(output, y).shape == (0,)
    likelihood.check(output, y)
    output, y = target_for(likelihood, 1)
    assert likelihood.log_prob(output.bfloat16(), y).dtype == torch.float32
    assert likelihood.log_prob(output.half(), y).dtype == torch.float32
    assert likelihood.log_prob(output.double(), y).dtype == torch.float64
    assert likelihood.predictive(output.half()[None]).mean.dtype == torch.float32


@pytest.mark.parametrize("likelihood", [one for one in ALL if not getattr(one, "logit_noise", False)], ids=str)
def test_gradients_agree_with_finite_differences(likelihood: Likelihood) -> None:
    output, y = target_for(likelihood, 3)
    likelihood = copy.deepcopy(likelihood).double()
    inputs = [output.double().requires_grad_(), *likelihood.parameters()]
    assert torch.autograd.gradcheck(lambda out, *_: likelihood.log_prob(out, y), inputs)


def test_vmaps_over_draws() -> None:
    torch.manual_seed(0)
    outputs, y = torch.randn(3, 5, 2), torch.randint(2, (5,))
    rows = torch.func.vmap(Categorical().log_prob, (0, None))(outputs, y)
    torch.testing.assert_close(rows, torch.stack([Categorical().log_prob(o, y) for o in outputs]))


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_round_trips(likelihood: Likelihood) -> None:
    likelihood = copy.deepcopy(likelihood)
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter += 0.3
    rebuilt = likelihood_from_config(json.loads(json.dumps(likelihood.get_config())))
    rebuilt.load_state_dict(likelihood.state_dict())
    output, y = target_for(likelihood, 5)
    for other in (rebuilt, copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood))):
        assert type(other) is type(likelihood)
        assert other.get_config() == likelihood.get_config()
        torch.manual_seed(0)
        expected = likelihood.log_prob(output, y)
        torch.manual_seed(0)
        assert torch.equal(other.log_prob(output, y), expected)


@pytest.mark.parametrize(
    "config",
    [
        {},
        None,
        {"name": "Gausian"},
        {"name": "Gaussian", "nois": 1.0},
        {"name": "Gaussian", "noise": -1.0},
        {"name": []},
    ],
    ids=str,
)
def test_a_damaged_config_is_a_load_error(config: object) -> None:
    with pytest.raises(LoadError):
        likelihood_from_config(config)  # type: ignore[arg-type]


def test_likelihood_is_inferred_from_the_targets_dtype() -> None:
    inferred = infer_likelihood(torch.zeros(3))
    assert isinstance(inferred, Gaussian)
    assert inferred.log_scale is not None
    assert isinstance(infer_likelihood(torch.zeros(3, dtype=torch.bool)), Bernoulli)
    for dtype in (torch.uint8, torch.int32, torch.int64):
        assert isinstance(infer_likelihood(torch.zeros(3, dtype=dtype)), Categorical)
    with pytest.raises(InputError, match="complex"):
        infer_likelihood(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(InputError, match="as_tensor"):
        infer_likelihood([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(0.0),
        lambda: Gaussian(-1.0),
        lambda: Gaussian(math.nan),
        lambda: Gaussian(True),
        lambda: Gaussian([0.1, -0.1]),
        lambda: Gaussian([]),
        lambda: Gaussian("lerned"),
        lambda: Gaussian(initial=0.0),
        lambda: Gaussian(outputs=0),
        lambda: StudentT(df=0.0),
        lambda: StudentT(df="lerned"),
        lambda: Categorical(class_dim=0.5),
        lambda: Categorical(weight=[[1.0]]),
        lambda: Categorical(weight=[-1.0, 1.0]),
        lambda: Categorical(noise_samples=0),
        lambda: Categorical(logit_noise=1),
    ],
)
def test_constructor_arguments_are_checked(make: Callable[[], Likelihood]) -> None:
    with pytest.raises(InputError, match=r"noise|initial|outputs|df|class_dim|weight"):
        make()


@pytest.mark.parametrize(
    ("likelihood", "y", "sentence"),
    [
        (Gaussian(), torch.tensor([0.0, math.nan]), "1 value(s) that are NaN or infinite"),
        (StudentT(), torch.tensor([0.0, math.inf]), "NaN or infinite"),
        (Poisson(), torch.tensor([0.0, -1.0]), "counts are 0 or more"),
        (Poisson(), torch.tensor([0.0, 0.5]), "not whole"),
        (Bernoulli(), torch.tensor([0.0, 2.0]), "labels 0 and 1"),
        (Bernoulli(), torch.tensor([0.0, 0.5]), "labels 0 and 1"),
    ],
)
def test_check_looks_at_the_values(likelihood: Likelihood, y: Tensor, sentence: str) -> None:
    likelihood.check(torch.zeros(2), torch.tensor([0.0, 1.0]))
    with pytest.raises(InputError, match=re.escape(sentence)):
        likelihood.check(torch.zeros(2), y)


def test_check_knows_the_classes() -> None:
    output = torch.zeros(2, 3)
    Categorical().check(output, torch.tensor([0, 2]))
    Categorical(ignore_index=-100).check(output, torch.tensor([0, -100]))
    with pytest.raises(InputError, match="label 3, but the network has 3 classes, 0 to 2"):
        Categorical().check(output, torch.tensor([0, 3]))
    with pytest.raises(InputError, match="pass ignore_index=-100"):
        Categorical().check(output, torch.tensor([0, -100]))
    with pytest.raises(InputError, match="label 3"):
        Categorical(ignore_index=-100).check(output, torch.tensor([3, -100]))


def test_outputs_that_are_no_tensor_of_rows_are_errors() -> None:
    y = torch.zeros(2)
    with pytest.raises(InputError, match="pass forward="):
        Gaussian().log_prob((y, y), y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="floating"):
        Gaussian().log_prob(y.long(), y)
    with pytest.raises(InputError, match="single number"):
        Gaussian().log_prob(y[0], y[0])
    with pytest.raises(InputError, match="draws"):
        Gaussian().predictive(torch.zeros(0, 2))
    with pytest.raises(InputError, match=re.escape("[draws, rows, ...]")):
        Gaussian().predictive(y)
    with pytest.raises(InputError, match="must be a tensor"):
        Gaussian().log_prob(y, [0.0, 0.0])  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(st.floats(-80, 80), st.floats(-80, 80))
def test_bernoulli_is_the_two_class_categorical(a: float, b: float) -> None:
    output = torch.tensor([[a, b]], dtype=torch.float64)
    for label in (0, 1):
        two = Categorical().log_prob(output, torch.tensor([label]))
        one = Bernoulli().log_prob(output[:, 1] - output[:, 0], torch.tensor([label]))
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_numpy_numbers_are_numbers() -> None:
    assert Gaussian(torch.tensor(0.5)).get_config()["noise"] == 0.5
    assert Gaussian(np.float32(0.5)).get_config()["noise"] == 0.5
    assert Gaussian(np.array([0.5, 0.25])).get_config()["noise"] == [0.5, 0.25]  # type: ignore[arg-type]
    assert json.dumps(Categorical(class_dim=np.int64(1)).get_config())  # type: ignore[arg-type]


def test_printed_and_moved() -> None:
    assert str(Gaussian(0.1)) == "Gaussian(noise=0.1)"
    likelihood = Gaussian([0.1, 0.2]).double()
    assert likelihood.scale.dtype == torch.float64
    assert float(Gaussian(0.1).scale) == pytest.approx(0.1)
    with pytest.raises(InputError, match="aleatoric"):
        _ = Gaussian("heteroscedastic").scale


def test_certain_outputs_have_finite_log_probabilities_and_gradients() -> None:
    """0 log 0 = 0: an infinite logit that is right costs nothing, one that is wrong −∞."""
    output = torch.tensor([math.inf, math.inf, -math.inf, -math.inf], requires_grad=True)
    y = torch.tensor([1.0, 0.0, 0.0, 1.0])
    log_p = Bernoulli().log_prob(output, y)
    assert log_p.tolist() == [0.0, -math.inf, 0.0, -math.inf]
    (gradient,) = torch.autograd.grad(log_p.sum(), output)
    assert gradient.tolist() == [0.0, -1.0, 0.0, 1.0]  # y − p
    p = Bernoulli().predictive(output.detach().expand(3, 4))
    assert p.log_prob(y).tolist() == [0.0, -math.inf, 0.0, -math.inf]
    assert bool((p.entropy == 0).all())
    assert bool((p.mutual_information == 0).all())


@pytest.mark.parametrize("logit_noise", [False, True])
def test_a_class_without_weight_counts_nothing_even_where_it_is_impossible(logit_noise: bool) -> None:
    likelihood = Categorical(weight=[0.0, 1.0, 2.0], logit_noise=logit_noise, noise_samples=5)
    row = [-math.inf, 0.0, 1.0] + 3 * [0.0] * logit_noise
    output = torch.tensor([row, row], requires_grad=True)
    log_p = likelihood.log_prob(output, torch.tensor([0, 1]))
    assert log_p[0].item() == 0
    assert math.isfinite(log_p[1].item())
    (gradient,) = torch.autograd.grad(log_p.sum(), output)
    assert bool(gradient.isfinite().all())
    assert bool((gradient[0] == 0).all())
    assert Categorical(logit_noise=logit_noise).log_prob(output, torch.tensor([0, 1]))[0].item() == -math.inf
