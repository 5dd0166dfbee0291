"""Ranks that hang, fail and are started, as the process that started them sees it."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from cache_server import available_memory
from hopper.config import make_config
from hopper.errors import DeadlineExceeded, RunEnded
from hopper.launch import processes
from hopper.launch import supervisor as supervisor_module
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.processes import ForkedProcess, start_module
from hopper.launch.supervisor import Place, Supervisor
from hopper.process.signal_handlers import defer_signals, recorded_signals
from hopper.train.rank_process import record_failure
from tests.server_processes import own_path, run_python

LIMIT, SLACK = 2.0, 10.0
START = "import os, signal, sys, time\n"
# The state of a launcher at the time at which it forks.
FORKS = """
import os, sys
from hopper.config import make_config
from hopper.launch import processes

with processes.forked_ahead(make_config({"data": {"partitioned": sys.argv[1]}})):
    import torch
    threads = len(os.listdir("/proc/self/task"))
    print(f"{len(processes._waiting)} forks, {threads} threads, {torch.cuda.is_initialized()}")
    from hopper.train.rank import use_threads
    use_threads(1)
    print(torch.get_num_threads())
"""


@pytest.fixture(params=["anew", "forked"])
def supervise(request, tmp_path, monkeypatch) -> Iterator[Callable[..., Supervisor]]:
    """Makes a supervisor of ranks that run some lines, with no servers. They are started anew, or
    have been forked from this process."""
    waiting: list[ForkedProcess] = []
    monkeypatch.setattr(processes, "_waiting", waiting)

    def make(lines: str, ranks: int = 2) -> Supervisor:
        (tmp_path / "tried_ranks.py").write_text(START + lines)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(tmp_path)
        if request.param == "forked":
            waiting.extend(ForkedProcess() for _ in range(ranks))
        config = make_config(
            {"data": {"partitioned": "parts"}, "cluster": {"timeout_seconds": LIMIT}}
        )
        places = [Place(server) for server in range(ranks)]
        return Supervisor(config, tmp_path, places, ranks)

    yield make
    assert not waiting


def go(supervisor: Supervisor, check: Callable[[], None] = lambda: None) -> None:
    supervisor.start_ranks("tried_ranks", "127.0.0.1:1")
    supervisor.await_ranks(check)


def fail(made: Supervisor) -> str:
    """Await ranks of which some fail; return the error that explains it."""
    with pytest.raises(RanksFailed) as raised, made as supervisor:
        go(supervisor)
    return str(explain(raised.value.failures))


def test_a_rank_that_stops_after_its_work_ends_the_run(supervise):
    """The other rank has ended, so only the launcher waits for this one."""
    start = time.monotonic()
    message = (
        rf"^rank 1 \(pid \d+\): ending after the other ranks did not finish within {LIMIT:g} s$"
    )
    stops = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(DeadlineExceeded, match=message), supervise(stops) as supervisor:
        go(supervisor)
    assert time.monotonic() - start < LIMIT + SLACK


@pytest.mark.parametrize(("already", "share"), [(None, "500"), ("7", "7")])
def test_places_share_the_memory_of_their_machine(supervise, monkeypatch, already, share):
    monkeypatch.delenv("HOPPER_MEMORY_LIMIT", raising=False)
    if already is not None:
        monkeypatch.setenv("HOPPER_MEMORY_LIMIT", already)
    monkeypatch.setattr(available_memory, "available_memory", lambda: 1000)
    looks = f"sys.exit(os.environ['HOPPER_MEMORY_LIMIT'] != {share!r})"
    with supervise(looks) as supervisor:
        go(supervisor)


def test_the_rank_that_made_the_others_fail_is_named(supervise):
    """Rank 0 misses rank 1, and says so first."""
    fails = """
from hopper.errors import ConfigError, RankLost
from hopper.train.rank_process import tell_failure
if os.environ["RANK"] == "0":
    tell_failure(RankLost("rank 0: lost rank 1"))
else:
    time.sleep(0.3)
    tell_failure(ConfigError("train.seed: wrong"))
os._exit(1)
"""
    assert "failed: train.seed: wrong" in fail(supervise(fails))


def test_a_killed_rank_is_named_even_if_another_ignores_sigterm(supervise):
    """The launcher kills the other after its deadline."""
    fails = """
