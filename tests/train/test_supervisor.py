"""Ranks that hang, fail and are started, as the process that started them sees it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopper.config import make_config
from hopper.errors import DeadlineExceeded, RunEnded
from hopper.launch import template as template_module
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.supervisor import Place, Supervisor
from hopper.process.signal_handlers import EndSignals
from hopper.train.rank_failures import record_failure

LIMIT, SLACK = 2.0, 10.0
START = "import os, signal, sys, time\n"


@pytest.fixture
def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Supervisor]:
    """Makes a supervisor of ranks that run some lines, with no servers."""

    def make(lines: str, ranks: int = 2) -> Supervisor:
        (tmp_path / "ranks_of_a_test.py").write_text(START + lines)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        config = make_config(
            {"data": {"partitioned": "parts"}, "cluster": {"timeout_seconds": LIMIT}}
        )
        places = [Place(server) for server in range(ranks)]
        return Supervisor(config, tmp_path, places, ranks)

    return make


def go(supervisor: Supervisor) -> None:
    supervisor.start("ranks_of_a_test", "127.0.0.1:1", serve=False)
    supervisor.release()
    supervisor.await_ranks(lambda: None)


def test_a_rank_that_stops_after_its_work_ends_the_run(supervise: Any) -> None:
    """The other rank has ended, so only the launcher waits for this one."""
    start = time.monotonic()
    message = (
        rf"^rank 1 \(pid \d+\): ending after the other ranks did not finish within {LIMIT:g} s$"
    )
    stops = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(DeadlineExceeded, match=message), supervise(stops) as supervisor:
        go(supervisor)
    assert time.monotonic() - start < LIMIT + SLACK


def test_the_rank_that_made_the_others_fail_is_named(supervise: Any) -> None:
    """Rank 0 misses rank 1, and says so first."""
    fails = """
from hopper.errors import ConfigError, RankLost
from hopper.train.rank_failures import tell_failure
if os.environ["RANK"] == "0":
    tell_failure(RankLost("rank 0: lost rank 1"))
else:
    time.sleep(0.3)
    tell_failure(ConfigError("train.seed: wrong"))
os._exit(1)
"""
    with pytest.raises(RanksFailed) as raised, supervise(fails) as supervisor:
        go(supervisor)
    assert "failed: train.seed: wrong" in str(explain(raised.value.failures))


def test_a_signal_while_ranks_start_leaves_none(
    supervise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the process starts that ranks are forked from, or when these are forked."""
    started: list[Any] = []

    def interrupt_after(start: Callable[..., Any]) -> Callable[..., Any]:
        def start_one(*arguments: Any, **options: Any) -> Any:
            started.append(start(*arguments, **options))
            os.kill(os.getpid(), signal.SIGINT)
            return started[-1]

        return start_one

    def start_and_wait() -> None:
        with EndSignals() as signals, supervise("time.sleep(600)", 3) as supervisor:
            supervisor.start("ranks_of_a_test", "127.0.0.1:1", serve=False)
            supervisor.release()
            supervisor.await_ranks(signals.check)

    for place, name, count in ((subprocess, "Popen", 1), (template_module, "ForkedRank", 3)):
        started.clear()
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupt_after(getattr(place, name)))
            with pytest.raises(RunEnded, match="SIGINT"):
                start_and_wait()
        assert len(started) == count
        assert not any(psutil.pid_exists(process.pid) for process in started)


def test_a_template_that_fails_leaves_no_rank(supervise: Any) -> None:
    """It ends while ranks wait for its end: no launcher would know them."""
    ranks: list[psutil.Process] = []

    def look(process: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):
            ranks.extend(process.children())

    def start_and_wait() -> None:
        with supervise("time.sleep(600)") as supervisor:
            supervisor.start("ranks_of_a_test", "127.0.0.1:1", serve=False)
            [template] = supervisor._templates
            process = psutil.Process(template.process.pid)
            # What it writes fails, and so it ends after it has forked.
            template._channel.shutdown(socket.SHUT_RD)
            supervisor.release()
            supervisor.await_ranks(lambda: look(process))

    with pytest.raises(RanksFailed) as raised:
        start_and_wait()
    assert "rank 0 (pid" in str(explain(raised.value.failures))
    psutil.wait_procs(ranks, SLACK)
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)


def test_what_torchrun_prints_of_an_own_error_is_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun prints the call stack that it finds in the record."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    error = DeadlineExceeded("rank 1", "connecting to the other ranks", 5.0, "set a variable")
    assert record_failure(error)
    recorded = json.loads((tmp_path / "error.json").read_text())["message"]
    assert recorded["message"] == recorded["extraInfo"]["py_callstack"] == str(error)
    assert str(error).endswith("within 5 s; set a variable")
