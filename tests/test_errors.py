"""Bad input: one sentence that names it and says what to do, and a model that is exactly what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import credo
from credo import _files
from credo.errors import CredoError, DivergenceError, InputError, LoadError, UnsupportedError, unknown_name
from credo.methods import NetworkMethod
from credo.seeding import seeded

N = 12


def net(outputs: int = 1) -> nn.Sequential:
    with seeded(0, torch.device("cpu")):
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, outputs))


def regression() -> tuple[Tensor, Tensor]:
    with seeded(1, torch.device("cpu")):
        return torch.randn(N, 2), torch.randn(N, 1)


X, Y = regression()
METHODS: dict[str, Callable[..., NetworkMethod]] = {
    "bbb": credo.BayesByBackprop,
    "dropout": credo.MCDropout,
    "map": credo.MAP,
}


class Stream(IterableDataset):
    """Data without a length."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Items(Dataset):
    """Whatever it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def spoilt(value: Tensor, row: int, by: float) -> Tensor:
    return value.clone().index_fill_(0, torch.tensor(row), by)


def fails(model: NetworkMethod, data: Any, match: str, **options: Any) -> None:
    """``fit`` raises one InputError, and the model is what it was: weights, flags, likelihood, random state."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    others = (model.likelihood, model._likelihood_is_open, model.n_data, model.history)
    model.net[0].eval()
    flags = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    with pytest.raises(InputError, match=match) as caught:
        model.fit(data, **{"epochs": 2, "batch_size": 5, "seed": 0, **options})
    assert len(str(caught.value)) < 500
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert others == (model.likelihood, model._likelihood_is_open, model.n_data, model.history)
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random_state)


BAD_DATA: dict[str, tuple[Any, str]] = {
    "NaN in x": ((spoilt(X, 3, torch.nan), Y), r"x holds NaN or infinite values in 1 rows \(the first is row 3\)"),
    "infinity in x": ((spoilt(X, 3, torch.inf), Y), "x holds NaN or infinite values"),
    "NaN in y": ((X, spoilt(Y, 3, torch.nan)), "y holds NaN or infinite values"),
    "NaN in an array": ((spoilt(X, 3, torch.nan).numpy(), Y.numpy()), "x holds NaN or infinite values"),
    "NaN in the weights": ((X, Y, torch.full((N,), torch.nan)), "sample_weight holds NaN"),
    "empty": ((X[:0], Y[:0]), "the data are empty; give at least one row"),
    "empty data set": (Items(), "the data set is empty; give at least one datum"),
    "different lengths": ((X, Y[:-1]), r"X has 12 rows but y has shape \[11, 1\]"),
    "flat targets": ((X, Y[:, 0]), r"y has shape \[5\], but the network's output requires \[5, 1\]: reshape y"),
    "flat targets in a loader": (
        DataLoader(TensorDataset(X, Y[:, 0])),
        r"does not match the model: y has shape",
    ),
    "wide targets": ((X, torch.randn(N, 2)), r"y has shape \[5, 2\]"),
    "wrong features": ((torch.randn(N, 3), Y), r"cannot be called on a minibatch of torch.float32 \[5, 3\]"),
    "float64 tensor": ((X.double(), Y), r"convert it with x.to\(torch.float32\)"),
    "float64 loader": (DataLoader(TensorDataset(X.double(), Y)), r"convert it with x.to\(torch.float32\)"),
    "integer inputs": ((X.long(), Y), r"integers are passed on as they are: call x.float\(\) for quantities"),
    "text": ((X, np.array(["a"] * N)), "y must hold numbers"),
    "a single tensor": (X, r"or a pair \(X, y\)"),
    "nothing": (None, "got NoneType"),
    "negative weights": ((X, Y, -torch.ones(N)), "sample_weight must hold one number of 0 or more per row"),
    "loader of nothing": (DataLoader(Items((X[0], Y[0])), batch_size=4, drop_last=True), "yielded no batches"),
    "stream of nothing": (DataLoader(Stream()), "n_data=N"),
    "loader of single tensors": (DataLoader(Items(*X)), r"a loader must yield \(x, y\)"),
    "loader of four": (DataLoader(Items(*zip(X, Y, Y, Y, strict=True))), "got list of length 4"),
    "loader of mappings": (
        DataLoader(Items({"x": X[0], "y": Y[0]})),
        r"x itself may be a mapping: \(\{...\}, y\)",
    ),
    "loader of names": (DataLoader(Items((X[0], "cat"), (X[1], "dog"))), "must yield y as one tensor"),
}


