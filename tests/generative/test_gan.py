"""Adversarial models: the theory of the game on known densities, and the two players in training."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

import credo
from credo.architectures import MLP
from credo.datasets import ring_of_gaussians
from credo.errors import InputError
from credo.generative import DCGAN, GAN, WGAN, InfoGAN
from credo.generative.adversarial import PATIENCE, SampleDiversity, frozen
from credo.generative.gan import discriminator_loss, generator_loss
from credo.generative.networks import output_range
from credo.seeding import seeded
from credo.training.adversarial import AdversarialTask

CPU = torch.device("cpu")
SIGMAS = 4.0


def normal(mean: float, std: float) -> Normal:
    return Normal(torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64))


P, Q = normal(-1.0, 1.0), normal(1.0, 1.0)


def points(n: int = 40, seed: int = 0) -> Tensor:
    with seeded(seed, CPU):
        return torch.randn(n, 2)


def images(n: int = 24, seed: int = 0) -> Tensor:
    """Between −1 and 1, reaching both ends."""
    with seeded(seed, CPU):
        return (2.0 * torch.rand(n, 1, 8, 8) - 1.0).sign() * torch.rand(n, 1, 8, 8)


def small(model: type = GAN, seed: int = 0, **options: object) -> GAN:
    with seeded(seed, CPU):
        return model(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=3, **options)


def dcgan(**options: object) -> DCGAN:
    with seeded(0, CPU):
        return DCGAN((1, 8, 8), latent=5, width=4, **options)


def infogan(outputs: int = 8, **options: object) -> InfoGAN:
    with seeded(0, CPU):
        return InfoGAN(MLP(9, (8,), 2), MLP(2, (8,), outputs), noise=2, categorical=(3, 2), continuous=2, **options)


MODELS = {
    "gan": (small, points),
    "minimax": (lambda: small(objective="minimax", discriminator_steps=3), points),
    "rates": (lambda: small(generator_lr=1e-2, discriminator_lr=1e-3), points),
    "spectral": (lambda: small(spectral_normalization=True), points),
    "dcgan": (dcgan, images),
    "dcgan-spectral": (lambda: dcgan(spectral_normalization=True), images),
    "wgan": (lambda: small(WGAN, discriminator_steps=2), points),
    "wgan-clip": (lambda: small(WGAN, penalty="clip", clip=0.1), points),
    "infogan": (infogan, points),
    "infogan-std": (lambda: infogan(outputs=10, code_std=None, continuous_weight=0.1), points),
}
every_model = pytest.mark.parametrize(("make", "data"), MODELS.values(), ids=MODELS)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# What the game is about: identities of the paper on densities that are known.


def grid() -> Tensor:
    return torch.linspace(-30.0, 30.0, 12_001, dtype=torch.float64)


def integral(values: Tensor) -> float:
    return torch.trapezoid(values, grid()).item()


def value_of(logit: Tensor, p: Normal, q: Normal) -> float:
    """V(D) by quadrature."""
    x = grid()
    return integral(p.log_prob(x).exp() * F.logsigmoid(logit) + q.log_prob(x).exp() * F.logsigmoid(-logit))


def best_logit(p: Normal, q: Normal) -> Tensor:
    """Of D* = p / (p + q)."""
    return p.log_prob(grid()) - q.log_prob(grid())


def jensen_shannon(p: Normal, q: Normal) -> float:
    x = grid()
    mixture = torch.logaddexp(p.log_prob(x), q.log_prob(x)) - math.log(2.0)
    halves = [integral(r.log_prob(x).exp() * (r.log_prob(x) - mixture)) for r in (p, q)]
    return sum(halves) / 2.0


def test_best_discriminator_is_p_over_p_plus_q_at_every_point():
    """y ↦ a log y + b log(1 − y) peaks at a/(a + b): no other value of D(x) does better anywhere."""
    x = grid()
    p, q = P.log_prob(x).exp(), Q.log_prob(x).exp()
    best = best_logit(P, Q)
    torch.testing.assert_close(best.sigmoid(), p / (p + q))
    at_best = p * F.logsigmoid(best) + q * F.logsigmoid(-best)
    for shift in (-3.0, -0.1, 0.1, 3.0):
        assert bool((p * F.logsigmoid(best + shift) + q * F.logsigmoid(-best - shift) <= at_best).all())


@pytest.mark.parametrize("q", [normal(1.0, 1.0), normal(-1.0, 2.0), normal(4.0, 0.5), normal(-1.0, 1.0)])
def test_value_of_the_game_is_twice_the_jensen_shannon_divergence_minus_log_4(q):
    assert value_of(best_logit(P, q), P, q) == pytest.approx(2.0 * jensen_shannon(P, q) - math.log(4.0), abs=1e-9)


def test_value_is_minus_log_4_where_the_generator_is_right_and_0_where_it_is_far_off():
    assert value_of(best_logit(P, P), P, P) == pytest.approx(-math.log(4.0), abs=1e-9)
    far = normal(9.0, 0.2)
    assert value_of(best_logit(P, far), P, far) == pytest.approx(0.0, abs=1e-6)


def test_identity_holds_on_the_ring_by_monte_carlo():
    """Ring against a broad Gaussian: −V at D* is log 4 − 2 JSD, by draws of both within four standard errors."""
    p = ring_of_gaussians(std=0.3).distribution
    q = torch.distributions.Independent(Normal(torch.zeros(2), 1.5 * torch.ones(2)), 1)
    with seeded(0, CPU):
        x, y = p.sample((20_000,)), q.sample((20_000,))

    def logit(z: Tensor) -> Tensor:
        return (p.log_prob(z) - q.log_prob(z)).double()

    ours = -discriminator_loss(logit(x), logit(y)).item()
    # 2 JSD from its definition, by other draws.
    with seeded(1, CPU):
        x, y = p.sample((20_000,)), q.sample((20_000,))
    terms = [r.log_prob(z) - torch.logaddexp(p.log_prob(z), q.log_prob(z)) + math.log(2.0) for r, z in ((p, x), (q, y))]
    theirs = sum(t.double().mean().item() for t in terms) - math.log(4.0)
    error = math.sqrt(2.0 * sum(t.double().var().item() for t in terms) / 20_000)
    assert ours == pytest.approx(theirs, abs=SIGMAS * error)


def test_trained_discriminator_approaches_p_over_p_plus_q():
    """Against N(1, 1), data from N(−1, 1) have the linear logit −2x: logistic regression with known standard errors."""
    model = _against_fixed_gaussian()
    optimizer = torch.optim.LBFGS(model.discriminator.parameters(), line_search_fn="strong_wolfe")
    n = 20_000
    with seeded(1, CPU):
        x = P.sample((n, 1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        with seeded(2, CPU):
            loss = model(x, network="discriminator")
        loss.backward()
        return loss

    for _ in range(5):
        loss = optimizer.step(closure)
    # Fisher information of n draws of each density; slope and bias do not mix, as the weight D*(1 − D*) is even.
    at, best = grid(), best_logit(P, Q)
    weight = (P.log_prob(at).exp() + Q.log_prob(at).exp()) * best.sigmoid() * (-best).sigmoid()
    slope_error, bias_error = (1.0 / math.sqrt(n * integral(weight * power)) for power in (at.square(), at**0))
    assert model.discriminator.weight.item() == pytest.approx(-2.0, abs=SIGMAS * slope_error)
    assert model.discriminator.bias.item() == pytest.approx(0.0, abs=SIGMAS * bias_error)

    def variance(density: Normal, values: Tensor) -> float:
        p = density.log_prob(at).exp()
        return integral(p * values.square()) - integral(p * values) ** 2

    error = math.sqrt((variance(P, F.logsigmoid(best)) + variance(Q, F.logsigmoid(-best))) / n)
    assert loss.item() == pytest.approx(math.log(4.0) - 2.0 * jensen_shannon(P, Q), abs=SIGMAS * error)


def _against_fixed_gaussian() -> GAN:
    with seeded(0, CPU):
        model = GAN(nn.Linear(1, 1), nn.Linear(1, 1), latent=1).double()
    with torch.no_grad():
        model.generator.weight.fill_(1.0)
        model.generator.bias.fill_(1.0)
    return model


def test_losses_are_those_of_the_paper():
    real, fake = torch.tensor([2.0, -1.0]), torch.tensor([0.5, 3.0])
    d_real, d_fake = real.sigmoid(), fake.sigmoid()
    assert discriminator_loss(real, fake).item() == pytest.approx(
        -(d_real.log().mean() + (1 - d_fake).log().mean()).item()
    )
    assert generator_loss(fake, "non_saturating").item() == pytest.approx(-d_fake.log().mean().item())
    assert generator_loss(fake, "minimax").item() == pytest.approx((1 - d_fake).log().mean().item())


def test_minimax_gradient_vanishes_where_the_discriminator_is_sure():
    """d log(1 − D)/dlogit = −D and d(−log D)/dlogit = D − 1."""
    logit = torch.tensor([-20.0], requires_grad=True)
    (minimax,) = torch.autograd.grad(generator_loss(logit, "minimax"), logit)
    (non_saturating,) = torch.autograd.grad(generator_loss(logit, "non_saturating"), logit)
    assert abs(minimax.item()) < 1e-8
    assert non_saturating.item() == pytest.approx(-1.0)


# The two players.


@every_model
def test_each_player_moves_its_own_network_alone(make, data):
    model, x = make(), data(12)
    model.train()
    for player, other in (("discriminator", "generator"), ("generator", "discriminator")):
        model.zero_grad(set_to_none=True)
        model(x, network=player).backward()
        assert all(p.grad is not None for p in getattr(model, player).parameters())
        assert all(p.grad is None for p in getattr(model, other).parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert model.loss(x, "generator").ndim == 0


@pytest.mark.parametrize(("rows", "steps", "moves"), [(40, 1, 15), (40, 3, 5), (8, 3, 1), (16, 5, 1)])
def test_generator_steps_on_every_kth_minibatch_across_epochs(rows, steps, moves, monkeypatch):
    """Three epochs of rows/8 minibatches; an epoch may be shorter than k."""
    moved = []
    original = AdversarialTask.on_step_end

    def count(task: AdversarialTask, optimizer: str) -> None:
        original(task, optimizer)
        moved.append(optimizer)

    monkeypatch.setattr(AdversarialTask, "on_step_end", count)
    small(discriminator_steps=steps).fit(points(rows), epochs=3, batch_size=8, seed=0)
    assert moved.count("discriminator") == 3 * rows // 8
    assert moved.count("generator") == moves


def test_epoch_without_a_move_of_the_generator_has_no_loss_of_it():
    model = small(discriminator_steps=3).fit(points(8), epochs=3, batch_size=8, seed=0)
    assert ["generator" in entry for entry in model.history] == [False, False, True]
    assert model._training_task().progress_text(model.history[0]).startswith("discriminator")
    assert "generator" in model._training_task().progress_text(model.history[2])


def test_each_player_has_its_learning_rate():
    def moved(**options: object) -> dict[str, float]:
        """How far plain gradient descent takes each player in one step."""
        model = small(**options)
        before = copy.deepcopy(model)
        model.fit(points(8), epochs=1, batch_size=8, seed=0, optimizer=torch.optim.SGD, schedule="constant")
        return {
            player: math.sqrt(
                sum(
                    (a - b).square().sum().item()
                    for a, b in zip(
                        getattr(model, player).parameters(), getattr(before, player).parameters(), strict=True
                    )
                )
            )
            for player in ("generator", "discriminator")
        }

    plain, slow = moved(), moved(discriminator_lr=1e-4)  # fit's is 1e-3
    assert slow["discriminator"] == pytest.approx(0.1 * plain["discriminator"], rel=1e-3)
    assert moved(generator_lr=1e-4)["generator"] == pytest.approx(0.1 * plain["generator"], rel=1e-3)


def test_betas_reach_both_optimizers():
    groups = small(betas=(0.3, 0.9))._training_task().parameter_groups(0.1)
    assert list(groups) == ["discriminator", "generator"]
    assert all(group[0]["betas"] == (0.3, 0.9) and group[0]["weight_decay"] == 0.1 for group in groups.values())


def test_frozen_leaves_what_was_frozen_and_puts_back_the_rest_after_an_error():
    net = MLP(2, (3,), 1)
    net.layers[0].weight.requires_grad_(False)
    with frozen(net):
        assert not any(p.requires_grad for p in net.parameters())
    with pytest.raises(RuntimeError, match="shapes"), frozen(net):
        net(torch.zeros(1, 5))
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]


# Files, copies and seeds.


@every_model
def test_resumed_run_ends_in_the_same_bits(make, data, tmp_path):
    x = data()
    options = {"epochs": 4, "batch_size": 6, "seed": 3}
    whole = make().fit(x, **options)
    folder = tmp_path / "checkpoint"

    class Interruption(Exception):
        pass

    def stop(task: AdversarialTask, metrics: dict[str, float]) -> None:
        if metrics["epoch"] == 3:
            raise Interruption

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdversarialTask, "on_epoch_end", stop)
        with pytest.raises(Interruption):
            make().fit(x, checkpoint=folder, **options)
    resumed = make().fit(x, checkpoint=folder, resume=True, **options)
    assert same(state(resumed), state(whole))
    drop = {"seconds"}
    assert [{k: v for k, v in e.items() if k not in drop} for e in resumed.history] == [
        {k: v for k, v in e.items() if k not in drop} for e in whole.history
    ]


@every_model
def test_saved_and_copied_models_are_the_same(make, data, tmp_path):
    model = make().fit(data(), epochs=2, batch_size=6, seed=0)
    model.save(tmp_path / "run")
    for again in (credo.load(tmp_path / "run"), copy.deepcopy(model)):
        assert type(again) is type(model)
        assert again._get_config() == model._get_config()
        assert same(state(again), state(model))
        assert torch.equal(again.sample(5, seed=1), model.sample(5, seed=1))
        assert torch.equal(again.eval()._discriminate(data(4)), model._discriminate(data(4)))
        again.fit(data(), epochs=1, batch_size=6, seed=0)  # and it goes on


def test_own_networks_are_passed_to_load(tmp_path):
    with seeded(0, CPU):
        model = GAN(nn.Linear(2, 2), nn.Linear(2, 1), latent=2, spectral_normalization=True)
    model.save(tmp_path / "run")
    again = credo.load(tmp_path / "run", net={"generator": nn.Linear(2, 2), "discriminator": nn.Linear(2, 1)})
    assert same(state(again), state(model))


@every_model
def test_seed_decides_training_and_samples_and_disturbs_nothing(make, data):
    before = torch.get_rng_state()
    first, again, other = (make().fit(data(), epochs=2, batch_size=6, seed=seed) for seed in (0, 0, 1))
    assert same(state(first), state(again))
    assert not same(state(first), state(other))
    assert torch.equal(first.sample(3, seed=5), first.sample(3, seed=5))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_model
def test_trains_and_draws_on_a_gpu(make, data, tmp_path):
    model = make().fit(data(), epochs=2, batch_size=6, seed=0, device="cuda")
    samples = model.sample(4, seed=0)
    assert samples.device.type == model._discriminate(samples).device.type == "cuda"
    model.save(tmp_path / "run")
    torch.testing.assert_close(
        credo.load(tmp_path / "run")._discriminate(samples.cpu()),
        model._discriminate(samples).cpu(),
        rtol=1e-3,
        atol=1e-3,
    )


def test_spectral_normalization_bounds_the_discriminator():
    """After training in which the power iteration follows the weights, no layer stretches by more than about 1."""
    model = small(spectral_normalization=True).fit(points(), epochs=30, batch_size=10, lr=1e-2, seed=0)
    model.train()
    for _ in range(100):
        model._discriminate(points())  # power iterations to convergence
    model.eval()
    for layer in (model.discriminator.layers[0], model.discriminator.layers[2]):
        assert torch.linalg.matrix_norm(layer.weight.detach(), 2).item() == pytest.approx(1.0, abs=1e-3)
    assert not hasattr(model.generator.layers[0], "parametrizations")


def test_discriminator_that_is_normalized_already_is_left_as_it_is():
    net = MLP(2, (8,), 1)
    torch.nn.utils.parametrizations.spectral_norm(net.layers[0])
    model = GAN(MLP(3, (8,), 2), net, latent=3, spectral_normalization=True)
    assert len(model.discriminator.layers[0].parametrizations.weight) == 1
    assert len(model.discriminator.layers[2].parametrizations.weight) == 1


def test_double_precision_stays_and_half_precision_is_judged_in_full():
    model = small().double()
    model.fit(points().double(), epochs=1, batch_size=8, seed=0)
    assert model.sample(2).dtype == torch.float64
    assert small().bfloat16()._discriminate(points().bfloat16()).dtype == torch.float32


# Samples and their variety.


def test_samples_do_not_depend_on_each_other():
    """Evaluation mode, also while training: a row decoded alone is the row decoded with others."""
    model = dcgan().fit(images(), epochs=1, batch_size=6, seed=0)
    model.train()
    z = model.noise(8)
    together = model.decode(z)
    torch.testing.assert_close(torch.cat([model.decode(row[None]) for row in z]), together, rtol=1e-5, atol=1e-6)
    assert model.training
    assert all(module.training for module in model.modules())


class Constant(nn.Module):
    """A generator that has collapsed: always the same point."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2))

    def forward(self, z: Tensor) -> Tensor:
        return self.point.expand(len(z), 2)


