"""Real hosts: built, rate-limited, bounded, trained on, and gone afterwards whatever happens.

Skipped with the reason where network namespaces cannot be had.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopper.bench.emulate.hosts import EmulatedCluster, emulated
from hopper.bench.emulate.request import Request, make_request
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.results import RESULTS_FILE
from hopper.bench.train_process import ended_by_signals
from hopper.config import Config
from hopper.errors import ClusterError, DeadlineExceeded

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


def processes_naming(text: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if text in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def await_(condition: Callable[[], Any], limit: float = 60.0) -> Any:
    """What a condition gives once it gives something."""
    deadline = time.monotonic() + limit
    while not (given := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
    return given


def built_or_skipped(request: Request) -> Iterator[EmulatedCluster]:
    with emulated(request) as cluster:
        if not cluster.effective:
            pytest.skip(f"no emulated hosts here: {cluster.why_not}")
        yield cluster
    assert of_process(os.getpid()) == []


@pytest.fixture
def two_hosts() -> Iterator[EmulatedCluster]:
    """Two hosts on links of 100 Mbit/s."""
    yield from built_or_skipped(Request(2, "100mbit"))


@pytest.fixture(scope="module")
def fast_hosts() -> Iterator[EmulatedCluster]:
    """Two hosts on links of 1 Gbit/s, to train on."""
    yield from built_or_skipped(Request(2, "1gbit"))


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
    for cluster in built_or_skipped(make_request(1, "none", 0.25, "256M")):
        spin = "import time\nend = time.time() + 1\nwhile time.time() < end: pass\nprint(time.process_time())"
        assert float(output_on(cluster, 0, sys.executable, "-c", spin)) < 0.5
        hungry = run_on(cluster, 0, sys.executable, "-c", "bytearray(b'x') * (1 << 29)")
        hungry.communicate(timeout=60)
        assert hungry.returncode == -signal.SIGKILL


def test_what_a_killed_process_left_is_removed_and_a_living_ones_is_kept(
    two_hosts: EmulatedCluster,
) -> None:
    own = of_process(os.getpid())
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
        # Two hosts and a bridge; the groups of the hosts have the names of the hosts.
        kept = of_process(living.pid)
        left = of_process(dead.pid)
        assert len(set(kept)) == len(set(left)) == 3
        dead.kill()
        assert dead.wait(10) == -signal.SIGKILL
        assert of_process(dead.pid) == left
        with emulated(Request(1)) as cluster:
            assert set(cluster.removed) >= set(left)
            assert of_process(dead.pid) == []
            assert of_process(living.pid) == kept
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


@pytest.fixture
def train(fast_hosts: EmulatedCluster) -> Callable[..., dict[str, Any]]:
    return partial(train_on_hosts, fast_hosts)


def test_a_run_on_hosts_counts_what_the_interfaces_send(
    train: Callable[..., dict[str, Any]], tiny_config: Config, config_file: Path, tmp_path: Path
) -> None:
    # Twelve iterations an epoch, so that rows outweigh what starting an epoch takes.
    words = ["--train.engine", "model_centric", "--train.batch_size", "6", "--model.hidden", "4"]
    summary = train("model_centric, round 1", config_file, tmp_path / "run", words, 120.0)
    assert summary["ranks"] == 2
    for epoch in summary["epochs"]:
        counted = sum(epoch["bytes"].values())
        assert epoch["bytes"]["feature"] > 0.8 * counted
        assert len(epoch["nic_bytes"]) == 2
        assert min(epoch["nic_bytes"]) > 0.2 * counted
        assert 1.0 <= sum(epoch["nic_bytes"]) / counted < 1.1
    # On hosts with a share of two cores each rank takes one thread, and says so.
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["train"]["threads"] >= 1
    assert written["cluster"]["interface"] == "eth0"


def test_the_same_run_on_loopback_has_the_same_losses(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    from hopper.bench.train_process import train_in_process

    words = ["--train.engine", "zero_hop", "--train.threads", "1"]
    on_hosts = train("zero_hop", config_file, tmp_path / "hosts", words, 120.0)
    here = train_in_process("zero_hop", config_file, tmp_path / "here", words, 120.0)
    losses = [[epoch["iteration_losses"] for epoch in run["epochs"]] for run in (on_hosts, here)]
    assert losses[0] == losses[1]
    assert [epoch["nic_bytes"] for epoch in here["epochs"]] == [None, None]


def _disturb(run_dir: Path, disturb: Callable[[], None]) -> Callable[[], None]:
    """Do something once ranks train; to be called to wait for it."""
    import threading

    def act() -> None:
        await_(lambda: (run_dir / "epochs.jsonl").exists())
        disturb()

    thread = threading.Thread(target=act)
    thread.start()
    return thread.join


ENDLESS = ["--train.epochs", "1000000", "--train.evaluate_every", "0"]


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("-m hopper.train ", r"rank \d \(pid {pid}\) was killed by SIGKILL"),
        ("-m cache_server ", r"feature server \d \(pid {pid}, 10\.213\.0\.\d:.*was killed by SIGKILL"),
        ("emulate.agent ", r"host \d: the agent of its ranks \(pid {pid}\) was killed by SIGKILL"),
    ],
)  # fmt: skip
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
        own = [each for each in processes_naming(str(tmp_path)) + processes_naming(
            "cache_server") if pattern in " ".join(each.cmdline())]  # fmt: skip
        mine = [each for each in own if psutil.Process() in each.parents()]
        victims.append(mine[-1].pid)
        mine[-1].kill()

    joined = _disturb(run_dir, kill)
    with pytest.raises(ClusterError, match="hop, round 1: ") as failed:
        train("hop, round 1", config_file, run_dir, ["--train.engine", "hop", *ENDLESS], 120.0)
    joined()
    assert pytest.approx(1) == len(victims)
    assert __import__("re").search(told.format(pid=victims[0]), str(failed.value)), failed.value
    assert str(run_dir) in str(failed.value)
    assert processes_naming(str(tmp_path)) == []


def test_a_run_on_hosts_past_its_deadline_is_ended(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(DeadlineExceeded, match=r"hop, parity run: training .* within 4 s"):
        train("hop, parity run", config_file, tmp_path / "run", ENDLESS, 4.0)
    assert processes_naming(str(tmp_path)) == []


def test_a_bad_request_of_a_run_starts_nothing(
    train: Callable[..., dict[str, Any]], config_file: Path, tmp_path: Path
) -> None:
    from hopper.errors import ConfigError

    with pytest.raises(ConfigError, match="nonsense"):
        train("hop", config_file, tmp_path / "run", ["--train.engine", "nonsense"], 60.0)


def _start_command(config_file: Path, out: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hopper.cli", "bench", "ab", str(config_file)]
    command += ["--engines", "zero_hop", "--rounds", "1", "--out", str(out), "--emulate", "2"]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen([*command, *words], cwd=REPOSITORY, stdout=log, stderr=log)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_signal_to_the_command_leaves_nothing(
    two_hosts: EmulatedCluster, config_file: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    running = _start_command(config_file, out, *ENDLESS, "--host-cpus", "1")
    epochs = out / "runs" / "zero_hop-round-0" / "epochs.jsonl"
    try:
        await_(lambda: epochs.exists() or running.poll() is not None, 120)
        assert running.poll() is None, out.with_suffix(".log").read_text()
        assert len(of_process(running.pid)) == 3
        # The command, two agents, two ranks.
        assert len(processes_naming(str(tmp_path))) >= 5
        running.send_signal(signal.Signals[name])
        code = running.wait(40)
    finally:
        running.kill()
        running.wait()
    assert code == -signal.SIGKILL if name == "SIGKILL" else code != 0
    servers = partial(processes_naming, f"{out}/")
    if name == "SIGKILL":
        # What it started ends without it; its namespaces go when the next one starts.
        await_(lambda: not servers() and not processes_naming(str(tmp_path)), 40)
        assert len(of_process(running.pid)) == 3
        with emulated(Request(1)) as cluster:
            assert cluster.effective
    assert processes_naming(str(tmp_path)) == []
    assert of_process(running.pid) == []


def test_a_comparison_on_hosts_tells_the_interfaces_bytes(
    two_hosts: EmulatedCluster, config_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    # Without evaluation in between, and with rows enough to outweigh the rest.
    running = _start_command(config_file, out, "--link-rate", "100mbit", "--host-memory", "2G")
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
    counted = sum(sum(epoch["bytes"].values()) for epoch in run["epochs"])
    assert counted < sum(run["nic_bytes"]) < 1.2 * counted
    assert of_process(running.pid) == []


def test_sigterm_takes_hosts_down_from_within(config_file: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    joined = _disturb(run_dir, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with ended_by_signals(), pytest.raises(KeyboardInterrupt):
        for cluster in built_or_skipped(Request(2)):
            train_on_hosts(cluster, "hop", config_file, run_dir, ENDLESS, 120.0)
    joined()
    assert processes_naming(str(tmp_path)) == []
