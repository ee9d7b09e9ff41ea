"""The nearest Gaussian: closed forms, moments, optimality conditions and modes."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import (
    Categorical,
    Cauchy,
    Dirichlet,
    Gamma,
    Independent,
    Laplace,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    StudentT,
    TransformedDistribution,
    Uniform,
    Wishart,
)
from torch.distributions.transforms import ExpTransform

from credo.errors import InputError
from credo.information import fit_q, kl
from information.cases import as_mixture, bimodal, correlated, mixture, number, on_the_line, within

SEARCH = 1e-5  # of the scale of q: the gradient is below 1e-7 at the end, and the curvature about 1
ROUNDING = 1e-10


class TestReverse:
    def test_diagonal_q_has_the_precisions_of_p(self):
        p = correlated(0.8, (1.0, 3.0))
        fit = fit_q(p, "diagonal")
        assert fit.exact
        assert torch.allclose(fit.distribution.mean, p.mean, atol=ROUNDING)
        assert torch.allclose(1 / fit.distribution.variance, p.precision_matrix.diagonal(), atol=ROUNDING)
        assert float(fit.divergence) == pytest.approx(-0.5 * math.log(1 - 0.8**2), abs=ROUNDING)
        assert fit.divergence.exact

    def test_full_q_equals_gaussian_p(self):
        p = LowRankMultivariateNormal(torch.zeros(3), torch.ones(3, 1), torch.arange(1.0, 4.0))
        fit = fit_q(p, MultivariateNormal)
        assert torch.allclose(fit.distribution.covariance_matrix, p.covariance_matrix.double(), atol=1e-6)
        assert float(fit.divergence) == pytest.approx(0.0, abs=1e-6)

    @pytest.mark.parametrize("family", ["diagonal", "full"])
    @pytest.mark.parametrize("dimension", [1, 2, 4])
    def test_search_finds_the_closed_form(self, family, dimension):
        factor = torch.randn(dimension, dimension, generator=torch.Generator().manual_seed(dimension)).double()
        p = MultivariateNormal(torch.arange(1.0, dimension + 1).double(), factor @ factor.T + torch.eye(dimension))
        exact, found = fit_q(p, family), fit_q(as_mixture(p), family, starts=2)
        assert exact.exact
        assert not found.exact
        assert torch.allclose(found.distribution.mean, exact.distribution.mean, atol=SEARCH)
        assert torch.allclose(found.distribution.stddev, exact.distribution.stddev, atol=SEARCH)
        assert found.minima == pytest.approx([float(exact.divergence)] * 2, abs=SEARCH)
        assert within(found.divergence, float(exact.divergence))

    @pytest.mark.parametrize(
        "p",
        [
            mixture(),
            mixture(means=(-1.0, 1.0), weights=(0.2, 0.8)),
            StudentT(number(3.0)),
            Cauchy(number(1.0), number(2.0)),
        ],
    )
    def test_gradient_of_the_divergence_vanishes(self, p):
        """E_q[s(x)] = 0 and E_q[(x − m) s(x)] = −1 for the score s of p, by quadrature."""
        q = fit_q(p).distribution

        def score(x):
            x = x.clone().requires_grad_()
            return torch.autograd.grad(p.log_prob(x).sum(), x)[0]

        assert on_the_line(q, score) * float(q.scale) == pytest.approx(0.0, abs=SEARCH)
        assert on_the_line(q, lambda x: (x - q.loc) * score(x)) == pytest.approx(-1.0, abs=SEARCH)

    def test_laplace_density(self):
        """−log σ + σ√(2/π)/b is least at σ = b√(π/2); the kink of log p costs the square of the spacing of the grid."""
        fit = fit_q(Laplace(number(0.3), number(2.0)))
        spacing = 14.0 / 2000
        assert float(fit.distribution.loc) == pytest.approx(0.3, abs=2.0 * spacing**2)
        assert float(fit.distribution.scale) == pytest.approx(2.0 * math.sqrt(math.pi / 2), abs=2.0 * spacing**2)

    def test_each_far_mode_is_a_local_minimum(self):
        p = bimodal(20.0)
        for k, start in enumerate(p.component_distribution.mean):
            fit = fit_q(p, "full", start=start)
            component = p.component_distribution.covariance_matrix[k]
            assert torch.allclose(fit.distribution.mean, start, atol=SEARCH)
            assert torch.allclose(fit.distribution.covariance_matrix, component, atol=SEARCH)
            assert fit.minima == pytest.approx([math.log(2.0)], abs=ROUNDING)
            assert within(fit.divergence, math.log(2.0))

    def test_several_starts_find_both_modes_and_return_the_best(self):
        p = bimodal(3.0, weights=(0.3, 0.7))
        fit = fit_q(p, "full", starts=12)
        assert len(fit.minima) == 12
        assert list(fit.minima) == sorted(fit.minima)
        assert fit.minima[0] == pytest.approx(-math.log(0.7), abs=1e-2)
        assert fit.minima[-1] == pytest.approx(-math.log(0.3), abs=1e-2)
        assert float(fit.distribution.mean[0]) == pytest.approx(3.0, abs=0.1)

    def test_near_modes_are_covered_by_one_gaussian(self):
        means = 1.1 * torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
        covariance = torch.tensor([[0.55, -0.2], [-0.2, 0.55]], dtype=torch.float64)
        p = MixtureSameFamily(Categorical(torch.ones(2, dtype=torch.float64)), MultivariateNormal(means, covariance))
        best, in_a_mode = fit_q(p, "full"), fit_q(p, "full", start=means[0])
        assert torch.allclose(best.distribution.mean, torch.zeros(2, dtype=torch.float64), atol=SEARCH)
        assert best.minima[0] < in_a_mode.minima[0] < math.log(2.0)

    def test_each_direction_minimizes_its_own_divergence(self):
        p = bimodal()
        reverse, forward = fit_q(p, "full", "reverse"), fit_q(p, "full", "forward")
        assert float(kl(reverse.distribution, p)) < float(kl(forward.distribution, p))
        assert float(kl(p, forward.distribution)) < float(kl(p, reverse.distribution))

    def test_seed_is_reproducible_and_keeps_global_state(self):
        before = torch.get_rng_state()
        first, again = (fit_q(bimodal(), seed=1, starts=2) for _ in range(2))
        assert torch.equal(torch.get_rng_state(), before)
        assert first.minima == again.minima
        assert float(first.divergence) == float(again.divergence)

    def test_search_that_does_not_reach_a_minimum_warns(self):
        class Jagged(StudentT):
            def log_prob(self, value):
                return super().log_prob(value) + torch.sin(1e9 * value)

        with pytest.warns(UserWarning, match="not at a minimum"):
            fit_q(Jagged(number(5.0)), start=1.0)


class TestForward:
    def test_has_the_moments_of_a_gaussian(self):
        p = correlated(0.8)
        full, diagonal = fit_q(p, "full", "forward"), fit_q(p, Normal, "forward")
        assert torch.equal(full.distribution.covariance_matrix, p.covariance_matrix)
        assert torch.allclose(diagonal.distribution.variance, p.variance, atol=ROUNDING)
        assert float(diagonal.divergence) == pytest.approx(-0.5 * math.log(1 - 0.8**2), abs=ROUNDING)

    def test_has_the_moments_of_a_mixture(self):
        p = bimodal(weights=(0.3, 0.7))
        fit = fit_q(p, "full", "forward")
        assert fit.exact
        with torch.random.fork_rng():
            torch.manual_seed(0)
            x = p.sample((200_000,))
        error = x.var(0).sqrt() / math.sqrt(len(x))
        assert ((fit.distribution.mean - x.mean(0)).abs() < 4 * error).all()
        products = ((x - x.mean(0))[:, :, None] * (x - x.mean(0))[:, None, :]).flatten(1)
        spread = products.std(0) / math.sqrt(len(x))
        assert ((fit.distribution.covariance_matrix.flatten() - products.mean(0)).abs() < 4 * spread).all()

    @pytest.mark.parametrize("p", [Gamma(number(3.0), number(2.0)), Uniform(number(-1.0), number(2.0)), mixture()])
    def test_has_the_mean_and_variance_of_a_scalar(self, p):
        fit = fit_q(p, "normal", "forward")
        assert fit.exact
        assert float(fit.distribution.mean) == pytest.approx(float(p.mean), abs=ROUNDING)
        assert float(fit.distribution.variance) == pytest.approx(float(p.variance), abs=ROUNDING)

    def test_covariance_of_independent_coordinates_is_diagonal(self):
        p = Independent(Laplace(torch.zeros(2).double(), torch.tensor([1.0, 2.0]).double()), 1)
        covariance = fit_q(p, "full", "forward").distribution.covariance_matrix
        assert torch.allclose(covariance, torch.tensor([[2.0, 0.0], [0.0, 8.0]]).double(), atol=ROUNDING)

    def test_unknown_moments_are_estimated_by_draws(self):
        p = TransformedDistribution(correlated(0.5, (0.3, 0.3)), ExpTransform())
        fit = fit_q(p, "full", "forward", samples=100_000)
        mean = torch.exp(correlated().loc + 0.5 * 0.09)
        covariance = torch.outer(mean, mean) * torch.expm1(correlated(0.5, (0.3, 0.3)).covariance_matrix)
        assert not fit.exact
        assert ((fit.distribution.mean - mean).abs() < 4 * (covariance.diagonal() / 100_000).sqrt()).all()

    def test_no_other_gaussian_has_a_lower_divergence(self):
        """KL(p ‖ q) up to a constant, −E_p[log q], at the moments and around them."""
        p = mixture()
        best = fit_q(p, "normal", "forward").distribution

        def crossed(q):
            return on_the_line(p, lambda x: -q.log_prob(x))

        for shift, stretch in ((0.1, 1.0), (-0.1, 1.0), (0.0, 1.05), (0.0, 0.95)):
            assert crossed(Normal(best.loc + shift, best.scale * stretch)) > crossed(best)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fit_q(correlated(), "gamma"), "unknown family 'gamma'"),
        (lambda: fit_q(correlated(), Gamma), "unknown family 'Gamma'"),
        (lambda: fit_q(correlated(), ["full"]), "unknown family"),
        (lambda: fit_q(correlated(), "full", "forwards"), "did you mean 'forward'"),
        (lambda: fit_q([0.5, 0.5]), "must be a torch Distribution"),
        (lambda: fit_q(Normal(torch.zeros(3), 1.0)), r"batch of shape \[3\]"),
        (lambda: fit_q(Wishart(torch.tensor(3.0), torch.eye(2))), "scalars or vectors"),
        (lambda: fit_q(Poisson(1.0)), "must be continuous"),
        (lambda: fit_q(Categorical(torch.ones(2))), "must be continuous"),
        (lambda: fit_q(Normal(0.0, 1.0), "full"), "use family='normal'"),
        (lambda: fit_q(Gamma(2.0, 1.0)), "direction='forward'"),
        (lambda: fit_q(Dirichlet(torch.ones(3)), "full", "forward"), "singular covariance"),
        (lambda: fit_q(StudentT(2.0), direction="forward"), "no finite mean and variance"),
        (lambda: fit_q(Cauchy(0.0, 1.0), direction="forward"), "no finite mean and variance"),
        (lambda: fit_q(bimodal(), start=[1.0]), "start must be a mean of 2"),
        (lambda: fit_q(bimodal(), start=[1.0, float("nan")]), "start must be a mean of 2"),
        (lambda: fit_q(bimodal(), starts=0), "starts must be"),
    ],
)
def test_bad_arguments_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()
