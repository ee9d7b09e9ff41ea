"""InfoGAN: the information bound against known entropies, and given and inferred codes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from credo.architectures import MLP, InfoGANDiscriminator, InfoGANGenerator
from credo.errors import InputError
from credo.generative import Codes, InfoGAN
from credo.seeding import seeded

CPU = torch.device("cpu")
NOISE, CLASSES, CONTINUOUS = 2, (3, 2), 2
LATENT = NOISE + sum(CLASSES) + CONTINUOUS
OUTPUTS = 1 + sum(CLASSES) + CONTINUOUS
ENTROPY = sum(math.log(k) for k in CLASSES)


class Recognizer(nn.Module):
    """Outputs the codes of data that are (noise, codes) themselves, with a given certainty.

    Args:
        sharpness: factor on the one-hot codes as logits.
        log_variance: of the continuous codes, where it is to be learned.
    """

    def __init__(self, sharpness: float, log_variance: float | None = None) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(1))
        self.sharpness, self.log_variance = sharpness, log_variance

    def forward(self, x: Tensor) -> Tensor:
        _, one_hots, continuous = x.split([NOISE, sum(CLASSES), CONTINUOUS], dim=1)
        spread = [] if self.log_variance is None else [torch.full_like(continuous, self.log_variance)]
        return torch.cat([self.logit.expand(len(x), 1), self.sharpness * one_hots, continuous, *spread], dim=1)


class Identity(nn.Module):
    """A generator that outputs its input."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, z: Tensor) -> Tensor:
        return z + self.shift


def build(generator: nn.Module | None = None, discriminator: nn.Module | None = None, **options: object) -> InfoGAN:
    with seeded(0, CPU):
        return InfoGAN(
            generator or Identity(),
            discriminator or MLP(LATENT, (8,), OUTPUTS),
            **{"noise": NOISE, "categorical": CLASSES, "continuous": CONTINUOUS, **options},
        )


def information(model: InfoGAN, n: int = 2000, seed: int = 0) -> dict[str, float]:
    with seeded(seed, CPU), torch.no_grad():
        z = model.noise(n)
        return {
            name: value.item() for name, value in model._information(model.discriminator(model.generator(z)), z).items()
        }


def test_bound_is_the_entropy_if_codes_are_recognized_without_error():
    assert information(build(discriminator=Recognizer(100.0)))["categorical_information"] == pytest.approx(
        ENTROPY, abs=1e-5
    )


@pytest.mark.parametrize("sharpness", [-2.0, 0.0, 0.5, 3.0])
def test_bound_matches_the_softmax_and_is_below_the_entropy(sharpness):
    """Logits s at the right class and 0 elsewhere: log Q = s − log(e^s + K − 1), the same for every datum."""
    found = information(build(discriminator=Recognizer(sharpness)))["categorical_information"]
    expected = sum(math.log(k) + sharpness - math.log(math.exp(sharpness) + k - 1) for k in CLASSES)
    assert found == pytest.approx(expected, abs=1e-5)
    assert found < ENTROPY


def test_bound_is_not_positive_if_data_do_not_depend_on_codes():
    """Data that do not depend on the codes have I = 0, and no bound is larger, up to four standard errors."""
    with seeded(0, CPU):
        blind = nn.Sequential(nn.Linear(LATENT, OUTPUTS))
        noise_only = nn.Linear(LATENT, LATENT)
    with torch.no_grad():
        noise_only.weight[:, NOISE:] = 0.0  # the codes do not reach the data
    model = build(noise_only, blind)
    with seeded(1, CPU):
        z = model.noise(4000)
    q = model._posterior(blind(noise_only(z)))
    rows = torch.stack(
        [(d.logits * part).sum(1) for d, part in zip(q.categorical, z.split(model._sizes, 1)[1:3], strict=True)]
    )
    error = rows.sum(0).std().item() / math.sqrt(4000)
    assert model._information(blind(noise_only(z)), z)["categorical_information"].item() <= 4.0 * error


@pytest.mark.parametrize("std", [1.0, 0.2])
@pytest.mark.parametrize("learned", [True, False])
def test_bound_of_continuous_codes_matches_closed_form(std, learned):
    """Read without error: log Q(c | x) = −½ log 2πσ² for each, and H(c) = log 2 for U(−1, 1)."""
    recognizer = Recognizer(1.0, 2.0 * math.log(std) if learned else None)
    found = information(build(discriminator=recognizer, code_std=None if learned else std))["continuous_information"]
    expected = CONTINUOUS * (math.log(2.0) - 0.5 * math.log(2 * math.pi) - math.log(std))
    assert found == pytest.approx(expected, abs=1e-5)


