"""Real hosts: built, rate-limited, bounded, trained on, and gone afterwards whatever happens.

Skipped with the reason where network namespaces cannot be had.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hopper.bench.emulate.hosts import EmulatedCluster, emulated
from hopper.bench.emulate.request import Request, make_request
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.results import RESULTS_FILE
from hopper.bench.train_process import ended_by_signals, train_in_process
from hopper.config import Config
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation
from hopper.partition import partition_graph

REPOSITORY = Path(__file__).resolve().parents[2]

RECEIVE = """
import socket, time
listening = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
connection, _ = listening.accept()
start, received = time.perf_counter(), 0
while block := connection.recv(1 << 20):
    received += len(block)
print(8 * received / (time.perf_counter() - start))
"""
SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5000))
connection.sendall(bytes(int(sys.argv[2])))
"""
SPIN = """
import time
end = time.time() + 1
while time.time() < end:
    pass
print(time.process_time())
"""
BUILD = """
import sys, time
from hopper.bench.emulate.hosts import emulated
from hopper.bench.emulate.request import Request
with emulated(Request(2, "1gbit", 0.5)) as cluster:
    import subprocess
    subprocess.Popen([*cluster.hosts[0].place.prefix, "setsid", "--fork", "sleep", "600"]).wait()
    print(cluster.hosts[0].network.namespace, flush=True)
    time.sleep(600)
"""
AFTERWARDS = """
from hopper.bench.emulate.hosts import emulated
from hopper.bench.emulate.request import Request
with emulated(Request(1)) as cluster:
    assert cluster.effective, cluster.why_not
    print(*cluster.removed)
"""


def namespaces() -> set[str]:
    """Names of network namespaces made by Hopper."""
    folder = Path("/run/netns")
    return {each.name for each in folder.glob("hopper-*")} if folder.is_dir() else set()


def cgroups() -> set[Path]:
    """Control groups made by Hopper."""
    return {
        Path(folder) / name
        for folder, children, _ in os.walk("/sys/fs/cgroup")
        for name in children
        if name.startswith("hopper-")
    }


def of_process(pid: int) -> list[str]:
    """Namespaces and control groups that a process made."""
    own = f"hopper-{pid}-"
    names = sorted(namespaces() | {path.name for path in cgroups()})
    return [name for name in names if name.startswith(own)]


def processes_on_hosts(pid: int) -> list[psutil.Process]:
    """What runs in the namespaces that a process made."""
    found = []
    for name in of_process(pid):
        told = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        )
        for word in told.stdout.split():
            with suppress(psutil.Error):
                found.append(psutil.Process(int(word)))
    return found


