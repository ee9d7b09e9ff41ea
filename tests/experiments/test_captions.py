"""``bayesian-captions``: which captions and words count as correct."""

from __future__ import annotations

import torch

from credo.datasets import captioned_scenes, load_digits
from credo.experiments.networks.captions import Described


def test_a_caption_is_correct_if_all_its_words_and_its_end_are():
    data = load_digits()
    scenes = captioned_scenes(data.x_test, data.y_test, 200, disturbance="rotation")
    three = scenes[scenes.captions[:, -1] >= 0][:1]
    two = scenes[scenes.captions[:, -1] < 0][:2]
    truth = torch.cat([three.captions, two.captions])
    emitted = truth >= 0
    tokens = truth.clamp(min=0)
    same = Described(three, tokens[:1], emitted[:1], {})
    assert same.exact.all()
    assert same.correct[same.emitted].all()
    assert int(same.about.sum()) == 4

    wrong_word = tokens[:1].clone()
    wrong_word[0, 1] = 0
    cut = tokens[:1].clone()  # a stop in place of the second "and"
    cut[0, 9:] = 0
    cut_emitted = torch.arange(15)[None] < 10
    for found, mask in ((wrong_word, emitted[:1]), (cut, cut_emitted)):
        described = Described(three, found, mask, {})
        assert not described.exact.any()
        assert int((~described.correct & mask).sum()) == 1

    longer = tokens[1:].clone()
    longer[0, 9:] = three.captions[0, 9:]  # "and" in place of the stop, and a third digit
    mask = emitted[1:].clone()
    mask[0] = True
    described = Described(two, longer, mask, {})
    assert described.exact.tolist() == [False, True]
    assert int((~described.correct & mask).sum()) == 6
