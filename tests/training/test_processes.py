"""Two processes over gloo: replicas that stay equal, and the result of one process on the same global batches."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import credo
import distributed_script as script
from credo.errors import InputError
from credo.training import processes


def run_script(folder: Path, strategy: str) -> subprocess.CompletedProcess[str]:
    """Run the script as a user would, on the credo that is being tested."""
    path = os.pathsep.join([str(Path(credo.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    foreign = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "WORLD_SIZE")
    environment = {key: value for key, value in os.environ.items() if key not in foreign}
    return subprocess.run(
        [sys.executable, str(Path(script.__file__)), str(folder), strategy],
        env={**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ddp")
    done = run_script(path, "ddp")
    assert done.returncode == 0, done.stderr[-3000:]
    return path


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("run", ["map", "bbb", "early stopping", "loader", "resumed"])
def test_replicas_stay_equal_to_the_bit(ranks, run):
    assert ranks[0][run] == ranks[1][run]


@pytest.mark.parametrize("run", ["map", "bbb"])
def test_number_of_data_is_that_of_all_processes(ranks, run):
    assert ranks[0][run]["n_data"] == script.ROWS


def test_noise_differs_between_processes(ranks):
    """All rows are alike, so what separates the processes' losses is the noise they draw."""
    first, second = ranks[0]["noise"], ranks[1]["noise"]
    assert len(first) == len(second) > 0
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_training_losses_are_those_of_one_process(ranks):
    """MAP draws nothing, so both see the same 30 steps, up to the order of float32 sums."""
    alone = [entry["nll"] for entry in script.fit_map().history]
    assert ranks[0]["map"]["nll"] == pytest.approx(alone, rel=1e-5)


def test_posterior_is_that_of_one_process_within_its_spread_over_seeds(folder):
    """The run of two is one more draw: within 4 standard deviations of 8 single ones, widened by √(1 + 1/8).

    With twice or half the number of data the KL would be 8 standard deviations away.
    """
    data = script.table()

    def numbers(model: credo.BayesByBackprop) -> tuple[float, float]:
        return model.kl().item(), model.elbo(data, samples=100, seed=0)

    alone = torch.tensor([numbers(script.fit_bbb(seed=seed)) for seed in range(8)])
    together = torch.tensor(numbers(credo.load(folder / "bbb", net=script.make_net())))
    assert bool(((together - alone.mean(0)).abs() < 4 * alone.std(0) * (1 + 1 / 8) ** 0.5).all())


def test_early_stopping_ends_all_processes_together(ranks):
    assert 3 <= ranks[0]["early stopping"]["epochs"] < 25


def test_resumed_run_of_two_processes_ends_in_the_same_weights(ranks):
    assert ranks[0]["crash"] == "crash"
    assert ranks[0]["resumed"] == ranks[0]["map"]["digest"]


@pytest.mark.slow
def test_weights_learned_by_spawned_processes_come_home(capfd):
    """Spawned from within this process; the same 30 steps as alone, up to the order of float32 sums."""
    together = script.fit_map(devices=2, strategy="ddp_spawn")
    alone = script.fit_map()
    assert together.n_data == script.ROWS
    assert [entry["nll"] for entry in together.history] == pytest.approx([e["nll"] for e in alone.history], rel=1e-5)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    assert not together.training


@pytest.mark.slow
def test_accumulated_gradients_of_two_processes_are_those_of_one_minibatch(capfd):
    """Steps of 6 rows, of which each process takes 3 in parts of 2 and 1; up to the order of float32 sums."""
    together = script.fit_map(devices=2, strategy="ddp_spawn", batch_size=3, accumulate=2)
    alone = script.fit_map(batch_size=6)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, rtol=1e-5, atol=1e-5)


NODE = """
import distributed_script as script
model = script.fit_map(num_nodes=2, strategy="ddp")
print(model.n_data, script.digest(model), model.history[-1]["nll"])
"""


LOST = """
import os, signal
import distributed_script as script

def lose_second(model, entry):
    if os.environ["NODE_RANK"] == "1" and len(model.history) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

script.fit_map(num_nodes=2, strategy="ddp", checkpoint={folder!r}, on_epoch_end=lose_second)
"""

