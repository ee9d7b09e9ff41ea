"""All likelihoods against torch.distributions, and their common interface."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch import distributions as D

from credo.errors import InputError, LoadError
from credo.likelihoods import (
    Bernoulli,
    Beta,
    Categorical,
    Gaussian,
    Likelihood,
    LogNormal,
    NegativeBinomial,
    Ordinal,
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
    "negative-binomial": (
        lambda: NegativeBinomial(0.4),
        lambda f: D.NegativeBinomial(2.5, logits=f + math.log(0.4)),
        lambda f: torch.poisson(f.exp()),
    ),
    "log-normal": (lambda: LogNormal(0.5), lambda f: D.LogNormal(f, 0.5), lambda f: torch.rand_like(f) + 0.1),
    "beta": (
        lambda: Beta(6.0),
        lambda f: D.Beta(6.0 * f.sigmoid(), 6.0 * (-f).sigmoid()),
        lambda f: 0.05 + 0.9 * torch.rand_like(f),
    ),
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
    NegativeBinomial(),
    LogNormal(),
    Beta("heteroscedastic", lower=-0.5, upper=2.5),
    Bernoulli(),
    Ordinal(3),
    Categorical(),
    Categorical(logit_noise=True, class_dim=1, weight=[1.0, 2.0], ignore_index=-100, noise_samples=16),
]


VARIANTS: list[Likelihood] = [
    *ALL,
    NegativeBinomial(0.3, initial=2.0),
    NegativeBinomial("learned", outputs=2),
    NegativeBinomial("heteroscedastic"),
    LogNormal("heteroscedastic"),
    Beta(),
]


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3), (4, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_trap_09_log_prob_matches_the_distribution(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
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


@pytest.mark.parametrize(
    ("likelihood", "output", "y", "sentence"),
    [
        (
            Gaussian(),
            (5, 1),
            torch.zeros(5),
            "y has shape [5], but the network's output requires [5, 1]: reshape y with y[:, None]",
        ),
        (StudentT(), (5, 1), torch.zeros(5), "reshape y with y[:, None] or squeeze the output"),
        (Bernoulli(), (5, 1), torch.zeros(5), "reshape y with y[:, None]"),
        (Poisson(), (5, 1), torch.zeros(5), "reshape y with y[:, None]"),
        (Gaussian(), (5,), torch.zeros(5, 1), "squeeze y with y.squeeze(-1)"),
        (Gaussian(), (5, 2), torch.zeros(5, 1), "nothing is broadcast"),
        (Gaussian(), (5, 2), torch.zeros(1, 2), "same number of rows, here 5 and 1"),
        (Gaussian("heteroscedastic"), (5, 2), torch.zeros(5, 2), "requires [5, 1]"),
        (Gaussian(), (5,), torch.zeros(5, dtype=torch.long), "call y.float()"),
        (Poisson(), (5,), torch.zeros(5, dtype=torch.bool), "counts are needed"),
        (NegativeBinomial(), (5,), torch.zeros(5, dtype=torch.bool), "counts are needed"),
        (NegativeBinomial("learned", outputs=2), (5, 3), torch.zeros(5, 3), "2 learned values of dispersion"),
        (Beta("heteroscedastic"), (5, 3), torch.zeros(5, 1), "[mean, log concentration]"),
        (LogNormal(), (5,), torch.ones(5).long(), "call y.float()"),
        (Ordinal(3), (5, 3), torch.zeros(5).long(), "its last layer must have width 1"),
        (Ordinal(3), (5,), torch.zeros(5).long(), "its last layer must have width 1"),
        (Ordinal(3), (5, 1), torch.zeros(5), "call y.long()"),
        (Categorical(), (5, 3), torch.zeros(5), "call y.long()"),
        (Categorical(), (5, 3), torch.zeros(5, dtype=torch.bool), "call y.long()"),
        (Categorical(), (5, 3), torch.zeros(5, 1).long(), "squeeze y"),
        (Categorical(), (5, 3), torch.zeros(5, 3), "call y.argmax(-1)"),
        (Categorical(), (5, 1), torch.zeros(5).long(), "use Bernoulli()"),
        (Categorical(), (5,), torch.zeros(5).long(), "class_dim=-1 is not a dimension after the rows"),
        (Categorical(weight=[1, 2]), (5, 3), torch.zeros(5).long(), "weight holds 2 numbers"),
        (Categorical(logit_noise=True), (5, 5), torch.zeros(5).long(), "[logits, log variance]"),
        (Gaussian("heteroscedastic"), (5, 3), torch.zeros(5, 1), "[mean, log variance]"),
        (Gaussian([0.1, 0.2]), (5, 3), torch.zeros(5, 3), "2 scale(s)"),
    ],
)
def test_trap_09_bad_targets_raise_with_a_fix(
    likelihood: Likelihood, output: tuple[int, ...], y: Tensor, sentence: str
) -> None:
    for method in (likelihood.log_prob, likelihood.check):
        with pytest.raises(InputError, match=re.escape(sentence)):
            method(torch.zeros(output), y)


def target_for(likelihood: Likelihood, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    output = torch.randn(rows, 4 if getattr(likelihood, "logit_noise", False) else 2, generator=generator)
    if isinstance(likelihood, Categorical):
        return output, torch.zeros(rows).long()
    if isinstance(likelihood, Ordinal):
        return output[:, :1], torch.ones(rows).long()
    width = 1 if "heteroscedastic" in likelihood.get_config().values() else 2
    if isinstance(likelihood, (NegativeBinomial, LogNormal, Beta)):
        return output, torch.full((rows, width), 0.7 if isinstance(likelihood, Beta) else 3.0)
    if isinstance(likelihood, (Bernoulli, Poisson)):
        return output, torch.ones(rows, 2)
    return output, torch.zeros(rows, width)


@pytest.mark.parametrize("likelihood", ALL, ids=str)
def test_compiles_as_one_graph(likelihood: Likelihood) -> None:
    torch._dynamo.reset()  # the limit on recompilations is per function
    output, y = target_for(likelihood, 5)
    compiled = torch.compile(likelihood.log_prob, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = likelihood.log_prob(output, y)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(output, y), expected)


@pytest.mark.parametrize("likelihood", VARIANTS, ids=str)
def test_empty_half_and_double_batches(likelihood: Likelihood) -> None:
    output, y = target_for(likelihood, 0)
    assert likelihood.log_prob(output, y).shape == (0,)
    likelihood.check(output, y)
    output, y = target_for(likelihood, 1)
    assert likelihood.log_prob(output.bfloat16(), y).dtype == torch.float32
    assert likelihood.log_prob(output.half(), y).dtype == torch.float32
    assert likelihood.log_prob(output.double(), y).dtype == torch.float64
    assert likelihood.predictive(output.half()[None]).mean.dtype == torch.float32


@pytest.mark.parametrize("likelihood", [one for one in VARIANTS if not getattr(one, "logit_noise", False)], ids=str)
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


@pytest.mark.parametrize("likelihood", VARIANTS, ids=str)
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
def test_damaged_config_raises(config: object) -> None:
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
        lambda: NegativeBinomial(0.0),
        lambda: NegativeBinomial("lerned"),
        lambda: Beta(-1.0),
        lambda: Beta(lower=1.0, upper=1.0),
        lambda: LogNormal(-0.5),
        lambda: Ordinal(1),
        lambda: Categorical(class_dim=0.5),
        lambda: Categorical(weight=[[1.0]]),
        lambda: Categorical(weight=[-1.0, 1.0]),
        lambda: Categorical(noise_samples=0),
        lambda: Categorical(logit_noise=1),
    ],
)
def test_constructor_arguments_are_checked(make: Callable[[], Likelihood]) -> None:
    with pytest.raises(
        InputError, match=r"noise|initial|outputs|df|class_dim|weight|dispersion|concentration|lower|classes"
    ):
        make()


@pytest.mark.parametrize(
    ("likelihood", "y", "sentence"),
    [
        (Gaussian(), torch.tensor([0.0, math.nan]), "1 value(s) that are NaN or infinite"),
        (StudentT(), torch.tensor([0.0, math.inf]), "NaN or infinite"),
        (Poisson(), torch.tensor([0.0, -1.0]), "counts must be at least 0"),
        (Poisson(), torch.tensor([0.0, 0.5]), "not integers"),
        (NegativeBinomial(), torch.tensor([0.0, -1.0]), "counts must be at least 0"),
        (NegativeBinomial(), torch.tensor([0.0, 0.5]), "not integers"),
        (Beta(lower=-1.0, upper=2.0), torch.tensor([0.0, 2.5]), "not between -1 and 2, both excluded"),
        (Bernoulli(), torch.tensor([0.0, 2.0]), "labels 0 and 1"),
        (Bernoulli(), torch.tensor([0.0, 0.5]), "labels 0 and 1"),
    ],
)
def test_check_looks_at_the_values(likelihood: Likelihood, y: Tensor, sentence: str) -> None:
    likelihood.check(torch.zeros(2), torch.tensor([0.0, 1.0]))
    with pytest.raises(InputError, match=re.escape(sentence)):
        likelihood.check(torch.zeros(2), y)


def test_bad_outputs_raise() -> None:
    y = torch.zeros(2)
    with pytest.raises(InputError, match="pass forward="):
        Gaussian().log_prob((y, y), y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="floating"):
        Gaussian().log_prob(y.long(), y)
    with pytest.raises(InputError, match="single number"):
        Gaussian().log_prob(y[0], y[0])
    with pytest.raises(InputError, match="at least one draw"):
        Gaussian().predictive(torch.zeros(0, 2))
    with pytest.raises(InputError, match=re.escape("[draws, rows, ...]")):
        Gaussian().predictive(y)
    with pytest.raises(InputError, match="must be a tensor"):
        Gaussian().log_prob(y, [0.0, 0.0])  # type: ignore[arg-type]


def test_repr_and_to() -> None:
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


@pytest.mark.parametrize("likelihood", [one for one in VARIANTS if not getattr(one, "logit_noise", False)], ids=str)
def test_predictions_without_gradients_do_not_require_them(likelihood: Likelihood) -> None:
    """A view of a parameter requires a gradient also where none are recorded."""
    output, y = target_for(likelihood, 3)
    with torch.no_grad():
        p = likelihood.predictive(output[None])
    assert not p.log_prob(y).requires_grad
    assert not p.mean.requires_grad