def test_collapsed_generator_is_warned_of_once_and_not_at_its_start():
    model = GAN(Constant(), MLP(2, (8,), 1), latent=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(points(), epochs=10, batch_size=10, seed=0)
    with pytest.warns(UserWarning, match="may have collapsed") as caught:
        model.fit(points(), epochs=PATIENCE // 4 + 10, batch_size=10, seed=0)
    assert len(caught) == 1
    assert model.history[-1]["diversity"] == 0.0


@pytest.mark.parametrize(
    ("diversities", "warned"),
    [((0.1, 0.1, 0.1), True), ((0.1, 0.3, 0.1), False), ((1.0, 0.1), False), ((1.0, 0.1, 0.1), True)],
)
def test_only_lasting_collapse_is_warned_of(diversities, warned):
    """Looked at every half of the patience: the second look below the mark after the first, or after a good one."""
    variety = SampleDiversity(points())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i, diversity in enumerate(diversities, 1):
            variety.warn_if_collapsed(diversity, i * PATIENCE // 2)
    assert bool(caught) == warned


def test_generator_as_varied_as_the_data_is_not_warned_of():
    """The identity on N(0, I) is the data's own density: the ratio of two means of 40 distances is near 1."""
    generator = nn.Linear(2, 2)
    with torch.no_grad():
        nn.init.eye_(generator.weight)
        nn.init.zeros_(generator.bias)
    model = GAN(generator, MLP(2, (8,), 1), latent=2)
    model.fit(points(400), epochs=4, batch_size=100, lr=1e-5, seed=0)
    # Nearest distances of points in a plane scatter by about half their mean (Rayleigh: 0.52), those of the sparse
    # outskirts by a little more; the ratio of two means of 256 by √2·0.6/16 ≈ 0.05.
    assert model.history[-1]["diversity"] == pytest.approx(1.0, abs=SIGMAS * 0.055)


@pytest.mark.parametrize("x", [torch.zeros(12, 2), torch.zeros(1, 2)], ids=["all equal", "one row"])
def test_data_without_variety_have_a_diversity_of_one(x):
    assert small().fit(x, epochs=1, batch_size=4, seed=0).history[0]["diversity"] == 1.0


def test_rows_compared_with_are_spread_over_the_data():
    """Sorted data: the first 256 rows alone would be a single mode."""
    x = torch.cat([torch.zeros(1000, 2), points(1000)])
    model = small().fit(x, epochs=1, batch_size=500, seed=0)
    assert 0.0 < model.history[0]["diversity"] < 1.0


# What is said to wrong input.


@pytest.mark.parametrize(
    ("generator", "found"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh()), (-1.0, 1.0)),
        (nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())), (0.0, 1.0)),
        (nn.Sequential(nn.Linear(3, 2)), None),
        (nn.Sequential(), None),
        (MLP(3, (), 2), None),
        (credo.architectures.DCGANGenerator(shape=(1, 8, 8), width=2), (-1.0, 1.0)),
        (nn.Sequential(credo.architectures.InfoGANGenerator(shape=(1, 8, 8))), (0.0, 1.0)),
    ],
)
def test_range_of_a_generator_is_told_by_its_last_layer(generator, found):
    assert output_range(generator) == found