@pytest.mark.parametrize(("data", "match"), BAD_DATA.values(), ids=BAD_DATA)
@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_bad_data_are_named_and_nothing_is_lost(make, data, match):
    fails(make(net(), credo.Gaussian(0.3)), data, match)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        (torch.arange(N), r"y holds the label \d+, but the network has 3 classes, 0 to 2"),
        (torch.arange(N) % 3 - 1, "y holds the label -1"),
        ((torch.arange(N) % 3).float(), r"integer class indices are needed: call y.long\(\)"),
        (nn.functional.one_hot(torch.arange(N) % 3), "if y is one-hot, call y.argmax"),
        (torch.full((N, 3), 1 / 3), "repeat each row once per class and pass them as sample_weight"),
        ((torch.arange(N) % 3)[:, None], r"squeeze y with y.squeeze\(-1\)"),
    ],
    ids=["too large", "negative", "real", "one-hot", "soft", "column"],
)
def test_labels_that_do_not_fit_are_named(labels, match):
    fails(credo.BayesByBackprop(net(3), credo.Categorical()), (X, labels), match)


def test_real_labels_without_a_likelihood_are_named():
    """Real targets mean a Gaussian, whose outputs are three numbers per row here."""
    fails(credo.BayesByBackprop(net(3)), (X, (torch.arange(N) % 3).float()), r"integers, y.long\(\), and Categorical")


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_data_as_two_arguments_are_named(make):
    with pytest.raises(InputError, match=r"fit takes the data as one argument, fit\(\(x, y\)\).*got 2 arguments"):
        make(net(), credo.Gaussian(0.3)).fit(X, Y)


def test_a_rate_that_is_no_number_is_named():
    with pytest.raises(InputError, match="p must be a finite number"):
        credo.MCDropout(net(), p="half")


def test_a_wrong_label_anywhere_is_found_before_training():
    labels = (torch.arange(N) % 3).index_fill_(0, torch.tensor(N - 1), 7)
    fails(credo.MAP(net(3), credo.Categorical()), (X, labels), "y holds the label 7", batch_size=2)


def test_a_wrong_label_in_a_later_minibatch_of_a_loader_is_named_by_its_step():
    labels = (torch.arange(N) % 3).index_fill_(0, torch.tensor(N - 1), 7)
    loader = DataLoader(TensorDataset(X, labels), batch_size=4)
    model = credo.MAP(net(3), credo.Categorical())
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError, match="minibatch at step 3 does not match the model: y holds the label 7"):
        model.fit(loader, epochs=1, seed=0)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_single_row_left_over_for_batch_norm_is_named():
    model = credo.MAP(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), credo.Gaussian(0.3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match=r"step 2 is too small for batch norm.*choose another batch_size"):
        model.fit((X, Y), epochs=1, batch_size=N - 1, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_minibatch_of_another_form_is_named():
    loader = DataLoader(Items((X[:4], Y[:4]), (X[4:8], Y[4:8]), [X]), batch_size=None)
    model = credo.MAP(net(), credo.Gaussian(0.3))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError, match=r"a loader must yield \(x, y\).*got list of length 1"):
        model.fit(loader, epochs=1, seed=0, n_data=N)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_held_out_data_are_checked_before_training():
    model = credo.MAP(net(), credo.Gaussian(0.3))
    fails(model, (X, Y), r"validation: y has shape \[5\]", validation=(X, Y[:, 0]))
    fails(model, (X, Y), "x holds NaN", validation=(spoilt(X, 3, torch.nan), Y))
    fails(model, (X, Y), "validation: the loader yielded no batches", validation=DataLoader(Stream()))