def await_(condition: Callable[[], Any], limit: float = 60.0) -> Any:
    """What a condition gives once it gives something."""
    deadline = time.monotonic() + limit
    while not (given := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return given


@contextmanager
def built_or_skipped(request: Request) -> Iterator[EmulatedCluster]:
    """Hosts, and the check that they are gone afterwards."""
    others = of_process(os.getpid())
    with emulated(request) as cluster:
        if not cluster.effective:
            pytest.skip(f"no emulated hosts here: {cluster.why_not}")
        yield cluster
    assert of_process(os.getpid()) == [] == others


@pytest.fixture
def two_hosts() -> Iterator[EmulatedCluster]:
    """Two hosts on links of 100 Mbit/s."""
    with built_or_skipped(Request(2, "100mbit")) as cluster:
        yield cluster


@pytest.fixture
def train() -> Iterator[Callable[..., dict[str, Any]]]:
    """Trains on two hosts on links of 1 Gbit/s."""
    with built_or_skipped(Request(2, "1gbit")) as cluster:
        yield partial(train_on_hosts, cluster)


def run_on(cluster: EmulatedCluster, host: int, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*cluster.hosts[host].place.prefix, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )


def output_on(cluster: EmulatedCluster, host: int, *command: str) -> str:
    process = run_on(cluster, host, *command)
    told, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return told


def test_a_link_has_its_rate_in_both_directions(two_hosts: EmulatedCluster) -> None:
    for sender, receiver in ((0, 1), (1, 0)):
        receiving = run_on(two_hosts, receiver, sys.executable, "-c", RECEIVE)
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "ready\n"
        address = two_hosts.hosts[receiver].network.address
        output_on(two_hosts, sender, sys.executable, "-c", SEND, address, str(8 << 20))
        told, _ = receiving.communicate(timeout=30)
        assert receiving.returncode == 0
        assert 0.7 < float(told) / 1e8 < 1.1


def test_a_host_sees_its_interface_and_no_way_out(two_hosts: EmulatedCluster) -> None:
    shown = output_on(two_hosts, 1, "ip", "-brief", "address").splitlines()
    names = {line.split()[0].partition("@")[0]: line for line in shown}
    assert set(names) == {"lo", "eth0"}
    assert two_hosts.hosts[1].network.address in names["eth0"]
    routes = output_on(two_hosts, 1, "ip", "route").splitlines()
    assert len(routes) == 1
    assert "default" not in routes[0]


def test_bounds_hold_what_runs_on_a_host() -> None:
    with built_or_skipped(make_request(1, "none", 0.25, "256M")) as cluster:
        assert float(output_on(cluster, 0, sys.executable, "-c", SPIN)) < 0.5
        hungry = run_on(cluster, 0, sys.executable, "-c", "bytearray(b'x') * (1 << 29)")
        hungry.communicate(timeout=60)
        assert hungry.returncode == -signal.SIGKILL


def test_what_a_killed_process_left_is_removed_and_a_living_ones_is_kept(
    two_hosts: EmulatedCluster,
) -> None:
    own = of_process(os.getpid())
    # Two hosts and a bridge.
    assert len(own) == 3
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for builder in builders:
            assert builder.stdout is not None
            assert builder.stdout.readline().startswith(f"hopper-{builder.pid}-")
        dead, living = builders
        # The control groups of hosts have the names of the hosts.
        kept = of_process(living.pid)
        left = of_process(dead.pid)
        assert len(set(kept)) == len(set(left)) == 3
        dead.kill()
        assert dead.wait(10) == -signal.SIGKILL
        assert of_process(dead.pid) == left
        next_one = subprocess.run(
            [sys.executable, "-c", AFTERWARDS],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert of_process(dead.pid) == []
        # Which run removed it is left open: one elsewhere on this machine may have come first.
        assert set(next_one.stdout.split()).isdisjoint(kept)
        assert of_process(living.pid) == kept
        living.send_signal(signal.SIGINT)
        assert living.wait(20) != 0
        assert of_process(living.pid) == []
    finally:
        for builder in builders:
            builder.kill()
            builder.communicate()
    # The other run's hosts are these.
    assert set(own) <= set(of_process(os.getpid()))


@pytest.fixture(scope="module")
def wide_config(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To train on rows of 8 kB: they outweigh the headers of the small messages beside them."""
    folder = tmp_path_factory.mktemp("wide")
    relation, nodes = Relation("node", "edge", "node"), 240
    generator = np.random.default_rng(3)
    src, dst = generator.integers(0, nodes, (2, 8 * nodes))
    schema = GraphSchema(
        name="wide",
        node_types={"node": NodeType(nodes, 2048, "float32")},
        relations={relation: EdgeType(src.size)},
        target="node",
        labels={"node": Labels("class", 2)},
        splits={"train": 130},
    )
    with GraphWriter(folder / "graph", schema) as writer:
        writer.topology(relation, src, dst)
        writer.features("node")[:] = generator.standard_normal((nodes, 2048), dtype=np.float32)
        writer.labels("node", generator.integers(0, 2, nodes))
        writer.split("train", np.arange(130))
    graph = GraphDirectory.open(folder / "graph")
    partition_graph(graph, folder / "partitioned", 2, backend="pymetis")
    values = tiny_config.model_dump()
    values["data"]["partitioned"] = str(folder / "partitioned")
    values["train"]["evaluate_every"] = 0
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def test_a_run_on_hosts_counts_what_the_interfaces_send(
    train: Callable[..., dict[str, Any]], wide_config: Path, tmp_path: Path
) -> None:
    words = ["--train.engine", "model_centric", "--model.hidden", "2", "--pipeline.depth", "0"]
    summary = train("model_centric, round 1", wide_config, tmp_path / "run", words, 120.0)
    assert summary["ranks"] == 2
    assert len(summary["epochs"]) == 2
    for epoch in summary["epochs"]:
        counted = sum(epoch["bytes"].values())
        assert epoch["bytes"]["feature"] > 0.8 * counted
        assert len(epoch["nic_bytes"]) == 2
        assert epoch["sent_bytes"] == counted
        assert min(epoch["nic_bytes"]) > 0.2 * counted
        assert 1.0 <= sum(epoch["nic_bytes"]) / counted < 1.1
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["train"]["threads"] >= 1
    assert written["cluster"]["interface"] == "eth0"


def test_the_same_run_on_loopback_has_the_same_losses(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    words = ["--train.engine", "zero_hop", "--train.threads", "1"]
    on_hosts = train("zero_hop", config_file, tmp_path / "hosts", words, 120.0)
    here = train_in_process("zero_hop", config_file, tmp_path / "here", words, 120.0)
    losses = [[epoch["iteration_losses"] for epoch in run["epochs"]] for run in (on_hosts, here)]
    assert losses[0] == losses[1]
    assert [epoch["nic_bytes"] for epoch in here["epochs"]] == [None, None]


def _disturb(run_dir: Path, disturb: Callable[[], None]) -> Callable[[], None]:
    """Do something once ranks train; to be called to wait for it."""

    def act() -> None:
        await_(lambda: (run_dir / "epochs.jsonl").exists())
        disturb()

    thread = threading.Thread(target=act)
    thread.start()
    return thread.join


def test_a_host_without_memory_is_named(config_file: Path, tmp_path: Path) -> None:
    named = r"host \d reached the bound of 64 MiB \(--host-memory\)"
    with (
        built_or_skipped(make_request(2, "none", None, "64M")) as cluster,
        pytest.raises(ClusterError, match=named),
    ):
        train_on_hosts(cluster, "hop", config_file, tmp_path / "run", [], 120.0)


ENDLESS = ["--train.epochs", "1000000", "--train.evaluate_every", "0"]


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (
            "-m hopper.bench.emulate.waiting_rank ",
            r"host (\d): rank \1 \(pid {pid}\) was killed by SIGKILL",
        ),
        ("-m cache_server ", r"feature server \d \(pid {pid}, 10\.213\.0\..*killed by SIGKILL"),
        ("machine_agent ", r"host \d: the agent of its ranks \(pid {pid}\) was killed by SIGKILL"),
    ],
)
def test_what_is_killed_on_a_host_is_named(
    train: Callable[..., dict[str, Any]],
    config_file: Path,
    tmp_path: Path,
    pattern: str,
    told: str,
) -> None:
    run_dir = tmp_path / "run"
    victims: list[int] = []

    def kill() -> None:
        on_hosts = processes_on_hosts(os.getpid())
        victim = [each for each in on_hosts if pattern in " ".join(each.cmdline())][-1]
        victims.append(victim.pid)
        victim.kill()

    joined = _disturb(run_dir, kill)
    with pytest.raises(ClusterError, match="hop, round 1: ") as failed:
        train("hop, round 1", config_file, run_dir, ["--train.engine", "hop", *ENDLESS], 120.0)
    joined()
    assert re.search(told.format(pid=victims[0]), str(failed.value)), failed.value
    assert str(run_dir) in str(failed.value)
    assert processes_on_hosts(os.getpid()) == []


def pids_of_ranks() -> set[int]:
    """Of those on the hosts that this process made."""
    on_hosts = processes_on_hosts(os.getpid())
    module = "-m hopper.bench.emulate.waiting_rank "
    return {each.pid for each in on_hosts if module in " ".join(each.cmdline())}


def test_ranks_stay_from_run_to_run(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    """And train what new ones would; other threads, or an error, bring new ones."""

    def losses(name: str, engine: str, *words: str) -> list[list[float]]:
        given = ["--train.engine", engine, *words]
        summary = train(name, config_file, tmp_path / name, given, 120.0)
        assert "epoch 1" in (tmp_path / name / "hosts" / "0.log").read_text()
        return [epoch["iteration_losses"] for epoch in summary["epochs"]]

    first = losses("first", "zero_hop")
    ranks = pids_of_ranks()
    assert len(ranks) == 2
    losses("other", "hop")
    assert losses("again", "zero_hop") == first
    assert pids_of_ranks() == ranks
    losses("threads", "zero_hop", "--train.threads", "2")
    assert pids_of_ranks().isdisjoint(ranks)
    with pytest.raises(DeadlineExceeded):
        train("endless", config_file, tmp_path / "endless", ENDLESS, 4.0)
    assert pids_of_ranks() == set()
    assert losses("after", "zero_hop") == first
    # An agent that ends in between is seen before the next run begins.
    for process in processes_on_hosts(os.getpid()):
        process.kill()
    await_(lambda: processes_on_hosts(os.getpid()) == [])
    assert losses("at last", "zero_hop") == first


def test_a_run_on_hosts_past_its_deadline_is_ended(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(DeadlineExceeded, match=r"hop, round 1: training .* within 4 s"):
        train("hop, round 1", config_file, tmp_path / "run", ENDLESS, 4.0)
    assert processes_on_hosts(os.getpid()) == []


def test_a_bad_request_of_a_run_starts_nothing(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        train("hop", config_file, tmp_path / "run", ["--train.engine", "nonsense"], 60.0)


def _skip_without_hosts() -> None:
    with built_or_skipped(Request(1)):
        pass


def _start_command(config_file: Path, out: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hopper.cli", "bench", "ab", str(config_file)]
    command += ["--engines", "zero_hop", "--rounds", "1", "--out", str(out), "--emulate", "2"]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([*command, *words], cwd=REPOSITORY, stdout=log, stderr=log)


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_signal_to_the_command_leaves_nothing(
    config_file: Path, tmp_path: Path, name: str, real_starts: None
) -> None:
    """Hosts are named after the process that makes them: a real one."""
    _skip_without_hosts()
    out = tmp_path / "out"
    running = _start_command(config_file, out, *ENDLESS, "--host-cpus", "1")
    epochs = out / "runs" / "zero_hop-round-0" / "epochs.jsonl"
    try:
        await_(lambda: epochs.exists() or running.poll() is not None, 120)
        assert running.poll() is None, out.with_suffix(".log").read_text()
        assert len(of_process(running.pid)) == 3
        # Of each host the server, the agent and a rank.
        assert len(processes_on_hosts(running.pid)) == 6
        running.send_signal(signal.Signals[name])
        code = running.wait(40)
    finally:
        running.kill()
        running.wait()
    assert code == -signal.SIGKILL if name == "SIGKILL" else code != 0
    if name == "SIGKILL":
        # What it started ends without it, at the latest when a wait's deadline of 60 s has passed;
        # its namespaces go when the next one starts.
        try:
            await_(lambda: not processes_on_hosts(running.pid), 100)
        except AssertionError:
            left = [(p.pid, p.status(), p.cmdline()[:6]) for p in processes_on_hosts(running.pid)]
            pytest.fail(f"left: {left}")
        assert len(of_process(running.pid)) == 3
        subprocess.run([sys.executable, "-c", AFTERWARDS], cwd=REPOSITORY, timeout=60, check=True)
    assert of_process(running.pid) == []


def test_a_comparison_on_hosts_tells_the_interfaces_bytes(
    wide_config: Path, tmp_path: Path
) -> None:
    _skip_without_hosts()
    out = tmp_path / "out"
    words = ("--link-rate", "100mbit", "--host-memory", "2G", "--pipeline.depth", "0")
    running = _start_command(wide_config, out, *words)
    assert running.wait(200) == 0, out.with_suffix(".log").read_text()
    told = " ".join(out.with_suffix(".log").read_text().split())
    assert "2 servers on emulated hosts (links of 100mbit, 2048 MiB each)" in told
    assert "sent / counted" in told
    results = json.loads((out / RESULTS_FILE).read_text())
    assert results["machine"]["emulation"] == {
        "hosts": 2,
        "link_rate": "100mbit",
        "host_cpus": None,
        "host_memory": 2 << 30,
        "effective": True,
        "why_not": None,
    }
    (run,) = results["runs"]
    counted = sum(epoch["sent_bytes"] for epoch in run["epochs"])
    assert counted < sum(run["nic_bytes"]) < 1.1 * counted
    assert "WARNING" not in told
    assert of_process(running.pid) == []


def test_sigterm_takes_hosts_down_from_within(config_file: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    joined = _disturb(run_dir, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with (
        ended_by_signals(),
        pytest.raises(KeyboardInterrupt),
        built_or_skipped(Request(2)) as cluster,
    ):
        train_on_hosts(cluster, "hop", config_file, run_dir, ENDLESS, 120.0)
    joined()
    assert of_process(os.getpid()) == []
