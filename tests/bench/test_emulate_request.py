"""What ``--emulate`` and its companions accept, and what happens where hosts cannot be had."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hopper.bench.emulate import hosts, network
from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.network import NotAvailable, burst_bytes, is_leftover, is_ours, own_name
from hopper.bench.emulate.reconcile import print_reconciliation, reconcile
from hopper.bench.emulate.request import Request, make_request, parse_rate, parse_size
from hopper.bench.emulate.train import threads_per_rank
from hopper.bench.results import RESULTS_FILE
from hopper.bench.table import describe_setting
from hopper.cli import main
from hopper.config import make_config
from hopper.errors import RequestError
from hopper.process.signal_handlers import defer_signals

from .conftest import make_results, make_run


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "100mbit", 10**8),
        (parse_rate, "2.5Gbit", 2_500_000_000),
        (parse_rate, "64kbit", 64_000),
        (parse_rate, "none", None),
        (parse_size, "2G", 2 << 30),
        (parse_size, "512m", 512 << 20),
        (parse_size, "1.5GiB", 3 << 29),
        (parse_size, "99999999", 99_999_999),
    ],
)
def test_link_rates_and_memory_sizes_are_read(parse, text, value):
    assert parse(text) == value


def test_impossible_link_rates_and_memory_sizes_are_refused():
    for text in ("", "fast", "100", "mbit", "-1mbit", "0gbit", "1 gbit", "1gbyte"):
        with pytest.raises(RequestError, match=r"--link-rate: expected .* given '" + text):
            parse_rate(text)
    for text in ("", "much", "1", "63M", "2T", "-2G"):
        with pytest.raises(RequestError, match=r"--host-memory: expected at least 64M"):
            parse_size(text)


def test_small_bursts_are_for_slow_links_only():
    """Below 64 kB the kernel's filter splits segments in software, which is slow."""
    assert burst_bytes(10**8) == 32 * 1024
    assert burst_bytes(10**8 + 1) == burst_bytes(10**9) == 128 * 1024
    assert burst_bytes(10**10) == 512 * 1024


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--emulate", "0"], "--emulate: expected 1 to 200 hosts, given 0"),
        (["--emulate", "3"], "has 2 partitions, which need 2 hosts; given 3"),
        (["--emulate", "2", "--link-rate", "quick"], "--link-rate: expected"),
        (["--emulate", "2", "--host-cpus", "0"], "--host-cpus: expected at least 0.05, given 0"),
        (["--emulate", "2", "--host-cpus", "nan"], "--host-cpus: expected at least"),
        (["--emulate", "2", "--host-memory", "5"], "--host-memory: expected"),
        (["--emulate", "2", "--cluster.interface=eth7"], "cluster.interface must be empty"),
        (["--link-rate", "1gbit"], "--link-rate: belongs to an emulated cluster"),
        (["--host-cpus", "1"], "--host-cpus: belongs to an emulated cluster"),
        (["--host-memory", "1G"], "--host-memory: belongs to an emulated cluster"),
    ],
)
def test_impossible_requests_are_refused(words, text, config_file, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["bench", str(config_file), "--engines", "hop", "--out", str(out)]
    assert main([*command, *words]) == 1
    assert text in capsys.readouterr().err
    assert not out.exists()


def test_hosts_bring_their_own_servers(tiny_config):
    config = make_config(tiny_config.model_dump() | {"cluster": {"servers": ["a:1", "b:1"]}})
    with pytest.raises(RequestError, match=r"cluster\.servers must be empty"):
        Request(2).check(config, 2)


@pytest.mark.parametrize(
    ("cpus", "ranks", "threads"), [(0.5, 1, 1), (1.5, 1, 2), (4.0, 2, 2), (1.0, 2, 1)]
)
def test_threads_follow_the_quota(cpus, ranks, threads):
    assert threads_per_rank(EmulatedCluster(Request(2, host_cpus=cpus), ()), ranks) == threads


def test_a_name_tells_which_process_made_it():
    name = own_name("host3")
    assert is_ours(name)
    assert not is_leftover(name)
    # A process of the same pid that started at another moment.
    pid, started = name.split("-")[1:3]
    reused = f"hopper-{pid}-{int(started) + 1}-host3"
    assert is_leftover(reused)
    assert not is_ours(reused)
    for foreign in ("", "hopper", "hopper-x-1-host0", "blue", f"{name}/x", f"my{name}"):
        assert not is_leftover(foreign)
        assert not is_ours(foreign)


def test_hosts_of_a_zombie_process_are_leftovers():
    # Killed, and not yet waited for: its number and its start are still to be seen.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        name = f"hopper-{process.pid}-{started}-host0"
        was_leftover = is_leftover(name)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (was_leftover, is_leftover(name)) == (False, True)


def test_a_held_signal_arrives_after_the_block():
    through = False
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 (the block is what is tested)
        with defer_signals():
            os.kill(os.getpid(), signal.SIGINT)
            through = True
        pytest.fail("the signal was lost")
    assert through


def _without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    # It may look at what is there, and not change it.
    monkeypatch.setattr(network.os, "geteuid", lambda: 1000)


def _without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    monkeypatch.setattr("hopper.process.enter_host._SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nowhere")


def _without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: str, *words: str, batch: Any = ()) -> str:
        raise NotAvailable(f"`{program} {words[0]}` failed: Operation not permitted")

    monkeypatch.setattr(network.os, "geteuid", lambda: 0)
    monkeypatch.setattr(network, "_run", refuse)
    monkeypatch.setattr(hosts, "remove_limits", lambda chosen=None: ["hopper-7-1-host1"])


