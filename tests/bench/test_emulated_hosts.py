"""Emulated hosts are built, limited, trained on, and gone afterwards whatever happens.

Skipped with the reason where network namespaces cannot be had.
"""

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
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.request import Request, make_request
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.results import RESULTS_FILE
from hopper.bench.train_process import train_in_process
from hopper.cli import main
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded
from hopper.partition import partition_graph

from ..conftest import make_community_graph

REPOSITORY = Path(__file__).resolve().parents[2]
ENDLESS = ["--train.epochs", "1000000", "--train.evaluate_every", "0"]

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
connection.sendall(bytes(8 << 20))
"""
SPIN = """
import time
before, end = time.process_time(), time.time() + 1
while time.time() < end:
    pass
print(time.process_time() - before)
"""
BUILD = """
import subprocess, sys, time
from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import Request
with emulate_hosts(Request(2, "1gbit", 0.5)) as cluster:
    subprocess.Popen([*cluster.hosts[0].prefix, "setsid", "--fork", "sleep", "600"]).wait()
    print(*cluster.removed, flush=True)
    if "--wait" in sys.argv:
        time.sleep(600)
"""
COMMAND = """
import os, sys
from pathlib import Path
from hopper.cli import main
Path(sys.argv[1]).write_text(str(os.getpid()))
sys.exit(main(sys.argv[2:]))
"""


def names_of_process(pid: int) -> list[str]:
    """Return the names of the namespaces and control groups that a process made, sorted."""
    names = {path.name for path in Path("/run/netns").glob(f"hopper-{pid}-*")}
    for _, children, _ in os.walk("/sys/fs/cgroup"):
        names |= {name for name in children if name.startswith(f"hopper-{pid}-")}
    return sorted(names)


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
    with emulate_hosts(request) as cluster:
        if not cluster.effective:
            pytest.skip(f"no emulated hosts here: {cluster.why_not}")
        yield cluster
    assert names_of_process(os.getpid()) == []


@pytest.fixture
def hosts() -> Iterator[EmulatedCluster]:
    """Two hosts on links of 100 Mbit/s."""
    with build_or_skip(Request(2, "100mbit")) as cluster:
        yield cluster


def start_on(cluster: EmulatedCluster, host: int, *command: str) -> subprocess.Popen[str]:
    prefix = cluster.hosts[host].prefix
    return subprocess.Popen([*prefix, *command], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def output_on(cluster: EmulatedCluster, host: int, *command: str) -> str:
    process = start_on(cluster, host, *command)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    return printed


def start_script(folder: Path, text: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, str(script), *words]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, **options)


def build_again(folder: Path) -> list[str]:
    """Build hosts once more; returns the names of what was removed before."""
    building = start_script(folder, BUILD, stdout=subprocess.PIPE)
    printed, _ = building.communicate(timeout=60)
    assert building.returncode == 0
    return printed.split()


def test_a_host_has_one_interface_with_its_rate_in_both_directions(hosts):
    shown = output_on(hosts, 1, "ip", "-brief", "address").splitlines()
    names = {line.split()[0].partition("@")[0]: line for line in shown}
    assert set(names) == {"lo", "eth0"}
    assert hosts.hosts[1].network.address in names["eth0"]
    [route] = output_on(hosts, 1, "ip", "route").splitlines()
    assert "default" not in route
    for sender, receiver in ((0, 1), (1, 0)):
        receiving = start_on(hosts, receiver, sys.executable, "-c", RECEIVE)
        assert receiving.stdout is not None
        assert receiving.stdout.readline() == "ready\n"
        address = hosts.hosts[receiver].network.address
        output_on(hosts, sender, sys.executable, "-c", SEND, address)
        printed, _ = receiving.communicate(timeout=30)
        assert 0.7 < float(printed) / 1e8 < 1.1


def test_processes_on_a_host_stay_within_its_bounds():
    with build_or_skip(make_request(1, "none", 0.25, "256M")) as cluster:
        assert float(output_on(cluster, 0, sys.executable, "-c", SPIN)) < 0.5
        hungry = start_on(cluster, 0, sys.executable, "-c", "bytearray(b'x') * (1 << 29)")
        hungry.communicate(timeout=60)
        assert hungry.returncode == -signal.SIGKILL


def test_hosts_of_a_killed_process_are_removed_and_those_of_a_living_one_stay(hosts, tmp_path):
    own_names = names_of_process(os.getpid())
    # Two hosts and a bridge.
    assert len(own_names) == 3
    script = [tmp_path / name for name in ("killed", "living")]
    builders = []
    try:
        for folder in script:
            folder.mkdir()
            pid_file = folder / "pid"
            text = f"import os\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\n{BUILD}"
            builders.append(start_script(folder, text, "--wait", stdout=subprocess.PIPE))
        for builder in builders:
            assert builder.stdout is not None
            builder.stdout.readline()
        killed, living = (int((folder / "pid").read_text()) for folder in script)
        names = {pid: names_of_process(pid) for pid in (killed, living)}
        # Control groups have the names of their hosts.
        assert [len(made) for made in names.values()] == [3, 3]
        os.kill(killed, signal.SIGKILL)
        assert builders[0].wait(10) == -signal.SIGKILL
        assert names_of_process(killed) == names[killed]
        removed = build_again(tmp_path)
        # A run elsewhere on this machine may have removed them before.
        assert set(removed).isdisjoint(names[living])
        assert names_of_process(killed) == []
        assert names_of_process(living) == names[living]
        builders[1].send_signal(signal.SIGINT)
        assert builders[1].wait(20) != 0
        assert names_of_process(living) == []
    finally:
        for builder in builders:
            builder.kill()
            builder.communicate()
    assert names_of_process(os.getpid()) == own_names


@pytest.fixture(scope="module")
def wide_config(tiny_config, tmp_path_factory) -> Path:
    """The path of a configuration that trains on rows of 8 kB, beside which headers are small."""
    folder = tmp_path_factory.mktemp("wide")
    graph = make_community_graph(folder / "graph", nodes=240, feature_dim=2048, train=130)
    partition_graph(graph, folder / "partitioned", 2, backend="pymetis")
    values = tiny_config.model_dump()
    values["data"]["partitioned"] = str(folder / "partitioned")
    values["model"]["hidden"] = 2
    values["pipeline"]["depth"] = 0
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def test_a_comparison_on_hosts_tells_the_interfaces_bytes(wide_config, tmp_path, capsys):
    with build_or_skip(Request(1)):
        pass
    out = tmp_path / "out"
    words = ["--link-rate", "100mbit", "--host-memory", "2G", "--train.threads", "1"]
    code = main([*_bench_words(wide_config, out), *words])
    printed = " ".join("".join(capsys.readouterr()).split())
    assert code == 0, printed
    assert "2 servers on emulated hosts (links of 100mbit, 2048 MiB each)" in printed
    assert "sent / counted" in printed
    assert "WARNING" not in printed
    results = json.loads((out / RESULTS_FILE).read_text())
    assert results["machine"]["emulation"] == {
        "hosts": 2,
        "link_rate": "100mbit",
        "host_cpus": None,
        "host_memory": 2 << 30,
        "effective": True,
        "why_not": None,
    }
    [run] = results["runs"]
    counted = sum(epoch["sent_bytes"] for epoch in run["epochs"])
    assert sum(epoch["bytes"]["feature"] for epoch in run["epochs"]) > 0.8 * counted
    assert counted < sum(run["nic_bytes"]) < 1.1 * counted
    assert min(run["nic_bytes"]) > 0.2 * counted
    # On loopback the losses are the same, and no interface is read.
    run_dir = out / "runs" / "zero_hop-round-0"
    words = ["--train.engine=zero_hop", "--train.threads=1"]
    here = train_in_process("zero_hop", wide_config, tmp_path / "here", words, 120.0)
    on_hosts = json.loads((run_dir / "summary.json").read_text())
    losses = [[epoch["iteration_losses"] for epoch in run["epochs"]] for run in (on_hosts, here)]
    assert losses[0] == losses[1]
    assert [epoch["nic_bytes"] for epoch in here["epochs"]] == [None, None]


def _bench_words(config_file: Path, out: Path) -> list[str]:
    command = ["bench", str(config_file), "--engines", "zero_hop", "--rounds", "1"]
    return [*command, "--out", str(out), "--emulate", "2"]


def test_a_killed_command_leaves_nothing(config_file, tmp_path):
    """What it started ends without it, at the latest when a wait's deadline has passed; its
    namespaces go when the next one starts."""
    with build_or_skip(Request(1)):
        pass
    out, log = tmp_path / "out", tmp_path / "log"
    words = [*_bench_words(config_file, out), *ENDLESS, "--host-cpus", "1"]
    with log.open("wb") as stream:
        running = start_script(
            tmp_path, COMMAND, str(tmp_path / "pid"), *words, stdout=stream, stderr=stream
        )
    epochs = out / "runs" / "zero_hop-round-0" / "epochs.jsonl"
    try:
        wait_until(lambda: epochs.exists() or running.poll() is not None, 120)
        assert running.poll() is None, log.read_text()
        pid = int((tmp_path / "pid").read_text())
        assert len(names_of_process(pid)) == 3
        on_hosts = processes_on_hosts(pid)
        assert sorted(process.name() for process in on_hosts) == [
            "cache_server 0",
            "cache_server 1",
            "hopper rank 0",
            "hopper rank 1",
        ]
        os.kill(pid, signal.SIGKILL)
        assert running.wait(40) != 0
    finally:
        running.kill()
        running.wait()
    wait_until(lambda: not processes_on_hosts(pid), 100)
    assert len(names_of_process(pid)) == 3
    build_again(tmp_path)
    assert names_of_process(pid) == []


def test_a_refused_or_late_run_leaves_no_process(hosts, config_file, tmp_path):
    wrong, late = (["--train.engine", "nonsense"], 60.0), (ENDLESS, 3.0)
    with pytest.raises(ConfigError, match="nonsense"):
        train_on_hosts(hosts, "hop", config_file, tmp_path / "wrong", *wrong)
    with pytest.raises(DeadlineExceeded, match="hop: training did not finish within 3 s"):
        train_on_hosts(hosts, "hop", config_file, tmp_path / "late", *late)
    assert processes_on_hosts(os.getpid()) == []


def test_a_host_without_memory_is_named(config_file, tmp_path):
    message = r"host \d reached the bound of 64 MiB \(--host-memory\)"
    words = ["--model.hidden", "300000"]
    with (
        build_or_skip(make_request(2, "none", None, "64M")) as cluster,
        pytest.raises(ClusterError, match=message),
    ):
        train_on_hosts(cluster, "hop", config_file, tmp_path / "run", words, 120.0)


def test_what_is_killed_on_a_host_is_named_and_everything_ended(hosts, config_file, tmp_path):
    run_dir, victims = tmp_path / "run", []

    def kill() -> None:
        """Kill a feature server once ranks train."""
        wait_until(lambda: (run_dir / "epochs.jsonl").exists(), 200)
        on_hosts = processes_on_hosts(os.getpid())
        [*_, victim] = [process for process in on_hosts if process.name().startswith("cache")]
        victims.append(victim.pid)
        victim.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    words = ["--train.engine", "hop", *ENDLESS]
    with pytest.raises(ClusterError, match="hop, round 1: ") as failed:
        train_on_hosts(hosts, "hop, round 1", config_file, run_dir, words, 240.0)
    thread.join()
    message = rf"feature server \d \(pid {victims[0]}, 10\.213\.0\..*by"
    assert re.search(message, str(failed.value)), failed.value
    assert processes_on_hosts(os.getpid()) == []
