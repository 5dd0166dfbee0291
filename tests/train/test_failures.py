"""If a process of a run fails, the error names it and all other processes end."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from hopper.launch.failures import Failure, explain

# Seconds that every wait between the processes may take, and that taking them down may take.
TIMEOUT, END = 20.0, 20.0
# The deadline of runs in which a process hangs, the seconds after it that docs/howto/resume.md
# allows for, and what a machine under load may take besides.
DEADLINE, BOUND, SLACK = 5.0, 5.0, 5.0
HANGS: dict[str, Callable[[Any], Any]] = {
    "rank 0": lambda run: run.ranks()[0],
    "server 1": lambda run: run.server(1),
}


def start_run(runs: Any, name: str, timeout: float) -> Any:
    """Start a run of a million epochs; returns it once its second epoch has begun."""
    run = runs.train(
        name, "--cluster.timeout_seconds", str(timeout), epochs=1_000_000, evaluate_every=0
    )
    run.await_epochs(1)
    assert len(run.ranks()) == 2
    assert len(run.members()) == 4
    return run


@pytest.fixture(scope="module", autouse=True)
def hanging_runs(runs) -> Iterator[dict[str, Future[tuple[str, float]]]]:
    """The errors of runs in which a process hangs, and the seconds until then, by that process.

    Other runs and tests begin while one waits for its deadline.
    """
    with ThreadPoolExecutor(len(HANGS)) as pool:
        ends = {}
        for name, find in HANGS.items():
            run = start_run(runs, f"hung {name}", DEADLINE)
            find(run).suspend()
            ends[name] = pool.submit(await_error, run, time.monotonic())
        yield ends


def await_error(run: Any, start: float) -> tuple[str, float]:
    """The error that ends a run, and the seconds since ``start``; fails if anything is left."""
    assert run.finish(TIMEOUT + END) == 1
    run.assert_nothing_remains()
    (error,) = [line for line in run.stderr.splitlines() if line.startswith("error: ")]
    return error, time.monotonic() - start


def test_a_killed_rank_is_named(runs):
    run = start_run(runs, "killed", TIMEOUT)
    victim = run.ranks()[1]
    victim.kill()
    expected = f"rank 1 (pid {victim.pid}) was killed by SIGKILL; the other ranks were ended"
    assert expected in await_error(run, 0.0)[0]
    # What to do next, and where ranks' output is.
    assert "\nno checkpoint was written; train.checkpoint_every asks for them" in run.stderr
    assert f"output of ranks: {run.run_dir / 'ranks'}\n" in run.stderr


def test_of_several_ended_ranks_the_first_is_named():
    """Torchrun's agent tells only the second in which a rank ended, so times may be equal."""
    failures = [Failure(rank, 40 + rank, -signal.SIGTERM, "no record", 1e9) for rank in (2, 0, 1)]
    message = str(explain(failures))
    assert message == "rank 2 (pid 42) was killed by SIGTERM; the other ranks were ended"


def test_a_rank_that_hangs_ends_the_run_at_its_deadline(hanging_runs):
    """A stopped process is alive and does not react, so only the deadline finds it."""
    error, seconds = hanging_runs["rank 0"].result()
    assert re.fullmatch(
        r"error: rank 1 \(pid \d+\) failed: rank 1, waiting for rank 0: "
        rf".* did not finish within {DEADLINE:g} s",
        error,
    )
    assert seconds < DEADLINE + BOUND + SLACK


def test_a_server_that_hangs_ends_the_run_at_its_deadline(hanging_runs):
    error, seconds = hanging_runs["server 1"].result()
    assert re.match(r"error: rank 0 \(pid \d+\) failed: feature server 1 at 127.0.0.1:\d+: ", error)
    assert seconds < DEADLINE + BOUND + SLACK


def test_an_iteration_that_does_not_fit_memory_is_refused(runs, monkeypatch):
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", "1")
    run = runs.try_to_train("no room", epochs=1)
    assert run.code == 1
    assert re.search(
        r"train\.batch_size: rank \d reads \S+ KiB for its first iteration and holds 2 at a time, "
        r"but its share of the machine's memory leaves 0 B; expected at least \S+ KiB more",
        run.stderr,
    )