def test_data_outside_the_range_of_the_generator_are_told_how_to_rescale():
    x = torch.rand(12, 2) * 255.0
    x[0] = torch.tensor([0.0, 255.0])
    model = GAN(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), MLP(2, (8,), 1), latent=3)
    with pytest.raises(InputError, match=r"from -1 to 1, but the data go from 0 to 255: rescale") as error:
        model.fit(x, epochs=1)
    rule = str(error.value).partition("x = ")[2]
    rescaled = eval(rule, {"x": x})
    assert rescaled.min() == -1.0
    assert rescaled.max() == 1.0
    model.fit(rescaled, epochs=1, batch_size=6)
    with pytest.raises(InputError, match="the data go from"):
        model.fit(DataLoader(TensorDataset(x), batch_size=6), epochs=1)


def test_data_in_one_half_of_the_range_are_warned_of():
    model = GAN(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), MLP(2, (8,), 1), latent=3)
    with pytest.warns(UserWarning, match="in one half of the generator's range from -1 to 1: rescale"):
        model.fit(torch.rand(12, 2), epochs=1, batch_size=6)


def test_data_far_from_the_start_of_an_unbounded_generator_are_warned_of():
    with pytest.warns(UserWarning, match=r"far from the outputs of an untrained network: rescale them, x = -1 \+ 2"):
        small().fit(255.0 * torch.rand(12, 2), epochs=1, batch_size=6)