def test_both_losses_contain_the_weighted_information():
    x = torch.zeros(50, LATENT)
    by_weight = {}
    for weight in (1.0, 3.0):
        model = build(discriminator=Recognizer(0.5), weight=weight, continuous_weight=weight)
        for name in ("discriminator", "generator"):
            with seeded(1, CPU):
                by_weight[name, weight] = model(x, network=name).item()
    with seeded(1, CPU):
        z = model.noise(50)
    total = sum(value.item() for value in model._information(model.discriminator(z), z).values())
    for name in ("discriminator", "generator"):
        assert by_weight[name, 1.0] - by_weight[name, 3.0] == pytest.approx(2.0 * total, abs=1e-5)


def test_change_of_classes_is_the_divergence_of_the_two_distributions():
    """Logits 0.5·x; the transform reverses the columns, so that the one-hot codes are others."""
    model = build(discriminator=Recognizer(0.5), transform=lambda x: x.flip(1), transform_weight=3.0)
    plain = build(discriminator=Recognizer(0.5))
    with seeded(1, CPU):
        x = torch.randn(20, LATENT)
    p, q = (model.infer_codes(part).categorical for part in (x, x.flip(1)))
    expected = sum(torch.distributions.kl_divergence(a, b).mean() for a, b in zip(p, q, strict=True))
    losses = []
    for each in (model, plain):
        with seeded(2, CPU):
            losses.append(each(x).item())
    assert losses[0] - losses[1] == pytest.approx(3.0 * float(expected), rel=1e-5)
    assert model._last_terms["category_change"].item() == pytest.approx(float(expected), rel=1e-6)
    assert float(expected) > 0.01


def test_only_the_classes_of_changed_data_are_learned():
    model = build()
    before, after = (torch.randn(4, OUTPUTS, requires_grad=True) for _ in range(2))
    model._category_change(before, after).backward()
    assert before.grad is None
    assert after.grad is not None
    is_category = torch.zeros(OUTPUTS, dtype=torch.bool)
    is_category[1 : 1 + sum(CLASSES)] = True
    assert bool(after.grad[:, is_category].ne(0).all())
    assert bool(after.grad[:, ~is_category].eq(0).all())


def test_noise_and_codes_have_their_distributions():
    model = build()
    with seeded(0, CPU):
        noise, *one_hots, continuous = model.noise(8000).split(model._sizes, dim=1)
    assert [part.shape[1] for part in one_hots] == list(CLASSES)
    for part, k in zip(one_hots, CLASSES, strict=True):
        assert bool((part.sum(1) == 1.0).all())
        error = math.sqrt((1 / k) * (1 - 1 / k) / 8000)
        torch.testing.assert_close(part.mean(0), torch.full((k,), 1 / k), rtol=0, atol=4.0 * error)
    for part, width in ((noise, NOISE), (continuous, CONTINUOUS)):
        assert part.abs().max() <= 1.0
        # U(−1, 1) has variance 1/3 and fourth moment 1/5: its estimate has the standard error √((1/5 − 1/9)/n).
        error = math.sqrt((1 / 5 - 1 / 9) / 8000)
        torch.testing.assert_close(part.var(0), torch.full((width,), 1 / 3), rtol=0, atol=4.0 * error)


def test_given_codes_are_inferred_from_samples():
    model = build(discriminator=Recognizer(50.0, -4.0), code_std=None)
    categories = torch.tensor([[0, 1], [2, 0], [1, 1]])
    numbers = torch.tensor([[0.5, -1.5], [0.0, 0.25], [-1.0, 1.0]])
    x = model.sample(3, seed=0, codes=Codes(categories, numbers))
    found = model.infer_codes(x)
    assert torch.equal(found.best.categorical, categories)
    torch.testing.assert_close(found.best.continuous, numbers)
    torch.testing.assert_close(found.continuous.stddev, torch.full((3, 2), math.exp(-2.0)))
    assert [tuple(q.probs.shape) for q in found.categorical] == [(3, 3), (3, 2)]


def test_missing_codes_are_drawn_and_noise_is_kept():
    model = build()
    free = model.sample(5, seed=0)
    fixed = model.sample(5, seed=0, codes=Codes(continuous=(0.5, -0.5)))
    assert torch.equal(free[:, : NOISE + sum(CLASSES)], fixed[:, : NOISE + sum(CLASSES)])
    torch.testing.assert_close(fixed[:, -2:], torch.tensor([0.5, -0.5]).expand(5, 2))
    one = build(MLP(5, (4,), 2), MLP(2, (4,), 4), categorical=(3,), continuous=0)
    assert one.sample(3, codes=Codes(torch.arange(3))).shape == (3, 2)
    assert one.sample(3, codes=Codes(1)).shape == (3, 2)


