"""SegNet: sizes, the way of the maxima, dropout, and every method of inference on pixel classes."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import credo
from credo import architectures
from credo.architectures import SegNet
from credo.architectures.segnet import DecoderBlock, EncoderBlock
from credo.errors import InputError

VOID = 9


def count_dropout(module: nn.Module) -> int:
    return sum(isinstance(m, nn.Dropout) for m in module.modules())


@pytest.mark.parametrize("size", [(16, 16), (15, 20), (17, 31), (8, 9)])
@pytest.mark.parametrize("logit_noise", [False, True])
def test_output_has_the_height_and_width_of_the_image(size, logit_noise):
    net = SegNet(2, 5, (4, 6, 8), convolutions=2, logit_noise=logit_noise)
    assert net(torch.randn(2, 2, *size)).shape == (2, 10 if logit_noise else 5, *size)


def test_default_is_sized_for_120_by_160():
    net = SegNet().eval()
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 120, 160)).shape == (1, 11, 120, 160)


def test_build_from_json_description_gives_the_same_network():
    net = SegNet(1, 3, (4, 6), convolutions=1, dropout=0.2, dropout_blocks=1, logit_noise=True)
    again = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    again.load_state_dict(net.state_dict())
    x = torch.randn(2, 1, 9, 8)
    assert torch.equal(again.eval()(x), net.eval()(x))
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}


def test_unpooling_returns_every_maximum_to_its_pixel():
    """With identities for convolutions, encoder and decoder keep the maximum of each 2×2 block and erase the rest."""
    encoder, decoder = EncoderBlock(1, 1, 1, None), DecoderBlock(1, 1, 1, None)
    encoder.convolutions, decoder.convolutions = nn.Identity(), nn.Identity()
    x = torch.rand(1, 1, 5, 6, generator=torch.Generator().manual_seed(0))
    pooled, index = encoder(x)
    result = decoder(pooled, index, [5, 6])
    blocks = x[..., :4, :].unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2).amax(-1)
    is_maximum = x[..., :4, :] == blocks.repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(result[..., :4, :], torch.where(is_maximum, x[..., :4, :], 0.0))
    assert (result[..., 4, :] == 0).all()  # the odd row is in no block


@pytest.mark.parametrize(
    ("blocks", "dropout_blocks", "expected"), [(5, None, 3), (4, None, 2), (1, None, 1), (4, 4, 4), (4, 0, 0)]
)
def test_dropout_follows_the_innermost_blocks(blocks, dropout_blocks, expected):
    """The paper's network has it after the innermost three of its five encoder and decoder blocks."""
    net = SegNet(1, 2, (2,) * blocks, convolutions=1, dropout_blocks=dropout_blocks)
    outer = blocks - expected
    assert [count_dropout(block) for block in net.encoder] == [0] * outer + [1] * expected
    assert [count_dropout(block) for block in net.decoder] == [1] * expected + [0] * outer
    assert count_dropout(SegNet(1, 2, (2,) * blocks, convolutions=1, dropout=None)) == 0


def test_convolutions_of_the_default_have_the_widths_of_the_paper():
    net = SegNet(3, 11, (64, 128, 256, 512), convolutions=2)
    widths = [m.out_channels for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert widths == [64, 64, 128, 128, 256, 256, 512, 512, 512, 256, 256, 128, 128, 64, 64, 64, 11]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SegNet(widths=()), "at least one block"),
        (lambda: SegNet(widths=(4, 0)), r"widths\[1\] must be"),
        (lambda: SegNet(widths=(4, 4), dropout_blocks=3), "at most the number of blocks, 2, got 3"),
        (lambda: SegNet(convolutions=0), "convolutions must be"),
        (lambda: SegNet(widths=(4, 4))(torch.zeros(1, 3, 3, 8)), "an image of 3×8 cannot be halved 2 times"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()


METHODS = {
    "MC dropout": lambda net, likelihood: credo.MCDropout(net, likelihood),
    "MC dropout before every layer": lambda net, likelihood: credo.MCDropout(net, likelihood, p=0.1),
    "Bayes by Backprop": lambda net, likelihood: credo.BayesByBackprop(net, likelihood),
    "ensemble": lambda net, likelihood: credo.DeepEnsemble(net, members=2, base=credo.MAP, likelihood=likelihood),
}


@pytest.mark.parametrize("logit_noise", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_methods_learn_pixel_classes(method, logit_noise):
    """Void pixels, class weights and targets ``[B, H, W]`` go through fit, predict and save.

    A bright and a dark half can be told apart from the pixels themselves; half of them would be correct by chance.
    """
    generator = torch.Generator().manual_seed(0)
    bright = torch.rand(16, 1, 1, 8, generator=generator).repeat_interleave(8, 2) > 0.5
    x = bright.float() + 0.1 * torch.randn(16, 1, 8, 8, generator=generator)
    y = bright[:, 0].long()
    y[:, 0] = VOID
    likelihood = credo.Categorical(
        class_dim=1, ignore_index=VOID, weight=[1.0, 2.0], logit_noise=logit_noise, noise_samples=4
    )
    torch.manual_seed(0)
    net = SegNet(1, 2, (8, 8), convolutions=1, dropout=0.1, logit_noise=logit_noise)
    model = METHODS[method](net, likelihood)
    model.fit((x, y), epochs=15, lr=3e-2, batch_size=4, seed=0, progress=False)
    p = model.predict(x, samples=6, seed=0)
    assert p.mean.shape == (16, 2, 8, 8)
    assert p.epistemic.shape == p.aleatoric.shape == p.mode.shape == (16, 8, 8)
    assert p.log_prob(y).shape == (16,)
    torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic, rtol=0, atol=1e-5)
    assert (p.epistemic > 0).any()
    assert credo.metrics.accuracy(p, y) > 0.9
    torch.testing.assert_close(model.predict(x, samples=6, seed=0, batch_size=5).mean, p.mean)


def test_prediction_leaves_the_batch_norm_statistics(tmp_path):
    net = SegNet(1, 2, (4, 4), convolutions=1)
    model = credo.MCDropout(net, credo.Categorical(class_dim=1))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    p = model.predict(torch.randn(3, 1, 8, 8), samples=3, seed=0)
    assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())
    assert p.mutual_information.max() > 0
    model.save(tmp_path / "run")
    again = credo.load(tmp_path / "run")
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(again.predict(x, samples=3, seed=0).mean, model.predict(x, samples=3, seed=0).mean)