def test_the_likelihood_that_bad_data_would_have_chosen_is_forgotten():
    model = credo.MAP(net())
    fails(model, (X, torch.zeros(N, dtype=torch.long)), "needs at least two classes.*for numbers y.float")
    model.fit((X, Y), epochs=1, seed=0)
    assert isinstance(model.likelihood, credo.Gaussian)


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "misspelled": ({"epoch": 3}, "unknown option of fit 'epoch': did you mean 'epochs'"),
    "unknown": ({"zzz": 3}, "unknown option of fit 'zzz': choose from epochs, batch_size"),
    "epochs": ({"epochs": -1}, "epochs must be an integer of at least 0, got -1"),
    "epochs real": ({"epochs": 2.5}, "epochs must be an integer of at least 0, got 2.5"),
    "epochs bool": ({"epochs": True}, "epochs must be an integer"),
    "batch_size": ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
    "lr": ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
    "lr nan": ({"lr": float("nan")}, "lr must be a positive number, got nan"),
    "lr text": ({"lr": "fast"}, "lr must be a positive number, got 'fast'"),
    "optimizer": ({"optimizer": "adam"}, "optimizer must be a callable such as torch.optim.SGD, got 'adam'"),
    "optimizer instance": (
        {"optimizer": torch.optim.SGD([torch.zeros(1)])},
        "optimizer must be a callable such as torch.optim.SGD, got a ready SGD: fit calls it",
    ),
    "optimizer of nothing": (
        {"optimizer": lambda groups, lr: None},
        "return a torch.optim.Optimizer, got NoneType",
    ),
    "schedule": ({"schedule": "cosin"}, "unknown schedule 'cosin': did you mean 'cosine'"),
    "schedule of nothing": (
        {"schedule": lambda progress: None},
        "schedule must return a number of at least 0, got None",
    ),
    "schedule below 0": (
        {"schedule": lambda progress: -1.0},
        "schedule must return a number of at least 0, got -1.0",
    ),
    "weight_decay": ({"weight_decay": -1.0}, "weight_decay must be a number of at least 0, got -1.0"),
    "gradient_clip": ({"gradient_clip": 0}, "gradient_clip must be a positive number, got 0"),
    "monitor": ({"monitor": "loss"}, "unknown monitor 'loss'"),
    "patience alone": ({"patience": 3}, r"patience needs held-out data to watch: pass validation=\.\.\."),
    "patience": ({"patience": 0, "validation": (X, Y)}, "patience must be an integer of at least 1, got 0"),
    "precision": ({"precision": "8-bit"}, "device, devices, num_nodes, strategy or precision cannot be used here"),
    "converting": ({"precision": "64-true"}, "precision='64-true' would convert the network"),
    "device": ({"device": "gpuu"}, "device, devices, num_nodes, strategy or precision cannot be used here"),
    "strategy": ({"strategy": "dpp"}, "device, devices, num_nodes, strategy or precision cannot be used here"),
    "devices": ({"devices": 0}, "devices must be an integer of at least 1, got 0"),
    "n_data": ({"n_data": 0}, "n_data must be an integer of at least 1, got 0"),
    "seed": ({"seed": -1}, "seed must be None or an integer from 0"),
    "seed real": ({"seed": 1.5}, "seed must be None or an integer from 0"),
    "resume": ({"resume": True}, "resume=True needs to know from where: pass checkpoint='folder'"),
    "checkpoint_every": ({"checkpoint_every": 0}, "checkpoint_every must be an integer of at least 1"),
}


