"""Runs on disk: complete, the same after loading, written whole or not at all, and safe to read from strangers."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import credo
from credo import _files, _tensors
from credo.architectures import MLP, LeNet, ResNet
from credo.errors import CredoError, InputError, LoadError
from credo.methods import Method
from credo.seeding import seeded

CPU = torch.device("cpu")


def mlp(seed: int = 0) -> nn.Sequential:
    with seeded(seed, CPU):
        return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 1))


class Tied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed by the way it is used."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed, CPU):
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).sum(-1, keepdim=True)


def pruned(net: nn.Module) -> Method:
    model = credo.BayesByBackprop(net, credo.Gaussian(0.2))
    model.prune(0.4)
    return model


Build = Callable[[nn.Module], Method]
CASES: dict[str, tuple[Callable[[int], nn.Module], Build]] = {
    "bbb": (mlp, lambda net: credo.BayesByBackprop(net, credo.Gaussian("learned"))),
    "bbb-mixture": (mlp, lambda net: credo.BayesByBackprop(net, credo.Gaussian(0.2), credo.ScaleMixture(0.3))),
    "bbb-by-name": (
        mlp,
        lambda net: credo.BayesByBackprop(
            net, credo.StudentT(), {"*.weight": credo.Normal(0.0, 2.0), "*": credo.LaplacePrior(0.0, 0.5)}
        ),
    ),
    "bbb-some": (
        mlp,
        lambda net: credo.BayesByBackprop(
            net, credo.Gaussian(0.2), bayesian=["4", "1.weight"], estimator="flipout", temperature=0.5, kl_warmup=7
        ),
    ),
    "bbb-pruned": (mlp, pruned),
    "bbb-tied": (Tied, lambda net: credo.BayesByBackprop(net, credo.Gaussian(0.2))),
    "dropout": (mlp, lambda net: credo.MCDropout(net, credo.Gaussian(0.2), length_scale=0.1)),
    "dropout-p": (mlp, lambda net: credo.MCDropout(net, credo.Gaussian(0.2), p=0.2, weight_noise=0.01)),
    "dropout-connections": (mlp, lambda net: credo.MCDropout(net, credo.Gaussian(0.2), p=0.2, connections=True)),
    "dropout-by-name": (mlp, lambda net: credo.MCDropout(net, credo.Gaussian(0.2), p={"0.*": 0.1, "*": 0.2})),
    "map": (mlp, lambda net: credo.MAP(net, credo.Gaussian([0.2]))),
    "ensemble": (mlp, lambda net: credo.DeepEnsemble(net, 2, likelihood=credo.Gaussian())),
    "ensemble-bbb": (mlp, lambda net: credo.DeepEnsemble(net, 2, credo.BayesByBackprop, prior=credo.Normal(0.0, 2.0))),
}
every_case = pytest.mark.parametrize(("make_net", "build"), CASES.values(), ids=CASES)


def table(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    with seeded(7, CPU):
        x = torch.randn(12, 2, dtype=dtype)
        return x, x.sum(1, keepdim=True).sin()


def fitted(make_net: Callable[[int], nn.Module] = mlp, build: Build = CASES["bbb"][1]) -> Method:
    return build(make_net(0)).fit(table(), epochs=2, batch_size=5, lr=1e-2, seed=0)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def predictions(model: Method, x: Tensor) -> Tensor:
    return model.predict(x, samples=6, seed=5).draws


@every_case
def test_trap_23_a_reloaded_model_predicts_the_same(make_net, build, tmp_path):
    model = fitted(make_net, build)
    model.save(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["card.json", "model.safetensors"]
    loaded = credo.load(tmp_path / "run", net=make_net(1))
    assert type(loaded) is type(model)
    assert same(state(loaded), state(model))
    x = table()[0]
    assert torch.equal(predictions(loaded, x), predictions(model, x))
    assert loaded._get_config() == model._get_config()
    assert loaded.history == model.history


@every_case
def test_trap_15_saving_and_loading_leave_the_random_state(make_net, build, tmp_path):
    model, net, before = fitted(make_net, build), make_net(1), torch.get_rng_state()
    model.save(tmp_path / "run")
    credo.load(tmp_path / "run", net=net)
    assert torch.equal(torch.get_rng_state(), before)


@every_case
def test_a_reloaded_model_can_be_trained_on(make_net, build, tmp_path):
    model = fitted(make_net, build)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=make_net(1))
    options = {"epochs": 1, "batch_size": 5, "seed": 1}
    assert same(state(loaded.fit(table(), **options)), state(model.fit(table(), **options)))


@pytest.mark.parametrize("name", ["bbb", "map", "dropout-p", "ensemble"])
def test_float64_models_are_saved_as_they_are(name, tmp_path):
    make_net, build = CASES[name]
    model = build(make_net(0)).double().fit(table(torch.float64), epochs=1, seed=0)
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=make_net(1).double())
    assert same(state(loaded), state(model))
    x = table(torch.float64)[0]
    assert torch.equal(predictions(loaded, x), predictions(model, x))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (MLP(2, (5,), 3, "tanh", dropout=0.1), (4, 2)),
        (LeNet(classes=3, size=8), (4, 1, 8, 8)),
        (ResNet(classes=3, widths=(4, 4)), (4, 1, 6, 6)),
    ],
    ids=["mlp", "lenet", "resnet"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["single", "ensemble"])
def test_networks_of_the_library_are_rebuilt(net, shape, dtype, kind, tmp_path):
    net = copy.deepcopy(net).to(dtype)
    single = kind == "single"
    model = credo.BayesByBackprop(net, credo.Categorical()) if single else credo.DeepEnsemble(net, 2)
    x, y = torch.ones(shape, dtype=dtype), torch.arange(shape[0]) % 3
    model.fit((x, y), epochs=1, seed=0).save(tmp_path / "run")
    assert torch.equal(predictions(credo.load(tmp_path / "run"), x), predictions(model, x))


def test_trap_19_frozen_parameters_need_a_frozen_network(tmp_path):
    net = mlp()
    net[0].requires_grad_(False)
    model = credo.BayesByBackprop(net, credo.Gaussian(0.2))
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match="with the same parameters frozen"):
        credo.load(tmp_path / "run", net=mlp(1))
    again = mlp(1)
    again[0].requires_grad_(False)
    assert same(state(credo.load(tmp_path / "run", net=again)), state(model))


def test_custom_prior_must_be_passed(tmp_path):
    prior = torch.distributions.StudentT(4.0)
    model = fitted(build=lambda net: credo.BayesByBackprop(net, credo.Gaussian(0.2), prior))
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match=r"pass it: credo.load\(path, net, prior=...\)"):
        credo.load(tmp_path / "run", net=mlp(1))
    loaded = credo.load(tmp_path / "run", net=mlp(1), prior=prior)
    assert loaded.prior is prior
    assert same(state(loaded), state(model))


def test_custom_forward_is_passed_again(tmp_path):
    def forward(net: nn.Module, x: Tensor) -> Tensor:
        return -net(x)

    model = fitted(build=lambda net: credo.MAP(net, credo.Gaussian(0.2), forward=forward))
    model.save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=mlp(1), forward=forward)
    x = table()[0]
    assert torch.equal(predictions(loaded, x), predictions(model, x))


def test_loading_returns_a_model_ready_to_predict_and_to_train(tmp_path):
    fitted().save(tmp_path / "run")
    loaded = credo.load(tmp_path / "run", net=mlp(1))
    assert not loaded.training
    assert loaded.n_data == 12
    assert loaded.loss(*table()).requires_grad


@every_case
def test_loading_never_unpickles(make_net, build, tmp_path, monkeypatch):
    fitted(make_net, build).save(tmp_path / "run")
    net = make_net(1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("unpickled")

    class Refusing(pickle.Unpickler):
        def load(self) -> Any:
            return refuse()

    for module in (pickle, torch.serialization.pickle):
        monkeypatch.setattr(module, "Unpickler", Refusing)
        monkeypatch.setattr(module, "load", refuse)
        monkeypatch.setattr(module, "loads", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    credo.load(tmp_path / "run", net=net)


def test_card_is_plain_json_without_numbers_json_does_not_have(tmp_path):
    model = fitted()
    model.history[0]["nll"] = float("nan")
    model.history[0]["kl"] = np.float32(2.5)
    model.save(tmp_path / "run")

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    card = json.loads((tmp_path / "run" / "card.json").read_text(), parse_constant=refuse)
    assert card["method"] == "BayesByBackprop"
    assert card["training"]["history"][0] | {"nll": None, "kl": 2.5} == card["training"]["history"][0]
    assert set(card["versions"]) == {"credo", "torch", "python"}


def test_settings_that_json_cannot_hold_are_named(tmp_path):
    model = fitted()
    model._bayesian = [object()]
    with pytest.raises(InputError, match="cannot be written as JSON"):
        model.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_an_earlier_run(tmp_path):
    fitted().save(tmp_path / "run")
    fitted(build=CASES["map"][1]).save(tmp_path / "run")
    assert isinstance(credo.load(tmp_path / "run", net=mlp(1)), credo.MAP)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_saving_makes_the_folders_above(tmp_path):
    fitted().save(str(tmp_path / "a" / "b" / "run") + "/")
    assert (tmp_path / "a" / "b" / "run" / "card.json").exists()


def test_saving_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fitted().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "card.json").exists()


@pytest.mark.parametrize("kind", ["file", "folder with other files", "below a file"])
def test_saving_refuses_to_overwrite_what_it_did_not_write(kind, tmp_path):
    target = tmp_path / "run"
    if kind == "folder with other files":
        target.mkdir()
        (target / "thesis.tex").write_text("years of work")
    else:
        target.write_text("years of work")
    path = target / "run" if kind == "below a file" else target
    with pytest.raises(InputError, match=r"holds other things|cannot be written"):
        fitted().save(path)
    assert "years of work" in (target / "thesis.tex" if target.is_dir() else target).read_text()
    assert len(list(tmp_path.iterdir())) == 1


def _full_disk(path: Path, content: bytes) -> None:
    if path.name == "card.json":
        path.write_bytes(content[:10])
        raise OSError(28, "No space left on device")
    path.write_bytes(content)


def _cut_off_rename(self: Path, target: Path) -> Path:
    if self.name.startswith(".run.credo-") and self.name != ".run.credo-previous":
        raise OSError(5, "Input/output error")
    return Path(shutil.move(self, target))


@pytest.mark.parametrize(
    ("owner", "name", "failing"),
    [(_files, "_write_file", _full_disk), (Path, "rename", _cut_off_rename)],
    ids=["full disk", "failing rename"],
)
def test_an_interrupted_save_leaves_the_old_run(owner, name, failing, tmp_path, monkeypatch):
    old = fitted()
    old.save(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        with pytest.raises(CredoError, match="cannot be written"):
            fitted(build=CASES["map"][1]).save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert same(state(credo.load(tmp_path / "run", net=mlp(1))), state(old))


@pytest.mark.parametrize("then", ["load", "save"])
def test_a_save_killed_between_its_two_renames_is_undone(then, tmp_path):
    """Whoever is killed there leaves the old run under another name; loading and saving find it."""
    model = fitted()
    model.save(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / ".run.credo-previous")
    if then == "save":
        model.save(tmp_path / "run")
    assert same(state(credo.load(tmp_path / "run", net=mlp(1))), state(model))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.fixture(scope="module")
def good_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "run"
    fitted(build=CASES["bbb"][1]).save(path)
    return path


@pytest.fixture(scope="module")
def ensemble_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ensemble") / "run"
    credo.DeepEnsemble(MLP(2, (3,)), 2, likelihood=credo.Gaussian(0.2)).fit(table(), epochs=1, seed=0).save(path)
    return path


@pytest.fixture
def run(good_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good_run, tmp_path / "run"))


def refuses(run: Path, match: str | None = None, net: Any = mlp) -> None:
    """Loading raises one LoadError with a sentence, and the network that was passed is what it was."""
    passed = net(1) if callable(net) else net
    before = state(passed) if isinstance(passed, nn.Module) else {}
    flags = [module.training for module in passed.modules()] if isinstance(passed, nn.Module) else []
    with pytest.raises(LoadError, match=match) as caught:
        credo.load(run, net=passed)
    message = str(caught.value)
    assert 20 < len(message) < 1000
    assert "\n" not in message
    if isinstance(passed, nn.Module):
        assert same(state(passed), before)
        assert [module.training for module in passed.modules()] == flags


def edit(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    card = json.loads((run / "card.json").read_text())
    change(card)
    (run / "card.json").write_text(json.dumps(card))


def offsets(size: int) -> Iterator[int]:
    """Where to cut a file: all over its header, and at 40 places of the rest."""
    yield from range(min(size, 64))
    yield from range(64, size, max(1, size // 40))


def test_truncated_tensors_are_refused_wherever_they_end(run):
    content = (run / "model.safetensors").read_bytes()
    for size in offsets(len(content)):
        (run / "model.safetensors").write_bytes(content[:size])
        refuses(run, "truncated or not a safetensors file")


def test_truncated_cards_are_refused_wherever_they_end(run):
    content = (run / "card.json").read_bytes()
    for size in offsets(len(content)):
        (run / "card.json").write_bytes(content[:size])
        refuses(run, "damaged or not JSON")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 10_000,
        b"[1, 2]",
        b"null",
        b'"credo-run"',
        b"{}",
        b'{"format": ["credo-run"], "format_version": 1}',
    ],
    ids=["empty", "zeros", "not utf-8", "deep", "deep objects", "huge number", "list", "null", "string", "no", "type"],
)
def test_garbage_in_place_of_a_card_is_refused(run, content):
    (run / "card.json").write_bytes(content)
    refuses(run)


def test_a_huge_card_is_not_read(run):
    with (run / "card.json").open("r+b") as file:
        file.truncate(2**40)  # a sparse file
    refuses(run, "too large")


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"\xff" * 64, b'{"a": 1}', b"PK\x03\x04" * 20])
def test_garbage_in_place_of_tensors_is_refused(run, content):
    (run / "model.safetensors").write_bytes(content)
    refuses(run, "truncated or not a safetensors file")


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(card: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            card = card[key]
        card[last] = to

    return change


HOSTILE_CARDS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "foreign format": (_set("format", to="pytorch"), "not the card of a credo run"),
    "later version": (_set("format_version", to=2), "has format version 2; credo .* reads 1"),
    "odd version": (_set("format_version", to=[[1] * 1000]), "has format version"),
    "misspelled method": (_set("method", to="BayesByBackprob"), "did you mean 'BayesByBackprop'"),
    "endless method": (_set("method", to="x" * 10**6), "unknown method in the card"),
    "method of a wrong type": (_set("method", to=["MAP"]), "unknown method in the card"),
    "no config": (lambda card: card.pop("config"), "does not describe how its method was built"),
    "list config": (_set("config", to=[1]), "does not describe how its method was built"),
    "no history": (_set("training", to=None), "does not hold the history"),
    "history of numbers": (_set("training", "history", to=[1, 2]), "does not hold the history"),
    "unexpected key": (_set("config", "exec", to="import os"), "unexpected keyword argument 'exec'"),
    "key of the constructor": (_set("config", "net", to=3), "cannot be built"),
    "forward in the card": (_set("config", "forward", to="os.system"), "does not describe"),
    "samples as text": (_set("config", "samples", to="x"), "samples must be an integer of at least 1, got 'x'"),
    "negative samples": (_set("config", "samples", to=-3), "samples must be an integer of at least 1, got -3"),
    "patterns as number": (_set("config", "bayesian", to=3), "cannot be built"),
    "patterns of numbers": (_set("config", "bayesian", to=[3]), "cannot be built"),
    "pattern of nothing": (_set("config", "bayesian", to="head"), "unknown parameter or module pattern 'head'"),
    "negative temperature": (_set("config", "temperature", to=-1.0), "temperature must be a positive number"),
    "temperature as text": (_set("config", "temperature", to="hot"), "cannot be built"),
    "endless warm-up": (_set("config", "kl_warmup", to=1e400), "Infinity is no JSON"),
    "unknown estimator": (_set("config", "estimator", to="flip"), "did you mean 'flipout'"),
    "estimator of a wrong type": (_set("config", "estimator", to={}), "cannot be built"),
    "unknown likelihood": (_set("config", "likelihood", "name", to="Gaus"), "unknown likelihood 'Gaus'"),
    "likelihood as number": (_set("config", "likelihood", to=3), "likelihood must be a credo likelihood"),
    "negative noise": (_set("config", "likelihood", "noise", to=-1.0), "noise must be a positive number"),
    "enormous noise": (_set("config", "likelihood", "outputs", to=10**12), "holds a size of 1e\\+12"),
    "unknown prior": (_set("config", "prior", to={"name": "os.system"}), "unknown prior 'os.system'"),
    "endless prior": (_set("config", "prior", to={"name": "x" * 10**6}), "cannot be built: unknown prior"),
    "prior as text": (_set("config", "prior", to="Normal"), "prior must be a torch Distribution"),
    "negative prior scale": (_set("config", "prior", "scale", to=-1.0), "scale must be positive"),
    "missing prior": (_set("config", "prior", to=None), "its prior could not be described in JSON"),
    "another method": (_set("method", to="MCDropout"), "cannot be built"),
    "an ensemble": (_set("method", to="DeepEnsemble"), "has None members, but model.safetensors holds 0"),
}


@pytest.mark.parametrize(("change", "match"), HOSTILE_CARDS.values(), ids=HOSTILE_CARDS)
def test_hostile_card_is_refused(run, change, match):
    edit(run, change)
    refuses(run, match)


def _rebuilt(to: Any) -> Callable[[dict[str, Any]], None]:
    return _set("network", "architecture", to=to)


HOSTILE_ENSEMBLES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a billion members": (_set("config", "members", to=10**9), "has 1000000000 members, but .* holds 2"),
    "no members": (_set("config", "members", to=0), "has 0 members"),
    "negative members": (_set("config", "members", to=-2), "has -2 members"),
    "members as text": (_set("config", "members", to="2"), "has '2' members"),
    "unknown base": (_set("config", "base", to="MAPP"), "unknown method in the card 'MAPP'"),
    "itself as base": (_set("config", "base", to="DeepEnsemble"), "DeepEnsemble cannot be the base of an ensemble"),
    "member as number": (_set("config", "member", to=3), "cannot be built"),
    "unexpected key": (_set("config", "evil", to=3), "settings DeepEnsemble does not have: evil"),
    "enormous noise": (_set("config", "member", "likelihood", "outputs", to=10**12), "holds a size"),
    "no recipe": (lambda card: card["network"].pop("architecture"), r"pass one to .*: credo.load\(path, net=...\)"),
    "no network": (_set("network", to=None), r"credo.load\(path, net=...\)"),
    "recipe as text": (_rebuilt("mlp"), r"credo.load\(path, net=...\)"),
    "empty recipe": (_rebuilt({}), "cannot be built"),
    "unknown recipe": (_rebuilt({"name": "mpl", "config": {}}), "did you mean 'mlp'"),
    "recipe of a wrong type": (_rebuilt({"name": [], "config": 3}), "cannot be built"),
    "unexpected size": (_rebuilt({"name": "mlp", "config": {"in_features": 2, "depth": 3}}), "cannot be built"),
    "enormous layer": (_rebuilt({"name": "mlp", "config": {"in_features": 10**9}}), "holds a size of 1e\\+09"),
    "enormous depth": (_rebuilt({"name": "resnet", "config": {"blocks": 10**9}}), "holds a size"),
    "enormous product": (
        _rebuilt({"name": "mlp", "config": {"in_features": 4000, "hidden": [4000] * 1000}}),
        "model.safetensors is too small for it",
    ),
    "endless depth": (
        _rebuilt({"name": "mlp", "config": {"in_features": 1, "hidden": [1] * 100_000}}),
        "holds more than 4,096 settings",
    ),
    "negative layer": (_rebuilt({"name": "mlp", "config": {"in_features": -1}}), "in_features must be"),
    "another layer": (_rebuilt({"name": "mlp", "config": {"in_features": 2, "hidden": [2]}}), "does not match"),
}


@pytest.mark.parametrize(("change", "match"), HOSTILE_ENSEMBLES.values(), ids=HOSTILE_ENSEMBLES)
def test_hostile_card_of_an_ensemble_is_refused(ensemble_run, change, match, tmp_path):
    run = Path(shutil.copytree(ensemble_run, tmp_path / "run"))
    edit(run, change)
    refuses(run, match, net=None)


def _with_tensors(run: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Change the tensors, and the card so that it still is theirs."""
    tensors = load_file(run / "model.safetensors")
    change(tensors)
    save_file(tensors, run / "model.safetensors")
    edit(run, _set("tensors", to=_tensors.digest((run / "model.safetensors").read_bytes())))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: t.pop("net.0.weight"), "lacks net.0.weight"),
        (lambda t: t.pop("posterior.rho.0/weight"), "lacks posterior.rho.0/weight"),
        (lambda t: t.update(evil=torch.ones(3)), "holds evil, which the model does not have"),
        (lambda t: t.update({"net.\n\n" + "x" * 5000: torch.ones(3)}), "which the model does not have"),
        (lambda t: t.update({"net.0.weight": torch.ones(6, 3)}), r"net.0.weight is torch.float32 \[6, 3\] there"),
        (lambda t: t.update({"net.0.weight": t["net.0.weight"].double()}), "net.0.weight is torch.float64"),
        (lambda t: t.update({"net.0.weight": t["net.0.weight"].int()}), "net.0.weight is torch.int32"),
        (lambda t: t.update({"likelihood.log_scale": torch.ones(2)}), "likelihood.log_scale is"),
        (lambda t: t.update({"posterior.kept.0/weight": torch.ones(2, dtype=torch.bool)}), "posterior.kept.0/weight"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(run, change, match):
    _with_tensors(run, change)
    refuses(run, match)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_neither_load_nor_are_saved(run, number):
    model = credo.load(run, net=mlp(1))
    with torch.no_grad():
        model.net[0].weight[0, 0] = number
    with pytest.raises(InputError, match=r"net\.0\.weight holds numbers that are NaN or infinite"):
        model.save(run)
    _with_tensors(run, lambda t: t["net.0.weight"][0, 0].fill_(number))
    refuses(run, r"NaN or infinite, in net\.0\.weight")


def test_infinite_buffers_load_but_not_missing_ones(tmp_path):
    """A mask of attention holds infinities."""

    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 1)
            self.register_buffer("mask", torch.tensor([0.0, -float("inf")]))

    credo.MAP(Masked(), credo.Gaussian(0.2)).save(tmp_path / "run")
    credo.load(tmp_path / "run", net=Masked())
    _with_tensors(tmp_path / "run", lambda t: t["net.mask"].fill_(float("nan")))
    refuses(tmp_path / "run", r"net\.mask", net=lambda seed: Masked())


