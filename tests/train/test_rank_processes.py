"""A rank that hangs after its work, and ranks that the launcher was just starting."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed.elastic.multiprocessing import api

from hopper.errors import DeadlineExceeded
from hopper.train.rank_failures import record_failure
from hopper.train.rank_processes import Machine, ToldToEnd, run_ranks, signals_as_exceptions

LIMIT, SLACK = 2.0, 10.0
SLEEP = "import time; time.sleep(600)"
RANK = """
import os, signal
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_that_stops_after_its_work_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank has ended, so only the launcher waits for this one."""
    (tmp_path / "stopping.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = time.monotonic()
    message = (
        rf"^rank 1 \(pid \d+\): ending after the other ranks did not finish within {LIMIT:g} s$"
    )
    with signals_as_exceptions(), pytest.raises(DeadlineExceeded, match=message):
        run_ranks(tmp_path / "config.json", 2, Machine(), "stopping", end_limit=LIMIT)
    assert time.monotonic() - start < LIMIT + SLACK


def test_a_signal_while_ranks_start_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's agent forgets the ranks that it has started if it cannot start them all."""
    start, started = api.get_subprocess_handler, []

    def start_one(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options).proc)
        if len(started) == 2:
            raise ToldToEnd(signal.SIGINT)

    monkeypatch.setattr(api, "get_subprocess_handler", start_one)
    # A scheduler may have set this for the launcher and all that it starts.
    monkeypatch.setenv("RANK", "0")
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as other_child:
        with signals_as_exceptions(), pytest.raises(ToldToEnd):
            run_ranks(Path(SLEEP), 3, Machine(), "timeit", end_limit=60.0)
        assert other_child.poll() is None
        other_child.kill()
    assert len(started) == 2
    assert not any(psutil.pid_exists(process.pid) for process in started)
    for process in started:
        process.wait(0)


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
