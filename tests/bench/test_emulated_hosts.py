"""Emulated hosts are built, limited, trained on, and gone afterwards whatever happens.

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

from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.request import Request, make_request
from hopper.bench.emulate.standing_ranks import environment_of_ranks
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.results import RESULTS_FILE
from hopper.bench.train_process import train_in_process
from hopper.config import Config
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation
from hopper.partition import partition_graph
from hopper.signal_handlers import end_on_signals
from tests.conftest import own_path

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
before, end = time.process_time(), time.time() + 1
while time.time() < end:
    pass
print(time.process_time() - before)
"""
BUILD = """
import sys, time
from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import Request
with emulate_hosts(Request(2, "1gbit", 0.5)) as cluster:
    import subprocess
    subprocess.Popen([*cluster.hosts[0].place.prefix, "setsid", "--fork", "sleep", "600"]).wait()
    print(cluster.hosts[0].network.namespace, flush=True)
    time.sleep(600)
"""
AFTERWARDS = """
from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import Request
with emulate_hosts(Request(1)) as cluster:
    assert cluster.effective, cluster.why_not
    print(*cluster.removed)
"""
COMMAND = """
import os, sys
from pathlib import Path
from hopper.cli import main
Path(sys.argv[1]).write_text(str(os.getpid()))
sys.exit(main(sys.argv[2:]))
"""


def namespaces() -> set[str]:
    """Return the names of network namespaces that Hopper made."""
    folder = Path("/run/netns")
    return {path.name for path in folder.glob("hopper-*")} if folder.is_dir() else set()


def cgroups() -> set[Path]:
    """Return the control groups that Hopper made."""
    return {
        Path(folder) / name
        for folder, children, _ in os.walk("/sys/fs/cgroup")
        for name in children
        if name.startswith("hopper-")
    }


def names_of_process(pid: int) -> list[str]:
    """Return the names of the namespaces and control groups that a process made, sorted."""
    prefix = f"hopper-{pid}-"
    names = sorted(namespaces() | {path.name for path in cgroups()})
    return [name for name in names if name.startswith(prefix)]


def processes_on_hosts(pid: int) -> list[psutil.Process]:
    """Return the processes that run in the namespaces that a process made."""
    processes = []
    for name in names_of_process(pid):
        listing = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        )
        for word in listing.stdout.split():
            with suppress(psutil.Error):
                processes.append(psutil.Process(int(word)))
    return processes


def wait_until(condition: Callable[[], Any], limit: float = 60.0) -> Any:
    """Return what a condition gives once that is true; fail after a limit in seconds."""
    deadline = time.monotonic() + limit
    while not (result := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return result


@contextmanager
def build_or_skip(request: Request) -> Iterator[EmulatedCluster]:
    """Build hosts, and check that they are gone afterwards."""
    before = names_of_process(os.getpid())
    with emulate_hosts(request) as cluster:
        if not cluster.effective:
            pytest.skip(f"no emulated hosts here: {cluster.why_not}")
        yield cluster
    assert names_of_process(os.getpid()) == [] == before


@pytest.fixture
def two_hosts() -> Iterator[EmulatedCluster]:
    """Two hosts on links of 100 Mbit/s."""
    with build_or_skip(Request(2, "100mbit")) as cluster:
        yield cluster


@pytest.fixture
def train() -> Iterator[Callable[..., dict[str, Any]]]:
    """Return a function that trains on two hosts on links of 1 Gbit/s."""
    with build_or_skip(Request(2, "1gbit")) as cluster:
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
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return printed


def start_script(folder: Path, text: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """Run a script in an interpreter that has made this module's imports already. The process that
    is returned does not run the script itself, but ends as the script's process does."""
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script), *words]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, **options)


def end_hosts_left_behind(folder: Path) -> set[str]:
    """Build hosts once more; returns the names of what was removed before."""
    afterwards = start_script(folder, AFTERWARDS, stdout=subprocess.PIPE)
    printed, _ = afterwards.communicate(timeout=60)
    assert afterwards.returncode == 0
    return set(printed.split())