@pytest.mark.parametrize("name", ["model.safetensors", "card.json"])
def test_files_of_different_runs_do_not_load_together(run, tmp_path, name):
    fitted(build=lambda net: credo.BayesByBackprop(net, credo.Gaussian("learned"), temperature=2.0)).save(
        tmp_path / "other"
    )
    shutil.copy(tmp_path / "other" / name, run / name)
    refuses(run, "model.safetensors and card.json beside it are not of the same run")


def test_a_card_must_say_which_tensors_are_its_own(run):
    edit(run, lambda card: card.pop("tensors"))
    refuses(run, "are not of the same run")


def test_tensors_without_end_are_refused(run, monkeypatch):
    header = 2**24 + 1
    (run / "model.safetensors").write_bytes(header.to_bytes(8, "little") + b" " * header)
    refuses(run, "header larger than any that credo writes")
    save_file({f"t{i}": torch.empty(0) for i in range(5)}, run / "model.safetensors")
    monkeypatch.setattr(_tensors, "_MAX_TENSORS", 4)
    refuses(run, "holds 5 tensors, but a run holds 4 at most")
    with pytest.raises(InputError, match="a run holds 4 at most"):
        fitted().save(run)


LARGE_CARDS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "patterns": (_set("config", "bayesian", to=["*"] * 5000), "holds more than 4,096 settings, too many for model"),
    "noise": (_set("config", "likelihood", "noise", to=[0.1] * 5000), "holds more than 4,096 settings"),
}