@pytest.mark.parametrize(
    ("take_away", "text"),
    [
        (_without_root, "needs root; this process runs as user 1000"),
        (_without_programs, "the program `ip` is not installed"),
        (_without_rights, "Operation not permitted"),
    ],
)
def test_missing_rights_and_programs_are_named(take_away, text, monkeypatch):
    take_away(monkeypatch)
    with emulate_hosts(Request(2)) as cluster:
        assert cluster.describe()["effective"] is False
        assert text in cluster.describe()["why_not"]
        # What was removed before is told all the same.
        assert ("hopper-7-1-host1" in cluster.removed) == (take_away is _without_rights)


def test_without_hosts_a_comparison_runs_on_loopback_and_says_so(
    config_file, tmp_path, monkeypatch, capsys
):
    _without_root(monkeypatch)
    out = tmp_path / "out"
    words = [str(config_file), "--engines", "zero_hop", "--out", str(out), "--rounds", "1"]
    assert main(["bench", *words, "--emulate", "2", "--link-rate", "100mbit"]) == 0
    printed = capsys.readouterr().out
    assert "NOT EMULATED: making network namespaces needs root" in printed
    assert "2 servers on loopback" in " ".join(printed.split())
    results = json.loads((out / RESULTS_FILE).read_text())
    emulation = results["machine"]["emulation"]
    assert (emulation["hosts"], emulation["link_rate"]) == (2, "100mbit")
    assert emulation["effective"] is False
    assert results["runs"][0]["nic_bytes"] is None


def test_bytes_of_interfaces_are_compared_with_counted_bytes():
    # 4,200,000 bytes are counted in each run.
    runs = [
        make_run(engine, 0, [1.0]) | {"nic_bytes": nic_bytes}
        for engine, nic_bytes in (
            ("hop", [2_100_000, 2_310_000]),
            ("hop", [2_100_000, 2_100_000]),
            ("zero_hop", [3_000_000, 1_620_001]),
            ("locality", None),
        )
    ]
    hop, zero_hop = reconcile(runs)
    assert hop == ("hop", 8_400_000, 8_610_000)
    assert (hop.agrees, zero_hop.agrees) == (True, False)
    console = Console(width=120)
    with console.capture() as captured:
        print_reconciliation(console, runs)
    printed = captured.get()
    assert "1.025" in printed
    assert printed.count("WARNING") == 1
    assert "WARNING: zero_hop: what the interfaces sent and what was counted differ" in printed


def test_the_setting_tells_of_hosts():
    results = make_results([make_run("hop", 0, [1.0])], {"hop": 0.0})
    assert "on loopback" in describe_setting(results)
    emulation = make_request(2, "1gbit", 0.5, "2G").describe()
    results["machine"]["emulation"] = emulation | {"effective": True, "why_not": None}
    phrase = "2 servers on emulated hosts (links of 1gbit, 0.5 CPUs each, 2048 MiB each)"
    assert phrase in describe_setting(results)
