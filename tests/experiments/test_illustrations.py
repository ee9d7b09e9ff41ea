"""At full effort, the two illustrations say what their descriptions claim."""

import pytest

from credo import experiments


@pytest.fixture(scope="module")
def measured():
    def run(name: str) -> dict[str, float]:
        result = experiments.get(name).run(experiments.Setting("quick"))
        return {row.quantity: row.mean for row in result.rows}

    return run


@pytest.mark.slow
def test_the_band_opens_in_the_gap_and_the_noise_is_found(measured):
    values = measured("gap-curve")
    for method in ("Bayes by Backprop", "MC dropout", "Deep ensemble"):
        assert values[f"{method}: aleatoric std"] == pytest.approx(0.1, rel=0.4)
        assert values[f"{method}: 95 % intervals cover, on the data"] > 0.85
    opening = values["Bayes by Backprop: epistemic std in the gap"]
    assert opening > 2.5 * values["Bayes by Backprop: epistemic std on the data"]


@pytest.mark.slow
def test_turned_digits_and_letters_are_less_sure(measured):
    values = measured("digits-and-letters")
    for method in ("MAP", "Bayes by Backprop", "MC dropout", "Deep ensemble"):
        assert values[f"{method}: accuracy"] > 0.95
        assert values[f"{method}: mean entropy, nats"] < values[f"{method}: mean entropy, turned"]
        assert values[f"{method}: AUROC of the entropy, letters against digits"] > 0.8