@pytest.mark.parametrize(("change", "match"), LARGE_CARDS.values(), ids=LARGE_CARDS)
def test_a_card_that_asks_for_much_work_is_refused(run, change, match):
    edit(run, change)
    refuses(run, match)


@pytest.mark.parametrize("depth", [200, 900])
def test_a_deep_card_is_refused(run, depth):
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    edit(run, _set("config", "bayesian", to=deep))
    refuses(run)


@pytest.mark.parametrize(
    ("net", "match"),
    [
        (lambda seed: nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)), "does not match the network"),
        (lambda seed: nn.Linear(2, 1), "does not match the network"),
        (lambda seed: mlp(seed).double(), "there, torch.float64"),
        (lambda seed: nn.ReLU(), "cannot be built"),
        (lambda seed: "mlp", "net must be a torch.nn.Module, got str"),
    ],
    ids=["other layers", "smaller", "float64", "no parameters", "text"],
)
def test_network_of_another_architecture_is_refused(run, net, match):
    refuses(run, match, net=net)


def test_paths_that_hold_no_run_are_refused(tmp_path):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "card.json").mkdir()
    for name in ("file", "empty", "card", "nowhere", "nul\x00"):
        refuses(tmp_path / name)


def test_run_without_tensors_is_refused(run):
    (run / "model.safetensors").unlink()
    refuses(run, "model.safetensors does not exist")


