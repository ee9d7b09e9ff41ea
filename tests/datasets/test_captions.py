"""Captioned scenes: the words are true of the image, and a disturbance changes one digit."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from credo.datasets import captioned_scenes
from credo.datasets.captions import CAPTION_WORDS, DISTURBANCES, PADDING
from credo.errors import InputError

SIDE = 48
GRAMMAR = re.compile(
    r"(small|large) (zero|one|two|three|four|five|six|seven|eight|nine) (top|bottom) (left|right)(?: and |$)"
)


@pytest.fixture
def digits() -> tuple[Tensor, Tensor]:
    """A square of 10×10 in the middle of 28×28, whose gray value is its label: (label + 1)/10."""
    images = torch.zeros(10, 1, 28, 28)
    images[:, :, 9:19, 9:19] = (torch.arange(10.0) + 1).view(-1, 1, 1, 1) / 10
    return images, torch.arange(10)


def phrases(caption: str) -> list[tuple[str, str, str, str]]:
    found = GRAMMAR.findall(caption)
    assert "".join(match.group(0) for match in GRAMMAR.finditer(caption)) == caption
    return found


def quarter(image: Tensor, row: str, column: str) -> Tensor:
    half = SIDE // 2
    return image[half * (row == "bottom") :, half * (column == "right") :][:half, :half]


def test_captions_are_true_of_their_images(digits):
    """Mass and gray value in a quarter are those of the digit that the caption has there.

    Interpolation keeps the gray value v inside the square. Its 100 pixels have the mass 100·v·(48·e/28)² in a picture
    of side e·48, from which e follows, up to a few percent by which interpolation changes the mass: at most 0.38 is
    small, at least 0.47 large.
    """
    scenes = captioned_scenes(*digits, 60, seed=1)
    for image, caption in zip(scenes.images[:, 0], scenes.captions, strict=True):
        found = phrases(scenes.describe(caption))
        assert len(found) in (2, 3)
        places = [(row, column) for _, _, row, column in found]
        assert places == sorted(set(places), key=lambda p: (p[0] == "bottom", p[1] == "right"))
        for size, name, row, column in found:
            part = quarter(image, row, column).double()
            value = (CAPTION_WORDS.index(name) - CAPTION_WORDS.index("zero") + 1) / 10
            assert float(part.max()) == pytest.approx(value)
            extent = float((part.sum() / (100 * value)).sqrt()) * 28 / SIDE
            assert (0.27 < extent < 0.425) if size == "small" else (0.425 < extent < 0.58)
        empty = {(r, c) for r in ("top", "bottom") for c in ("left", "right")} - set(places)
        assert all(float(quarter(image, *place).max()) < 1e-6 for place in empty)


@pytest.mark.parametrize("disturbance", DISTURBANCES[1:])
def test_a_disturbance_changes_the_quarter_of_one_digit_and_no_word(digits, disturbance):
    """Squares have corners, so that a rotation by 60° to 120° changes them unless it is by 90°."""
    plain = captioned_scenes(*digits, 40, seed=2)
    scenes = captioned_scenes(*digits, 40, seed=2, disturbance=disturbance)
    assert (plain.disturbed == -1).all()
    assert not plain.about_disturbed.any()
    assert torch.equal(scenes.captions, plain.captions)
    changed = 0
    for i, which in enumerate(scenes.disturbed.tolist()):
        found = phrases(scenes.describe(scenes.captions[i]))
        for k, (_, _, row, column) in enumerate(found):
            before, after = (quarter(s.images[i, 0], row, column) for s in (plain, scenes))
            if k == which:
                changed += not torch.allclose(before, after, atol=1e-3)
            else:
                torch.testing.assert_close(before, after, rtol=0, atol=1e-6)
        words = [CAPTION_WORDS[token] for token in scenes.captions[i][scenes.about_disturbed[i]].tolist()]
        assert tuple(words) == found[which]
    assert changed >= 38


def test_inputs_are_the_words_before(digits):
    scenes = captioned_scenes(*digits, 30, seed=3)
    images, before = scenes.inputs
    assert images is scenes.images
    assert (before[:, 0] == 0).all()
    kept = scenes.captions[:, 1:] != PADDING
    assert torch.equal(before[:, 1:][kept], scenes.captions[:, :-1][kept])
    assert before.min() == 0
    part = scenes[4:7]
    assert len(part) == 3
    assert torch.equal(part.captions, scenes.captions[4:7])


def test_seed_determines_the_scenes_and_numbers_of_digits_vary(digits):
    state = torch.get_rng_state()
    first, again, other = (captioned_scenes(*digits, 3000, seed=seed, side=16) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.captions, other.captions)
    three = float((first.captions[:, -1] != PADDING).double().mean())
    assert abs(three - 0.5) < 4 * (0.25 / 3000) ** 0.5  # four standard errors


@pytest.mark.parametrize(
    ("options", "message"),
    [({"n": 0}, "n must be"), ({"side": 8}, "side must be"), ({"disturbance": "fog"}, "unknown disturbance 'fog'")],
)
def test_invalid_arguments_raise(digits, options, message):
    with pytest.raises(InputError, match=message):
        captioned_scenes(*digits, **{"n": 2, **options})
    with pytest.raises(InputError, match=r"digits must have shape \[M, 1, h, w\]"):
        captioned_scenes(digits[0][:, 0], digits[1], 2)
