"""A posterior of stored draws: which draws a prediction takes, thinning, and files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from credo._tensors import get_tensors, put_tensors, unique_tensors
from credo.errors import InputError, LoadError
from credo.posteriors import Empirical


def numbered(chains: int, draws: int) -> Empirical:
    """Draw number i, counted chain by chain, is the number i."""
    numbers = torch.arange(chains * draws, dtype=torch.float32).view(chains, draws)
    return Empirical({"a.weight": numbers.unsqueeze(2), "b": 2 * numbers})


def picked(posterior: Empirical, n: int, seed: int = 0) -> Tensor:
    return posterior.sample(n, seed=seed)["a.weight"].squeeze(1)


@pytest.mark.parametrize(("chains", "draws"), [(1, 1), (1, 2), (2, 3), (4, 250), (3, 7), (8, 300)])
def test_all_draws_come_once_before_any_comes_again(chains: int, draws: int) -> None:
    posterior, n = numbered(chains, draws), chains * draws
    numbers = picked(posterior, 2 * n + 1)
    assert sorted(numbers[:n].tolist()) == list(range(n))
    assert torch.equal(numbers[n : 2 * n], numbers[:n])


@pytest.mark.parametrize("n", [4, 10, 33, 100, 500])
def test_any_number_of_draws_is_spread_evenly(n: int) -> None:
    """With terms of the continued fraction up to a, the n first multiples modulo N leave no gap above (a + 2)·N/n, and
    an interval deviates from its share by less than the sum of the terms: 3 and 16 for N = 1000."""
    posterior = numbered(4, 250)
    for seed in range(5):
        ordered = picked(posterior, n, seed).sort().values
        gaps = torch.cat([ordered.diff(), (ordered[0] + 1000 - ordered[-1])[None]])
        assert gaps.max() <= (3 + 2) * 1000 / n
        per_chain = torch.bincount(ordered.div(250).long(), minlength=4)
        assert (per_chain - n / 4).abs().max() < 16


def test_seeds_choose_the_offset_and_one_draw_is_one_weight_vector() -> None:
    posterior = numbered(2, 50)
    assert len({float(picked(posterior, 1, seed)) for seed in range(20)}) > 10
    draws = posterior.sample(30, seed=3)
    assert torch.equal(2 * draws["a.weight"].squeeze(1), draws["b"])


def test_mean_thinning_and_chains() -> None:
    posterior = numbered(2, 10)
    assert posterior.shape == (2, 10)
    assert float(posterior.mean()["b"]) == 19.0
    thinned = posterior.thin(4)
    assert thinned.by_chain()["a.weight"].squeeze(2).tolist() == [[1, 5, 9], [11, 15, 19]]
    thinned.by_chain()["b"].zero_()
    assert float(posterior.mean()["b"]) == 19.0
    assert "2 chains of 10 draws of 2 weights" in repr(posterior)


def test_draws_take_the_number_that_was_saved(tmp_path: Path) -> None:
    posterior, other = numbered(3, 5), numbered(1, 1)
    other.load_state_dict(posterior.state_dict())
    assert torch.equal(other.by_chain()["b"], posterior.by_chain()["b"])
    save_file(unique_tensors(nn.ModuleDict({"q": posterior})), tmp_path / "draws")
    loaded = numbered(2, 2)
    put_tensors(nn.ModuleDict({"q": loaded}), get_tensors(tmp_path / "draws"), "file")
    assert torch.equal(loaded.by_chain()["a.weight"], posterior.by_chain()["a.weight"])
    disagreeing = {"q.draws.a/weight": torch.zeros(2, 3, 1), "q.draws.b": torch.zeros(2, 4)}
    with pytest.raises(LoadError, match="does not match"):
        put_tensors(nn.ModuleDict({"q": loaded}), disagreeing, "file")
    assert loaded.shape == (3, 5)


def test_a_posterior_without_draws_says_so() -> None:
    posterior = Empirical.without_draws({"a": torch.zeros(3)})
    assert posterior.shape == (1, 0)
    assert "no draws yet of 3 weights" in repr(posterior)
    for call in (posterior.mean, posterior.sample, lambda: posterior.thin(2), lambda: posterior.order(1, 0)):
        with pytest.raises(InputError, match="no posterior before fit"):
            call()


def test_bad_draws_raise() -> None:
    for draws in (
        {},
        {"a": torch.zeros(3)},
        {"a": torch.zeros(2, 0)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(3, 2)},
        [torch.zeros(2, 3)],
    ):
        with pytest.raises(InputError, match="draws"):
            Empirical(draws)  # type: ignore[arg-type]
    posterior = numbered(1, 4)
    with pytest.raises(InputError, match="every"):
        posterior.thin(0)
    with pytest.raises(InputError, match="this posterior is over"):
        posterior.replace({"c": torch.zeros(1, 4)})