def test_hostile_runs_do_not_disturb_the_random_state(ensemble_run):
    net, before = nn.Linear(2, 1), torch.get_rng_state()
    with pytest.raises(LoadError):
        credo.load(ensemble_run, net=net)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("training.json", b"{}"),
        ("training.json", b"[" * 10_000),
        ("optimizer.safetensors", b"\x00" * 50),
        ("model.safetensors", b""),
    ],
)
def test_damaged_checkpoint_is_refused_and_nothing_changes(name, content, tmp_path):
    options = {"epochs": 2, "seed": 0, "checkpoint": tmp_path / "run"}
    CASES["bbb"][1](mlp()).fit(table(), **options)
    (tmp_path / "run" / name).write_bytes(content)
    model = CASES["bbb"][1](mlp())
    before = state(model)
    with pytest.raises(LoadError):
        model.fit(table(), resume=True, **options)
    assert same(state(model), before)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.update(step="x"),
        lambda t: t.update(history={}),
        lambda t: t.update(best_score="x"),
        lambda t: t.pop("best_epoch"),
        lambda t: t.update(optimizer_numbers=[1]),
        lambda t: t.update(optimizer_numbers={"state.model.99.step": 1}),
        lambda t: t.update(optimizer_numbers={"state.model.x.step": 1}),
        lambda t: t.update(optimizer_numbers={"state.stranger.0.step": 1}),
    ],
)
def test_hostile_training_state_is_refused(change, tmp_path):
    options = {"epochs": 2, "seed": 0, "checkpoint": tmp_path / "run"}
    CASES["map"][1](mlp()).fit(table(), **options)
    path = tmp_path / "run" / "training.json"
    training = json.loads(path.read_text())
    change(training)
    path.write_text(json.dumps(training))
    with pytest.raises(LoadError):
        CASES["map"][1](mlp()).fit(table(), resume=True, **options)


