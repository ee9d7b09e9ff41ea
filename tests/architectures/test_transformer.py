"""Transformers: blocks against those of torch, what a step may see, positions, patches, and tied weights."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import credo
from credo import architectures
from credo.architectures import TransformerLanguageModel, VisionTransformer
from credo.architectures.transformer import TransformerBlock, _patches, _rotate, _rotation
from credo.errors import InputError, UnsupportedError

TOKENS = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def language_model(**options: object) -> TransformerLanguageModel:
    torch.manual_seed(0)
    return TransformerLanguageModel(9, 8, 2, 2, 12, 6, **options)  # type: ignore[arg-type]


def vision_transformer(**options: object) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(3, 2, 6, 2, 8, 2, 2, 12, **options)  # type: ignore[arg-type]


NETWORKS = {
    "rotary": (language_model, TOKENS),
    "learned": (lambda: language_model(positions="learned", tied=False, dropout=0.1), TOKENS),
    "class token": (vision_transformer, IMAGES),
    "mean": (lambda: vision_transformer(pooling="mean", dropout=0.1), IMAGES),
}


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_is_the_encoder_layer_of_torch_with_norms_first(causal):
    torch.manual_seed(0)
    block = TransformerBlock(8, 2, 12, None).double()
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
    )
    pairs = [
        (theirs.self_attn.in_proj_weight, block.query_key_value.weight),
        (theirs.self_attn.in_proj_bias, block.query_key_value.bias),
        (theirs.self_attn.out_proj.weight, block.attention[0].weight),
        (theirs.self_attn.out_proj.bias, block.attention[0].bias),
        (theirs.linear1.weight, block.feedforward[0].weight),
        (theirs.linear1.bias, block.feedforward[0].bias),
        (theirs.linear2.weight, block.feedforward[-1].weight),
        (theirs.linear2.bias, block.feedforward[-1].bias),
    ]
    with torch.no_grad():
        for target, source in pairs:
            target.copy_(source.normal_())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    torch.testing.assert_close(block(x, hidden=future), theirs(x, src_mask=future))


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_step_depends_on_the_steps_up_to_it(positions):
    net = language_model(positions=positions)
    other = TOKENS.clone()
    other[:, 3] = (other[:, 3] + 1) % 9
    difference = (net(other) - net(TOKENS)).abs().amax((0, 2))
    assert (difference[:3] == 0).all()
    assert (difference[3:] > 1e-6).all()
    torch.testing.assert_close(net(TOKENS[:, :2]), net(TOKENS)[:, :2])


def test_rotary_products_depend_on_the_distance():
    query, key = torch.randn(2, 1, 1, 1, 6, dtype=torch.float64).expand(2, 1, 1, 9, 6)
    rotation = _rotation(9, 6, query)
    scores = (_rotate(query, rotation) @ _rotate(key, rotation).mT)[0, 0]
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])
    assert scores[0].std() > 1e-2
    torch.testing.assert_close(_rotate(query, rotation).norm(dim=-1), query.norm(dim=-1))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_the_meta_device_gets_everything_from_the_state(name):
    """Nothing but parameters has to be computed again: no table of angles is left as memory without content."""
    make, x = NETWORKS[name]
    net = make().eval()
    with torch.device("meta"):
        twin = make()
    twin.to_empty(device="cpu").load_state_dict(net.state_dict())
    assert not list(twin.buffers())
    assert torch.equal(twin.eval()(x), net(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_angles_have_the_precision_of_the_network(dtype):
    """Those of half precision are computed in float32: in bfloat16 step 257 would be step 256."""
    exact = _rotation(300, 8, torch.empty(0, dtype=torch.float64))
    found = _rotation(300, 8, torch.empty(0, dtype=dtype))
    t, i = torch.meshgrid(torch.arange(300.0), torch.arange(4.0), indexing="ij")
    angle = t.double() * 10_000.0 ** (-i.double() / 4)
    torch.testing.assert_close(exact, torch.stack([angle.cos(), angle.sin()]), rtol=0, atol=1e-12)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=torch.finfo(dtype).eps)


def test_positions_make_the_order_of_tokens_and_patches_matter():
    torch.manual_seed(0)
    net = vision_transformer(pooling="mean").eval()
    order = torch.tensor([1, 0])
    swapped = IMAGES.unflatten(3, (3, 2))[:, :, :, [1, 0, 2]].flatten(3)
    assert not torch.allclose(net(swapped), net(IMAGES))
    nn.init.zeros_(net.positions.weight)
    torch.testing.assert_close(net(swapped), net(IMAGES))
    for positions in ("rotary", "learned"):
        model = language_model(positions=positions)
        late = model(TOKENS[:, [*order, 2, 3, 4, 5]])[:, -1]
        assert not torch.allclose(late, model(TOKENS)[:, -1])


def test_the_embedding_of_patches_is_a_strided_convolution():
    net = vision_transformer()
    kernel = net.embedding.weight.view(8, 2, 2, 2)
    expected = nn.functional.conv2d(IMAGES, kernel, net.embedding.bias, stride=2).flatten(2).mT
    torch.testing.assert_close(net.embedding(_patches(IMAGES, 2)), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_rebuilt_and_initialized_anew(name):
    build, x = NETWORKS[name]
    net = build().eval()
    assert net(x).shape == ((4, 6, 9) if x is TOKENS else (3, 3))
    twin = architectures.build(**json.loads(json.dumps(architectures.describe(net))))
    twin.load_state_dict(net.state_dict())
    assert torch.equal(twin.eval()(x), net(x))
    covered = {id(p) for m in net.modules() if hasattr(m, "reset_parameters") for p in m.parameters(recurse=False)}
    assert covered == {id(p) for p in net.parameters()}
    assert sum(isinstance(m, nn.Dropout) for m in net.modules()) == (5 if net.config["dropout"] else 0)


def test_a_tied_weight_counts_once_in_the_kl():
    model = credo.BayesByBackprop(language_model(), credo.Categorical(), credo.Normal(0.0, 0.5), initial_scale=0.02)
    names = model.posterior.names()
    assert names.count("embedding.weight") == 1
    assert "decoder.weight" not in names
    divergences = [
        kl_divergence(Normal(mean, model.posterior.scale()[name]), Normal(0.0, 0.5)).sum()
        for name, mean in model.posterior.mean().items()
    ]
    torch.testing.assert_close(model.posterior.kl(model.prior), torch.stack(divergences).sum())
    untied = credo.BayesByBackprop(language_model(tied=False), credo.Categorical())
    assert {*untied.posterior.names()} - {*names} == {"decoder.weight"}


def test_a_draw_of_a_tied_weight_is_the_same_in_both_places():
    """A sample that is zero outside the embedding and the output layer leaves the logits norm(e_t)·Eᵀ."""
    net = language_model()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.startswith("blocks.") and not name.endswith("norm"):
                parameter.zero_()
    model = credo.BayesByBackprop(net, credo.Categorical(), bayesian="embedding", initial_scale=0.3).eval()
    drawn = model.posterior.sample(3, seed=0)["embedding.weight"]
    vectors = drawn[:, TOKENS]
    logits = nn.functional.layer_norm(vectors, (8,)) @ drawn[:, None].mT + net.decoder.bias
    found = model.predict(TOKENS, samples=3, seed=0)
    torch.testing.assert_close(found.draws, logits.softmax(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [language_model, vision_transformer])
def test_flipout_on_tokens_has_the_moments_of_drawn_weights(build):
    """The log likelihood of one row over 100 draws: means and variances agree within 4 standard errors.

    The perturbation of a row under Flipout, a Gaussian one with random signs, has the distribution of drawn weights.
    The standard error of a variance v of a nearly Gaussian quantity is v√(2/(S − 1)).
    """
    x = TOKENS[:1] if build is language_model else IMAGES[:1]
    y = TOKENS[1:2] if build is language_model else torch.tensor([1])
    draws, found = 100, {}
    for estimator in ("weight", "flipout"):
        torch.manual_seed(0)
        model = credo.BayesByBackprop(build(), credo.Categorical(), initial_scale=0.05, estimator=estimator).train()
        with torch.no_grad():
            found[estimator] = torch.stack([model.nll(x, y) for _ in range(draws)])
    by_weight, by_flipout = found.values()
    error = ((by_weight.var() + by_flipout.var()) / draws).sqrt()
    assert (by_weight.mean() - by_flipout.mean()).abs() < 4.0 * error
    spread = (by_weight.var().square() + by_flipout.var().square()).sqrt() * math.sqrt(2.0 / (draws - 1))
    assert (by_weight.var() - by_flipout.var()).abs() < 4.0 * spread


def test_moments_are_refused_by_name_and_exact_for_a_bayesian_output_layer():
    for build, x, layer in ((language_model, TOKENS, "embedding"), (vision_transformer, IMAGES, "VisionTransformer")):
        with pytest.raises(UnsupportedError, match=f"moments cannot be propagated through .*{layer}.*use samples=100"):
            credo.BayesByBackprop(build(), credo.Categorical()).predict(x, samples="moments")
    net = language_model(tied=False)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.1), bayesian="decoder", initial_scale=0.1)
    tokens = TOKENS[:, :1]
    p = model.predict(tokens, samples="moments")
    features: list[torch.Tensor] = []
    net.norm.register_forward_hook(lambda module, args, output: features.append(output))
    torch.testing.assert_close(p.mean, net(tokens))
    scale = {name: value.detach() for name, value in model.posterior.scale().items()}
    variance = features[0].square() @ scale["decoder.weight"].square().mT + scale["decoder.bias"].square()
    torch.testing.assert_close(p.epistemic, variance)


def test_the_last_layer_of_tied_weights_includes_the_embedding():
    x, y = TOKENS, TOKENS.roll(-1, 1)
    model = credo.Laplace(language_model(), credo.Categorical(), structure="diag", parameters="last_layer")
    assert model.fit((x, y), epochs=0).posterior.names() == ["embedding.weight", "decoder.bias"]


@pytest.mark.parametrize("name", NETWORKS)
def test_training_learns_and_evaluation_mode_drops_nothing(name):
    """Four sequences, or three images, seen 40 times; by chance 1/9 of the tokens or 1/3 of the images are right."""
    build, x = NETWORKS[name]
    y = (x + 1) % 9 if x is TOKENS else torch.arange(3)
    net = build()
    model = credo.MAP(net, credo.Categorical()).fit((x, y), epochs=40, lr=1e-2, batch_size=4, seed=0, progress=False)
    assert (model.predict(x).mode == y).double().mean() > 0.8
    rate = net.config["dropout"]
    twin = copy.deepcopy(net)
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.9
    assert torch.equal(twin.eval()(x), net.eval()(x))
    if rate:
        assert not torch.equal(twin.train()(x), net(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransformerLanguageModel(0), "vocabulary must be"),
        (lambda: TransformerLanguageModel(5, width=10, heads=4), "width must be a multiple of heads, got 10 and 4"),
        (lambda: TransformerLanguageModel(5, width=6, heads=2), "must be even with rotary positions, got 3"),
        (lambda: TransformerLanguageModel(5, positions="sine"), "unknown positions 'sine'"),
        (lambda: TransformerLanguageModel(5, layers=0), "layers must be"),
        (lambda: TransformerLanguageModel(5, feedforward=0), "feedforward must be"),
        (lambda: language_model()(torch.zeros(1, 7, dtype=torch.int64)), "at most context=6 steps, got 7"),
        (lambda: language_model()(torch.zeros(3).long()), r"int64 indices \[B, T\], got torch.int64 of \[3\]"),
        (lambda: language_model()([[1, 2]]), "in a tensor, got list"),
        (lambda: VisionTransformer(size=28, patch=5), "size must be a multiple of patch, got 28 and 5"),
        (lambda: VisionTransformer(pooling="max"), "unknown pooling 'max'"),
        (lambda: vision_transformer()(torch.zeros(1, 2, 5, 6)), r"images must have shape \[N, 2, 6, 6\]"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(InputError, match=message):
        make()