def test_last_minibatch_of_one_row_is_named_where_batch_norm_cannot_take_it():
    generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model = GAN(generator, MLP(2, (8,), 1), latent=3)
    before = state(model)
    with pytest.raises(InputError, match=r"minibatch at step 3 is too small for batch norm .* another batch_size"):
        model.fit(points(17), epochs=2, batch_size=8, seed=0)
    assert same(state(model), before)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: small(objective="wasserstein"), "unknown objective 'wasserstein'"),
        (lambda: small(objective="minmax"), "did you mean 'minimax'"),
        (lambda: small(discriminator_steps=0), "discriminator_steps must be an integer of at least 1, got 0"),
        (lambda: small(generator_lr=-1.0), "generator_lr must be a positive number"),
        (lambda: small(betas=(0.5, 1.0)), "betas must be two numbers of at least 0 and below 1"),
        (lambda: small(betas=0.5), "betas must be two numbers"),
        (lambda: GAN(MLP(3, (8,), 2), MLP(2, (8,), 1), latent=0), "latent must be an integer of at least 1"),
        (lambda: GAN(nn.Identity(), MLP(2, (8,), 1), latent=2), "generator must be an nn.Module with weights"),
        (lambda: GAN(MLP(3, (8,), 2), lambda x: x, latent=3), "discriminator must be an nn.Module"),
        (lambda: small().sample(0), "n must be an integer of at least 1, got 0"),
        (lambda: small().decode(torch.zeros(4, 2)), r"z must have shape \[N, 3\] with N >= 1, got \[4, 2\]"),
        (lambda: small()(points(), network="critic"), "unknown network 'critic'"),
    ],
)
def test_wrong_arguments_are_named(build, message):
    with pytest.raises(InputError, match=message):
        build()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: GAN(MLP(3, (), 3), MLP(2, (), 1), latent=3), r"generator outputs \[3\] per datum, but .* shape \[2\]"),
        (lambda: GAN(MLP(4, (), 2), MLP(2, (), 1), latent=3), r"generator cannot be called on a batch .* \[2, 3\]"),
        (lambda: GAN(MLP(3, (), 2), MLP(3, (), 1), latent=3), r"discriminator cannot be called on a batch"),
        (lambda: GAN(MLP(3, (), 2), MLP(2, (), 2), latent=3), r"output 1 number per datum, \[2, 1\], got \[2, 2\]"),
    ],
)
def test_networks_that_do_not_fit_are_named_before_training(model, message):
    with pytest.raises(InputError, match=message):
        model().fit(points(), epochs=1)


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(InputError, match="GAN has no likelihood of held-out data"):
        small().fit(points(), validation=points(), epochs=1)
    with pytest.raises(InputError, match="lr would change nothing"):
        small(generator_lr=1e-3, discriminator_lr=1e-3).fit(points(), lr=1e-3, epochs=1)
    small(generator_lr=1e-3).fit(points(), lr=1e-3, epochs=1)
    with pytest.raises(InputError, match="devices=1"):
        small()._training_task().check_device_count(2)


def test_grids_of_samples_are_drawn_as_training_goes(tmp_path):
    dcgan().fit(images(), epochs=3, batch_size=6, seed=0, grids=tmp_path / "grids", grid_every=2)
    assert [path.name for path in sorted((tmp_path / "grids").iterdir())] == ["epoch-0002.png"]
