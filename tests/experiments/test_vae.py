"""At quick effort, the auto-encoders say what the descriptions of their experiments claim."""

import pytest

from credo import experiments


@pytest.fixture(scope="module")
def measured():
    def run(name: str) -> dict[str, float]:
        result = experiments.get(name).run(experiments.Setting("quick"))
        return {row.quantity: row.mean for row in result.rows}

    return run


@pytest.mark.slow
def test_more_latent_variables_raise_the_bound_by_less_and_less(measured):
    values = measured("vae-samples")
    bound = {n: values[f"{n} latent variables: ELBO of a test image, nats"] for n in (2, 5, 10, 20)}
    assert bound[5] - bound[2] > 1.0
    assert abs(bound[20] - bound[10]) < 0.5 * (bound[5] - bound[2])
    for n, elbo in bound.items():
        assert values[f"{n} latent variables: its log likelihood, nats"] > elbo


@pytest.mark.slow
def test_importance_weighting_tightens_the_bounds_of_both_decoders(measured):
    values = measured("vae-manifold")
    for decoder in ("Bernoulli", "Gaussian"):
        name = f"8×8 digits, {decoder} decoder"
        assert values[f"{name}: its log likelihood, nats"] > values[f"{name}: ELBO of a held-out image, nats"]