if os.environ["RANK"] == "1":
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
    text = r"rank 1 \(pid \d+\) was killed by SIGKILL; the other ranks were ended"
    assert re.fullmatch(text, fail(supervise(fails)))


def test_a_signal_while_ranks_start_leaves_none(supervise, monkeypatch):
    start, started = start_module, []

    def start_one(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(supervisor_module, "start_module", start_one)
    with (
        pytest.raises(RunEnded, match="SIGINT"),
        recorded_signals() as check,
        supervise("time.sleep(600)", 3) as supervisor,
    ):
        go(supervisor, check)
    assert len(started) == 3
    assert not any(psutil.pid_exists(process.pid) for process in started)


def test_a_fork_whose_parent_ends_at_once_ends_too(monkeypatch):
    """The signal that says so comes while its parent defers signals, as its handlers still do."""
    ends = lambda _parent: signal.raise_signal(signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr(processes, "end_with_parent", ends)
    with defer_signals():
        fork = ForkedProcess()
    fork.join(SLACK)
    fork.kill()
    assert fork.wait() == -signal.SIGTERM


@pytest.mark.parametrize("supervise", ["forked"], indirect=True)
def test_a_fork_that_is_killed_while_it_waits_is_a_lost_rank(supervise):
    made = supervise("time.sleep(600)")
    processes._waiting[-1].kill()
    assert "rank 0 (pid" in (text := fail(made))
    assert "was killed by SIGKILL" in text


def test_a_fork_is_as_a_new_process(supervise, tmp_path):
    """Each has a session, numbers and signal handlers of its own, nothing to read, and ends as
    Python does."""
    says = """
import atexit, json, numpy, pathlib
numbers = numpy.random.rand(2).tolist()
handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
facts = {
    "rank": int(os.environ["RANK"]), "words": sys.argv[1:], "input": sys.stdin.read(),
    "variables": sorted(name for name in os.environ if name.startswith("LOCAL_")),
    "leads": os.getsid(0) == os.getpid(), "parent": os.getppid(), "numbers": numbers,
    "handlers": [handlers[0] is signal.SIG_DFL, handlers[1] is signal.default_int_handler],
}
file = pathlib.Path(f"{__file__}.{os.environ['RANK']}")
atexit.register(file.write_text, json.dumps(facts))
"""
    with supervise(says) as supervisor:
        go(supervisor)
    first, second = (
        json.loads((tmp_path / f"tried_ranks.py.{rank}").read_text()) for rank in range(2)
    )
    assert first.pop("numbers") != second.pop("numbers")
    expected = {
        "words": [str(tmp_path / "config.json")],
        "input": "",
        "variables": ["LOCAL_RANK", "LOCAL_WORLD_SIZE"],
        "leads": True,
        "parent": os.getpid(),
        "handlers": [True, True],
    }
    assert [first, second] == [{"rank": 0, **expected}, {"rank": 1, **expected}]


def test_processes_are_forked_before_threads_start_and_gpus_are_touched(tmp_path):
    (tmp_path / "partition.json").write_text('{"servers": 2}')
    done = run_python("-c", FORKS, str(tmp_path), OMP_NUM_THREADS="1", PYTHONPATH=own_path())
    assert done.returncode == 0, done.stderr
    # numba has as many threads as there are cores, also where it shares OpenMP with torch.
    assert done.stdout == "4 forks, 1 threads, False\n1\n"


def test_where_memory_runs_out_a_rank_ends_before_its_launcher():
    says = (
        "from hopper.train import rank_process\n"
        "rank_process.main = lambda *_: print(open('/proc/self/oom_score_adj').read())\n"
        "rank_process.run(None, '')\n"
    )
    done = run_python("-c", says)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 500


def test_what_torchrun_prints_of_an_own_error_is_its_line(tmp_path, monkeypatch):
    """torchrun prints the call stack that it finds in the record."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    error = DeadlineExceeded("rank 1", "connecting to the other ranks", 5.0, "set a variable")
    assert record_failure(error)
    recorded = json.loads((tmp_path / "error.json").read_text())["message"]
    assert recorded["message"] == recorded["extraInfo"]["py_callstack"] == str(error)
    assert str(error).endswith("within 5 s; set a variable")