@pytest.mark.parametrize(("options", "match"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_named_and_nothing_is_lost(options, match):
    fails(credo.BayesByBackprop(net(), credo.Gaussian(0.3)), (X, Y), match, **options)


def test_whole_numbers_of_numpy_are_whole_numbers():
    model = credo.MAP(net(), credo.Gaussian(0.3))
    model.fit((X, Y), epochs=np.int64(1), batch_size=np.int32(4), lr=np.float32(1e-3), seed=np.uint8(3))
    assert len(model.history) == 1


def test_a_stream_needs_its_number_of_data():
    data = DataLoader(Stream(*zip(X, Y, strict=True)), batch_size=4)
    model = credo.BayesByBackprop(net(), credo.Gaussian(0.3))
    fails(model, data, r"say so with fit\(..., n_data=N\)")
    assert model.fit(data, epochs=1, seed=0, n_data=N).n_data == N


def test_a_stream_has_no_number_of_batches_to_spread_the_kl_over():
    data = DataLoader(Stream(*zip(X, Y, strict=True)), batch_size=4)
    model = credo.BayesByBackprop(net(), credo.Gaussian(0.3), kl_weighting="blundell")
    with pytest.raises(InputError, match="needs the number of batches"):
        model.fit(data, epochs=1, seed=0, n_data=N)


def test_checkpoint_on_a_folder_of_other_things_is_refused_before_training(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    fails(credo.MAP(net(), credo.Gaussian(0.3)), (X, Y), "holds other things", checkpoint=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_checkpoint_that_cannot_be_written_keeps_what_was_learned(tmp_path, monkeypatch):
    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files, "_write_file", full_disk)
    model = credo.MAP(net(), credo.Gaussian(0.3))
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError, match=r"cannot be written: .*No space left"):
        model.fit((X, Y), epochs=2, seed=0, checkpoint=tmp_path / "run")
    assert len(model.history) == 1
    assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_predict_names_a_wrong_number_of_samples(make):
    model = make(net(), credo.Gaussian(0.3))
    for samples in (-1, 1.5, True):
        with pytest.raises(InputError, match="samples must be an integer of at least 0, got"):
            model.predict(X, samples=samples)
    with pytest.raises(InputError, match="an integer of at least 0, or 'moments', got 'many'"):
        model.predict(X, samples="many")


@pytest.mark.parametrize("method", [credo.MAP, credo.Laplace, credo.VariationalLastLayer])
def test_an_unknown_way_to_evaluate_draws_is_named_also_where_there_are_none(method):
    model = method(nn.Linear(2, 1), credo.Gaussian(0.5)).fit((torch.zeros(4, 2), torch.zeros(4, 1)), epochs=1, seed=0)
    with pytest.raises(InputError, match="unknown vectorize 'loops': did you mean 'loop'"):
        model.predict(torch.zeros(3, 2), vectorize="loops")


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
def test_networks_without_parameters_are_refused(make):
    with pytest.raises(InputError, match="no trainable parameters"):
        make(nn.Sequential(nn.ReLU(), nn.Dropout(0.5)), credo.Gaussian(0.3))


def test_nearest_names_are_offered():
    error = unknown_name("color", "gren", ["green", "gray", "blue"])
    assert isinstance(error, InputError)
    assert str(error) == "unknown color 'gren': did you mean 'green' or 'gray'?"
    assert "choose from green, blue." in str(unknown_name("color", "zzzzzz", ["green", "blue"]))
    assert str(unknown_name("color", "BLUE", ["green", "Blue"])) == "unknown color 'BLUE': did you mean 'Blue'?"
    many = [f"name{i}" for i in range(50)]
    assert str(unknown_name("thing", "zzzzzz", many)).endswith("name11, ….")


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InputError, ValueError),
        (LoadError, ValueError),
        (UnsupportedError, NotImplementedError),
        (DivergenceError, ArithmeticError),
    ],
)
def test_every_error_is_a_credo_error_and_the_builtin_one_expects(error, builtin):
    assert issubclass(error, CredoError)
    assert issubclass(error, builtin)


def test_a_prediction_without_a_known_likelihood_is_refused():
    """Logits would pass for means: nothing says what the output of a network that was never fitted stands for."""
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    with pytest.raises(InputError, match=r"likelihood=credo\.Categorical"):
        credo.MCDropout(net).predict(torch.randn(2, 3))
    assert credo.MCDropout(net, credo.Categorical()).predict(torch.randn(2, 3)).mean.shape == (2, 4)


def test_members_that_share_parameters_are_refused():
    net = nn.Linear(3, 1)
    for source in (lambda: net, [net, net]):
        with pytest.raises(InputError, match="share parameters"):
            credo.DeepEnsemble(source, members=2)


def test_what_is_no_ensemble_or_no_weights_of_one_is_named():
    with pytest.raises(InputError, match="the list of networks is empty; give at least one"):
        credo.DeepEnsemble([])
    ensemble = credo.DeepEnsemble(nn.Linear(2, 1), 2)
    for weights in ("ab", [1.0], [1.0, -1.0], [None, 1.0]):
        with pytest.raises(InputError, match="weights must be one finite number of at least 0 for each of 2"):
            ensemble.set_weights(weights)
    assert ensemble.weights is None


def test_a_method_is_no_network():
    with pytest.raises(InputError, match="plain network"):
        credo.BayesByBackprop(credo.MAP(nn.Linear(3, 1)))
    with pytest.raises(InputError, match=r"is a MAP already; pass the plain network, and base=credo\.MAP"):
        credo.DeepEnsemble(credo.MAP(nn.Linear(3, 1)))


@pytest.mark.parametrize("patterns", [[], 2, [2], None])
def test_patterns_that_are_none_are_refused(patterns):
    with pytest.raises(InputError, match="bayesian must be a name pattern"):
        credo.BayesByBackprop(nn.Linear(3, 1), bayesian=patterns)