def test_a_link_has_its_rate_in_both_directions(two_hosts: EmulatedCluster) -> None:
    for sender, receiver in ((0, 1), (1, 0)):
        receiving = run_on(two_hosts, receiver, sys.executable, "-c", RECEIVE)
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "ready\n"
        address = two_hosts.hosts[receiver].network.address
        output_on(two_hosts, sender, sys.executable, "-c", SEND, address, str(8 << 20))
        printed, _ = receiving.communicate(timeout=30)
        assert receiving.returncode == 0
        assert 0.7 < float(printed) / 1e8 < 1.1


def test_a_host_sees_its_interface_and_no_way_out(two_hosts: EmulatedCluster) -> None:
    shown = output_on(two_hosts, 1, "ip", "-brief", "address").splitlines()
    names = {line.split()[0].partition("@")[0]: line for line in shown}
    assert set(names) == {"lo", "eth0"}
    assert two_hosts.hosts[1].network.address in names["eth0"]
    routes = output_on(two_hosts, 1, "ip", "route").splitlines()
    assert len(routes) == 1
    assert "default" not in routes[0]


def test_processes_on_a_host_stay_within_its_bounds() -> None:
    with build_or_skip(make_request(1, "none", 0.25, "256M")) as cluster:
        assert float(output_on(cluster, 0, sys.executable, "-c", SPIN)) < 0.5
        hungry = run_on(cluster, 0, sys.executable, "-c", "bytearray(b'x') * (1 << 29)")
        hungry.communicate(timeout=60)
        assert hungry.returncode == -signal.SIGKILL