def test_optimizer_state_of_another_shape_is_refused(tmp_path):
    options = {"epochs": 2, "seed": 0, "checkpoint": tmp_path / "run"}
    CASES["map"][1](mlp()).fit(table(), **options)
    path = tmp_path / "run" / "optimizer.safetensors"
    save_file({**load_file(path), "state.model.0.exp_avg": torch.ones(3, 3)}, path)
    with pytest.raises(LoadError, match="does not fit the model's parameters"):
        CASES["map"][1](mlp()).fit(table(), resume=True, **options)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "training.json"])
def test_a_checkpoint_of_different_runs_is_refused(name, tmp_path):
    options = {"epochs": 2, "checkpoint": tmp_path / "run"}
    for seed, folder in ((0, "run"), (1, "other")):
        CASES["map"][1](mlp()).fit(table(), epochs=2, seed=seed, checkpoint=tmp_path / folder)
    shutil.copy(tmp_path / "other" / name, tmp_path / "run" / name)
    with pytest.raises(LoadError, match=r"and training\.json beside it are not of the same run"):
        CASES["map"][1](mlp()).fit(table(), resume=True, **options)


def test_unique_tensors_hold_a_tied_parameter_once():
    model = credo.MAP(Tied(), credo.Gaussian(0.2))
    assert set(_tensors.unique_tensors(model)) == {"net.first.weight", "net.first.bias", "net.second.bias"}


def test_a_forward_of_its_own_must_be_passed_again(tmp_path):
    net = nn.Linear(2, 1)
    model = credo.MAP(net, credo.Gaussian(0.1), forward=lambda net, x: 10 + net(x))
    model.save(tmp_path / "run")
    with pytest.raises(LoadError, match="forward="):
        credo.load(tmp_path / "run", net=nn.Linear(2, 1))
    again = credo.load(tmp_path / "run", net=nn.Linear(2, 1), forward=lambda net, x: 10 + net(x))
    x = torch.randn(3, 2)
    assert torch.equal(again.predict(x).mean, model.predict(x).mean)
