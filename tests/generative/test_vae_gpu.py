"""The VAE on a GPU, with the training loop and in a captured graph; skipped without a GPU."""

from __future__ import annotations

import pytest
import torch

import credo
from credo.architectures import DenseDecoder
from credo.generative import VAE

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def images() -> torch.Tensor:
    return torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))


MODELS = {
    "dense": lambda: VAE("dense", latent=2, shape=(1, 8, 8), hidden=(16,)),
    "convolutional": lambda: VAE("convolutional", latent=2, shape=(1, 8, 8), hidden=(4, 8)),
    "iwae": lambda: VAE("dense", latent=2, shape=(1, 8, 8), hidden=(16,), objective="iwae", samples=5),
    "gaussian": lambda: VAE("dense", latent=2, shape=(1, 8, 8), hidden=(16,), likelihood=credo.Gaussian(), warmup=3),
    "bayesian": lambda: VAE(
        "dense",
        credo.BayesByBackprop(DenseDecoder(2, (1, 8, 8), (16,)), credo.Bernoulli()),
        latent=2,
        shape=(1, 8, 8),
        hidden=(16,),
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_model_trained_on_a_gpu_loads_on_the_cpu(make, tmp_path):
    torch.manual_seed(0)
    model = make().fit(images(), epochs=2, batch_size=20, device="cuda", validation=images(), seed=0)
    state = torch.cuda.get_rng_state()
    assert model.elbo(images(), seed=1).device.type == "cuda"
    assert torch.equal(model.log_likelihood(images(), 20, seed=1), model.log_likelihood(images(), 20, seed=1))
    assert torch.equal(state, torch.cuda.get_rng_state())
    model.save(tmp_path / "run")
    here = credo.load(tmp_path / "run")
    torch.testing.assert_close(here.manifold(4), model.manifold(4).cpu(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(here.encode(images()).mean, model.encode(images()).mean.cpu(), rtol=1e-3, atol=1e-4)


def test_bad_values_of_a_loader_raise_before_the_gpu():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(255 * images()), batch_size=20)
    with pytest.raises(credo.errors.InputError, match="between 0 and 1"):
        MODELS["dense"]().fit(loader, device="cuda")


@pytest.mark.parametrize("make", [MODELS["dense"], MODELS["iwae"], MODELS["gaussian"]])
def test_loss_can_be_captured_in_a_graph(make):
    """Every replay draws new noise, moves the weights, and counts for the warm-up."""
    torch.manual_seed(0)
    model, x = make().cuda(), images().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
    loss = torch.zeros((), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        now = model.loss(x)
        now.backward()
        optimizer.step()
        loss.copy_(now.detach())

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    losses = []
    for _ in range(50):
        graph.replay()
        losses.append(float(loss))
    assert len(set(losses)) == 50
    assert sum(losses[-5:]) < sum(losses[:5])
    assert int(model._warmup.steps) == (51 if model._has_warmup else 0)