def test_categorical_code_finds_clusters():
    """Three distant clusters in the plane: the code identifies them without labels."""
    with seeded(1, CPU):
        label = torch.arange(300) % 3
        centers = torch.tensor([[3.0, 0.0], [-2.0, 2.0], [-1.0, -3.0]])
        x = centers[label] + 0.1 * torch.randn(300, 2)
        model = InfoGAN(
            MLP(5, (32, 32), 2),
            MLP(2, (32, 32), 4),
            noise=2,
            categorical=(3,),
            continuous=0,
            generator_lr=2e-3,
            discriminator_lr=2e-3,
        )
    model.fit(x, epochs=60, batch_size=50, seed=1)
    information = [entry["categorical_information"] for entry in model.history]
    assert max(information) <= math.log(3.0)
    assert information[-1] > 0.95 * math.log(3.0)
    codes = model.infer_codes(x).best.categorical[:, 0]
    most_frequent = [int(codes[label == k].mode().values) for k in range(3)]
    assert sorted(most_frequent) == [0, 1, 2]
    assert (codes == torch.tensor(most_frequent)[label]).double().mean() > 0.95


def test_published_networks_have_expected_shapes_and_learning_rates():
    model = InfoGAN(shape=(1, 28, 28))
    assert model.latent == 74
    assert model.sample(2).shape == (2, 1, 28, 28)
    assert model.discriminator(torch.rand(2, 1, 28, 28)).shape == (2, 1 + 10 + 2)
    groups = model._training_task().parameter_groups(0.0)
    assert groups["generator"][0]["lr"] == 1e-3
    assert groups["discriminator"][0]["lr"] == 2e-4
    # FC 1024·74 and 6272·1024, upconv 128·64·16 and 64·16 + 1, scales and shifts of batch norm.
    count = 74 * 1024 + 1024 * 6272 + 128 * 64 * 16 + 64 * 16 + 1 + 2 * (1024 + 128 + 64)
    assert sum(p.numel() for p in InfoGANGenerator().parameters()) == count


def test_logit_and_codes_share_the_trunk():
    net = InfoGANDiscriminator(codes=3, shape=(1, 8, 8))
    x = torch.rand(4, 1, 8, 8)
    logit, codes = net(x).split([1, 3], dim=1)
    for part in (logit, codes):
        net.zero_grad(set_to_none=True)
        part.sum().backward(retain_graph=True)
        assert all(p.grad is not None for p in net.trunk.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build(categorical=10), r"categorical must list the classes of each code, such as \(10,\), got 10"),
        (lambda: build(categorical=(1,)), r"categorical\[0\] must be an integer of at least 2, got 1"),
        (lambda: build(categorical=(), continuous=0), "at least one categorical or continuous code"),
        (lambda: build(weight=0.0), "weight must be a positive number"),
        (lambda: build(code_std=0.0), "code_std must be a positive number"),
        (lambda: build(transform=2.0), "transform must be a function of data, or None, got float"),
        (lambda: build(transform=abs, transform_weight=-1.0), "transform_weight must be a positive number"),
        (lambda: build(transform=abs, categorical=()), "classes of categorical codes, but there are none"),
        (
            lambda: build(transform=lambda x: x[:, 1:]).fit(torch.rand(8, LATENT), epochs=1),
            r"transform must return data like its input, torch.float32 \[2, 9\], got torch.float32 \[2, 8\]",
        ),
        (lambda: build(noise=-1), "noise must be an integer of at least 0"),
        (lambda: build(objective="minmax"), "did you mean 'minimax'"),
        (lambda: InfoGAN(), "give either shape=.* or both a generator and a discriminator"),
        (lambda: InfoGAN(Identity(), shape=(1, 8, 8)), "give either shape"),
        (lambda: InfoGAN(shape=(1, 30, 30)), "multiples of 4 .* pad or resize the images to 32×32"),
        (
            lambda: build().sample(4, codes=Codes(torch.zeros(3, 2).long())),
            r"categorical codes .* \[4, 2\], got \[3, 2\]",
        ),
        (lambda: build().sample(1, codes=Codes(torch.tensor([[3, 0]]))), r"integers of at least 0 and below \(3, 2\)"),
        (lambda: build().sample(1, codes=Codes(torch.tensor([[0.5, 0.0]]))), r"integers of at least 0 and below"),
        (lambda: build().sample(2, codes=4), r"codes must be Codes\(categorical=..., continuous=...\), got int"),
        (lambda: build().sample(2, codes=Codes(continuous=torch.zeros(2, 3))), r"continuous codes .* \[2, 2\]"),
        (
            lambda: build(discriminator=MLP(LATENT, (), 4)).fit(torch.zeros(8, LATENT), epochs=1),
            r"discriminator must output 8 numbers per datum, \[2, 8\], got \[2, 4\]",
        ),
    ],
)
def test_bad_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()