CONTINUED = """
import distributed_script as script
model = script.fit_map(num_nodes=2, strategy="ddp", checkpoint={folder!r}, resume=True)
print(len(model.history), script.digest(model))
"""

SHARDED = """
import sys
import torch
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import credo
import distributed_script as script

init_process_group("gloo")
x, y = (t[:20] for t in script.table())
own = slice(10 * get_rank(), 10 * get_rank() + 10)
for method in (credo.MAP, credo.BayesByBackprop):
    model = method(script.make_net(), credo.Gaussian(0.3))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=1e-2)
    for _ in range(20):
        loss = model(x[own], y[own], n_data=20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    local = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if get_rank() == 0:
        again = method(script.make_net(), credo.Gaussian(0.3))
        again.load_state_dict(whole)
        again.save(sys.argv[1] + "/" + method.__name__)
    print(local)
destroy_process_group()
"""


def start_node(
    rank: int,
    port: int,
    address: str = "127.0.0.1",
    prefix: tuple[str, ...] = (),
    program: str = NODE,
    words: tuple[str, ...] = (),
    **variables: str,
):
    """One machine's part of a run on two, as its user would start it there."""
    path = os.pathsep.join([str(Path(credo.__file__).parents[1]), str(Path(script.__file__).parent)])
    own = {"NODE_RANK": str(rank), "MASTER_ADDR": address, "MASTER_PORT": str(port), "PYTHONPATH": path, **variables}
    foreign = ("LOCAL_RANK", "WORLD_SIZE")
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", program, *words],
        env={**{k: v for k, v in os.environ.items() if k not in foreign}, "OMP_NUM_THREADS": "1", **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(nodes: list[subprocess.Popen[str]]) -> list[list[str]]:
    found = []
    for node in nodes:
        out, err = node.communicate(timeout=180)
        assert node.returncode == 0, err[-3000:]
        found.append(out.split())
    return found


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_two_machines_train_one_model():
    """A process per machine, which know of each other by address, port and rank."""
    port = free_port()
    first, second = results([start_node(rank, port) for rank in (0, 1)])
    assert first == second
    assert int(first[0]) == script.ROWS
    assert float(first[2]) == pytest.approx(script.fit_map().history[-1]["nll"], rel=1e-5)


@pytest.mark.slow
def test_a_lost_machine_ends_the_run_and_the_next_continues_to_the_same_bits(tmp_path):
    """The second machine is killed at the end of epoch 3 of 6, before the checkpoint of that epoch."""
    place = str(tmp_path / "run")
    port = free_port()
    nodes = [start_node(rank, port, program=LOST.format(folder=place)) for rank in (0, 1)]
    try:
        codes = [node.wait(timeout=180) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.communicate()
    assert codes[1] == -signal.SIGKILL
    assert codes[0] not in (0, -signal.SIGKILL)  # it ended by itself, with an error
    assert isinstance(credo.load(place, net=script.make_net()), credo.MAP)
    port = free_port()
    again = results([start_node(rank, port, program=CONTINUED.format(folder=place)) for rank in (0, 1)])
    port = free_port()
    undisturbed = results([start_node(rank, port) for rank in (0, 1)])
    assert again == [[str(script.EPOCHS), undisturbed[0][1]]] * 2


def check_sharded(nodes: list[subprocess.Popen[str]], folder: Path) -> None:
    """Each process holds a part of all weights; MAP draws nothing, so its weights are those of one process."""
    sizes = torch.tensor([[int(word) for word in told] for told in results(nodes)])
    alone = credo.MAP(script.make_net(), credo.Gaussian(0.3))
    optimizer = torch.optim.Adam(alone.parameter_groups(), lr=1e-2)
    x, y = (t[:20] for t in script.table())
    for _ in range(20):
        loss = alone(x, y, n_data=20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    together = credo.load(folder / "MAP", net=script.make_net())
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(together.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    count = sum(parameter.numel() for parameter in alone.parameters())
    assert sizes.sum(0).tolist() == [count, 2 * count]
    assert bool((sizes < torch.tensor([count, 2 * count])).all())
    bbb = credo.load(folder / "BayesByBackprop", net=script.make_net())
    assert bool(bbb.predict(x).std.isfinite().all())


@pytest.mark.slow
def test_a_sharded_model_trains_in_a_loop_of_its_own(tmp_path):
    """FSDP over gloo, two processes of one machine."""
    port = free_port()
    nodes = [
        start_node(rank, port, program=SHARDED, words=(str(tmp_path),), RANK=str(rank), WORLD_SIZE="2")
        for rank in (0, 1)
    ]
    check_sharded(nodes, tmp_path)


def test_fsdp_in_fit_is_a_sentence():
    with pytest.raises(InputError, match="fully_shard"):
        script.fit_map(devices=2, strategy="fsdp")


@pytest.fixture
def two_hosts():
    """Two network namespaces, joined by a cable; skips where this user may not make them."""
    names = [f"credo{os.getpid()}{side}" for side in "ab"]
    links = [f"v{os.getpid()}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for i, (name, link) in enumerate(zip(names, links, strict=True)):
            ip("link", "set", link, "netns", name)
            ip("-n", name, "addr", "add", f"10.231.0.{i + 1}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    else:
        yield list(zip(names, links, strict=True))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
def test_two_hosts_in_network_namespaces_train_one_model(two_hosts):
    """Nothing is shared but a cable: loopback addresses of one host do not reach the other."""
    nodes = [
        start_node(rank, 29511, "10.231.0.1", ("ip", "netns", "exec", name), GLOO_SOCKET_IFNAME=link)
        for rank, (name, link) in enumerate(two_hosts)
    ]
    first, second = results(nodes)
    assert first == second
    assert float(first[2]) == pytest.approx(script.fit_map().history[-1]["nll"], rel=1e-5)


@pytest.mark.slow
def test_two_hosts_in_network_namespaces_train_a_sharded_model(two_hosts, tmp_path):
    """FSDP over gloo and a cable."""
    nodes = [
        start_node(
            rank,
            29512,
            "10.231.0.1",
            ("ip", "netns", "exec", name),
            SHARDED,
            (str(tmp_path),),
            GLOO_SOCKET_IFNAME=link,
            RANK=str(rank),
            WORLD_SIZE="2",
        )
        for rank, (name, link) in enumerate(two_hosts)
    ]
    check_sharded(nodes, tmp_path)


def test_what_cannot_be_sent_to_a_spawned_process_is_named():
    with pytest.raises(InputError, match=r"cannot be sent to another process.*strategy='ddp'"):
        script.fit_map(devices=2, strategy="ddp_spawn", schedule=lambda progress: 1.0)


def test_errors_of_forked_processes_come_home(tmp_path):
    done = run_script(tmp_path, "ddp_fork")
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads((tmp_path / "rank0.json").read_text())
    assert seen["diverges"]["type"] == "DivergenceError"
    assert "step 2 (epoch 1); the model is back at its start" in seen["diverges"]["message"]
    assert seen["misfits"]["type"] == "InputError"
    assert "the network's output requires [3, 1]" in seen["misfits"]["message"]
    assert seen["diverges"]["unchanged"]
    assert seen["misfits"]["unchanged"]
    assert "back at the end of epoch 2" in seen["diverges later"]["message"]
    assert seen["diverges later"]["epochs"] == 2
    assert not seen["diverges later"]["unchanged"]
    assert seen["long history"] == 100
    assert seen["likelihood"] == "Gaussian"


def test_interrupted_process_leaves_no_part_of_its_error(tmp_path, monkeypatch):
    """The first process to fail ends the others, perhaps while they write down the same error."""

    def fail(*_: object) -> None:
        raise InputError("no such column")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    fabric = SimpleNamespace(global_rank=1)
    arguments = {"task": SimpleNamespace(model=None), "data": None, "options": None, "folder": tmp_path, "parent": -1}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            processes._process(fabric, None, train=fail, **arguments)
    assert processes._original(tmp_path) is None
    with pytest.raises(InputError, match="no such column"):
        processes._process(fabric, None, train=fail, **arguments)
    assert str(processes._original(tmp_path)) == "no such column"