def test_hosts_of_a_killed_process_are_removed_and_those_of_a_living_one_stay(
    two_hosts: EmulatedCluster, tmp_path: Path
) -> None:
    own_names = names_of_process(os.getpid())
    # Two hosts and a bridge.
    assert len(own_names) == 3
    builders = [start_script(tmp_path, BUILD, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        pids = []
        for builder in builders:
            assert builder.stdout is not None
            _, pid, _ = builder.stdout.readline().split("-", 2)
            pids.append(int(pid))
        dead_pid, living_pid = pids
        # The control groups of hosts have the names of the hosts.
        living_names = names_of_process(living_pid)
        dead_names = names_of_process(dead_pid)
        assert len(set(living_names)) == len(set(dead_names)) == 3
        os.kill(dead_pid, signal.SIGKILL)
        assert builders[0].wait(10) == -signal.SIGKILL
        assert names_of_process(dead_pid) == dead_names
        removed = end_hosts_left_behind(tmp_path)
        assert names_of_process(dead_pid) == []
        # Which run removed it is left open: one elsewhere on this machine may have come first.
        assert removed.isdisjoint(living_names)
        assert names_of_process(living_pid) == living_names
        builders[1].send_signal(signal.SIGINT)
        assert builders[1].wait(20) != 0
        assert names_of_process(living_pid) == []
    finally:
        for builder in builders:
            builder.kill()
            builder.communicate()
    # The other run's hosts are these.
    assert set(own_names) <= set(names_of_process(os.getpid()))


@pytest.fixture(scope="module")
def wide_config(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a configuration that trains on rows of 8 kB, beside which headers are small."""
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
    """Do something once ranks train; returns a function that waits until it is done."""

    def act() -> None:
        wait_until(lambda: (run_dir / "epochs.jsonl").exists())
        disturb()

    thread = threading.Thread(target=act)
    thread.start()
    return thread.join


def test_a_host_without_memory_is_named(config_file: Path, tmp_path: Path) -> None:
    message = r"host \d reached the bound of 64 MiB \(--host-memory\)"
    with (
        build_or_skip(make_request(2, "none", None, "64M")) as cluster,
        pytest.raises(ClusterError, match=message),
    ):
        train_on_hosts(cluster, "hop", config_file, tmp_path / "run", [], 120.0)


ENDLESS = ["--train.epochs", "1000000", "--train.evaluate_every", "0"]


@pytest.mark.parametrize(
    ("pattern", "message"),
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
    message: str,
) -> None:
    run_dir = tmp_path / "run"
    victims: list[int] = []

    def kill() -> None:
        on_hosts = processes_on_hosts(os.getpid())
        victim = [process for process in on_hosts if pattern in " ".join(process.cmdline())][-1]
        victims.append(victim.pid)
        victim.kill()

    join = _disturb(run_dir, kill)
    with pytest.raises(ClusterError, match="hop, round 1: ") as failed:
        train("hop, round 1", config_file, run_dir, ["--train.engine", "hop", *ENDLESS], 120.0)
    join()
    assert re.search(message.format(pid=victims[0]), str(failed.value)), failed.value
    assert str(run_dir) in str(failed.value)
    assert processes_on_hosts(os.getpid()) == []


def pids_of_ranks() -> set[int]:
    """Return the process ids of ranks on the hosts that this process made."""
    on_hosts = processes_on_hosts(os.getpid())
    module = "-m hopper.bench.emulate.waiting_rank "
    return {process.pid for process in on_hosts if module in " ".join(process.cmdline())}


def test_ranks_stay_from_run_to_run(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    """They compute the losses of new ranks. Another deadline, or an error, starts new ones."""

    def losses(name: str, engine: str, *words: str) -> list[list[float]]:
        overrides = ["--train.engine", engine, *words]
        summary = train(name, config_file, tmp_path / name, overrides, 120.0)
        assert "epoch 1" in (tmp_path / name / "hosts" / "0.log").read_text()
        return [epoch["iteration_losses"] for epoch in summary["epochs"]]

    first = losses("first", "zero_hop")
    ranks = pids_of_ranks()
    assert len(ranks) == 2
    losses("other", "hop")
    assert losses("again", "zero_hop") == first
    assert pids_of_ranks() == ranks
    other_deadline = ["--cluster.timeout_seconds", "59"]
    losses("deadline", "zero_hop", *other_deadline)
    new_ranks = pids_of_ranks()
    assert len(new_ranks) == 2
    assert new_ranks.isdisjoint(ranks)
    # These ranks begin at once what has no end.
    endless = [*ENDLESS, *other_deadline]
    with pytest.raises(DeadlineExceeded, match=r"endless: training .* within 3 s"):
        train("endless", config_file, tmp_path / "endless", endless, 3.0)
    assert processes_on_hosts(os.getpid()) == []
    assert losses("after", "zero_hop") == first
    # An agent that ends in between is seen before the next run begins.
    for process in processes_on_hosts(os.getpid()):
        process.kill()
    wait_until(lambda: processes_on_hosts(os.getpid()) == [])
    assert losses("at last", "zero_hop") == first


def test_broken_links_and_connections_cost_time_only(
    train: Callable[..., dict[str, Any]],
    config_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The losses stay the same, and ranks that have met again stay for the next run."""
    folder = REPOSITORY / "tests" / "train"
    monkeypatch.setenv("PYTHONPATH", own_path(folder))
    monkeypatch.syspath_prepend(str(folder))
    [bridge] = [name for name in names_of_process(os.getpid()) if name.endswith("-bridge")]

    def set_link(state: str) -> None:
        subprocess.run(["ip", "-n", bridge, "link", "set", "port1", state], check=True)

    def losses(name: str, *words: str) -> list[list[float]]:
        overrides = ["--train.engine", "hop", *words]
        summary = train(name, config_file, tmp_path / name, overrides, 120.0)
        return [epoch["iteration_losses"] for epoch in summary["epochs"]]

    def go_down() -> None:
        set_link("down")
        time.sleep(1.0)
        set_link("up")

    undisturbed = losses("undisturbed")
    assert len(undisturbed) == 2
    ranks = pids_of_ranks()
    cut = ['--train.callbacks=["cutting:Cutting"]']
    cut.append("--train.callbacks_options=[{rank = 1, moments = [[0, 1]]}]")
    join = _disturb(tmp_path / "cut", go_down)
    assert losses("cut", *cut) == undisturbed
    join()
    assert "reconnection 1 of 3" in (tmp_path / "cut" / "hosts" / "0.log").read_text()
    assert losses("again") == undisturbed
    assert pids_of_ranks() >= ranks


def test_ranks_with_other_threads_have_another_environment() -> None:
    one_thread, two_threads = (environment_of_ranks(threads) for threads in (1, 2))
    assert {name for name in two_threads if one_thread[name] != two_threads[name]} == {
        "OMP_NUM_THREADS"
    }


def test_a_bad_request_of_a_run_starts_nothing(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        train("hop", config_file, tmp_path / "run", ["--train.engine", "nonsense"], 60.0)


def _skip_without_hosts() -> None:
    with build_or_skip(Request(1)):
        pass


def _words_of_command(config_file: Path, out: Path, *words: str) -> list[str]:
    command = ["bench", "ab", str(config_file), "--engines", "zero_hop", "--rounds", "1"]
    return [*command, "--out", str(out), "--emulate", "2", *words]


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_signal_to_the_command_leaves_nothing(
    config_file: Path, tmp_path: Path, name: str
) -> None:
    _skip_without_hosts()
    out, log = tmp_path / "out", tmp_path / "log"
    words = _words_of_command(config_file, out, *ENDLESS, "--host-cpus", "1")
    with log.open("wb") as stream:
        running = start_script(
            *(tmp_path, COMMAND, str(tmp_path / "pid"), *words), stdout=stream, stderr=stream
        )
    epochs = out / "runs" / "zero_hop-round-0" / "epochs.jsonl"
    try:
        wait_until(lambda: epochs.exists() or running.poll() is not None, 120)
        assert running.poll() is None, log.read_text()
        pid = int((tmp_path / "pid").read_text())
        assert len(names_of_process(pid)) == 3
        commands = [" ".join(process.cmdline()) for process in processes_on_hosts(pid)]
        for module in ("cache_server", "machine_agent", "waiting_rank"):
            modules = rf"-m (\S+\.)?{module} "
            assert sum(re.search(modules, command) is not None for command in commands) == 2
        if name == "SIGKILL":
            os.kill(pid, signal.SIGKILL)
        else:
            running.send_signal(signal.SIGINT)
        code = running.wait(40)
    finally:
        running.kill()
        running.wait()
    assert code == -signal.SIGKILL if name == "SIGKILL" else code != 0
    if name == "SIGKILL":
        # What it started ends without it, at the latest when a wait's deadline of 60 s has passed;
        # its namespaces go when the next one starts.
        try:
            wait_until(lambda: not processes_on_hosts(pid), 100)
        except AssertionError:
            left = [
                (process.pid, process.status(), process.cmdline()[:6])
                for process in processes_on_hosts(pid)
            ]
            pytest.fail(f"left: {left}")
        assert len(names_of_process(pid)) == 3
        end_hosts_left_behind(tmp_path)
    assert names_of_process(pid) == []


def test_a_comparison_on_hosts_tells_the_interfaces_bytes(
    wide_config: Path, tmp_path: Path
) -> None:
    _skip_without_hosts()
    out = tmp_path / "out"
    words = ("--link-rate", "100mbit", "--host-memory", "2G", "--pipeline.depth", "0")
    command = [sys.executable, "-m", "hopper.cli", *_words_of_command(wide_config, out, *words)]
    done = subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200
    )
    printed = " ".join(done.stdout.decode().split())
    assert done.returncode == 0, printed
    assert "2 servers on emulated hosts (links of 100mbit, 2048 MiB each)" in printed
    assert "sent / counted" in printed
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
    assert "WARNING" not in printed


def test_sigterm_takes_hosts_down_from_within(config_file: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    join = _disturb(run_dir, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with (
        end_on_signals(),
        pytest.raises(KeyboardInterrupt),
        build_or_skip(Request(2)) as cluster,
    ):
        train_on_hosts(cluster, "hop", config_file, run_dir, ENDLESS, 120.0)
    join()
    assert names_of_process(os.getpid()) == []
