"""Disturbs runs at random moments, and judges how each of them ended."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from benchmarks.faults.cases import CASES, RESUME, Case
from benchmarks.faults.outcomes import WRONG, Outcome
from benchmarks.faults.running import SERVERS, Running, World, running
from benchmarks.faults.watched import Wrong
from hopper.errors import ClusterError

RECOVERED, ERROR = "recovered", "named error"
START, EPOCHS, END = STAGES = ("start-up", "epochs", "shut-down")
_STAGE_WEIGHTS: Final = (3, 5, 2)
_FIRST_MOMENT: Final = 0.5
"""seconds; before it, the interpreter itself is not up"""
_RESUMED: Final = 4
"""every so manyth run that ended early is started again, and has to end as if nothing was"""
_HANG_SECONDS: Final = 30.0
"""beyond its limit a run is given up"""


@dataclass(frozen=True)
class BaselineRun:
    """A run that nothing happens to: its losses, and the seconds of its phases."""

    losses: list[list[float]]
    meeting: float
    start: float
    epoch: float
    end: float
    total: float


@dataclass(frozen=True)
class Trial:
    """One run and what happens to it: in which stage, after how many epochs, how far into the stage
    or epoch, and to the rank, server or part of which index."""

    number: int
    case: str
    stage: str
    after_epoch: int
    share: float
    place: int


def measure(world: World) -> BaselineRun:
    """Let a run end without a disturbance, and measure it. Raise ClusterError if it fails."""
    begun = time.monotonic()
    with running(world, "undisturbed", 0) as run:
        moments, meeting = list[float](), 0.0
        while run.process.poll() is None:
            if not meeting and run.has_met:
                meeting = time.monotonic() - begun
            if run.epochs_done > len(moments):
                moments.append(time.monotonic() - begun)
            time.sleep(0.01)
        total = time.monotonic() - begun
        if run.process.returncode:
            raise ClusterError(f"a run that nothing happens to fails: {run.text[-600:]}")
        first, last = moments[0], moments[-1]
        epoch = (last - first) / max(1, world.epochs - 1)
        return BaselineRun(run.losses, meeting, first, epoch, total - last, total)


def draw_trials(count: int, cases: Sequence[str], epochs: int, seed: int) -> list[Trial]:
    """Draw equally many trials of each case, in the order in which they are tried."""
    draw, trials = random.Random(seed), []
    for number in range(count):
        stage = draw.choices(STAGES, _STAGE_WEIGHTS)[0]
        after = {START: 0, EPOCHS: draw.randrange(epochs), END: epochs}[stage]
        case = cases[number % len(cases)]
        trials.append(Trial(number, case, stage, after, draw.random(), draw.randrange(SERVERS)))
    return trials


def usable_cases() -> list[str]:
    """Return the names of the cases that this user can try."""
    return [name for name, case in CASES.items() if os.geteuid() == 0 or not case.needs_root]


def try_all(
    world: World, baseline: BaselineRun, trials: Sequence[Trial], at_once: int
) -> Iterator[Outcome]:
    """Try all trials, ``at_once`` of them side by side. Yield the outcome of each as it ends."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="trial") as pool:
        pending = [pool.submit(try_one, world, baseline, trial) for trial in trials]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            for future in pending:
                future.cancel()


def try_one(world: World, baseline: BaselineRun, trial: Trial) -> Outcome:
    """Start a run, disturb it, and judge how it ended."""
    case, name = CASES[trial.case], f"run-{trial.number}"
    words = ("--restarts", "3") if case.restarts else ()
    target, begun = (
        f"{trial.place}, {trial.stage}, after {trial.after_epoch} epochs",
        time.monotonic(),
    )
    try:
        with running(
            world, name, trial.place, *words, servers=case.servers, seed=trial.number,
            small_disk=case.disk, bounded_memory=case.memory,
        ) as run:  # fmt: skip
            _await_moment(run, trial, baseline)
            run.begun = time.monotonic()
            with suppress(ProcessLookupError):
                case.act(run)
            begun = run.begun
            outcome = _judge(run, case, trial, baseline)
        run.log.unlink()
    except Wrong as wrong:
        outcome = f"{WRONG}{wrong}"
    except Exception as error:
        # The other trials go on.
        outcome = f"{WRONG}could not be tried: {error!r}"
    return Outcome(case.name, target, case.expected, outcome, time.monotonic() - begun)


def _await_moment(run: Running, trial: Trial, baseline: BaselineRun) -> None:
    while run.process.poll() is None and not (
        trial.stage == START or (run.has_met and run.epochs_done >= trial.after_epoch)
    ):
        time.sleep(0.005)
    seconds = {
        START: _FIRST_MOMENT + trial.share * (baseline.meeting - _FIRST_MOMENT),
        EPOCHS: trial.share
        * (baseline.epoch if trial.after_epoch else baseline.start - baseline.meeting),
        END: trial.share * baseline.end,
    }[trial.stage]
    with suppress(subprocess.TimeoutExpired):
        run.process.wait(seconds)


def _judge(run: Running, case: Case, trial: Trial, baseline: BaselineRun) -> str:
    limits = run.world.limits
    # Ranks wait for each other only after they have started.
    early = run.epochs_done == 0
    to_the_error = (limits.start + baseline.start if early else limits.wait) + limits.grace
    to_the_error += case.seconds
    left_by_itself: list[str] = []
    until_the_end = to_the_error + 2 * baseline.total + limits.grace
    limit = to_the_error if case.expected == "error" else until_the_end
    code = run.await_end(limit + _HANG_SECONDS)
    if case.goes_on:
        run.await_nothing_left(to_the_error)
        # The launcher had to remove what it keeps for a while: the next one does.
        left_by_itself = [path.name for path in run.temporary.iterdir()]
        code = 0
        if not run.has_summary:
            run.train(*RESUME)
            code, left_by_itself = run.await_end(until_the_end), []
    elif case.memory and code == -signal.SIGKILL:
        # The kernel killed the launcher, which then neither prints nor removes anything. Servers
        # may still finish open requests.
        run.await_nothing_left(to_the_error)
        left_by_itself = [path.name for path in run.temporary.iterdir()]
    seconds = time.monotonic() - run.begun
    if left := run.members():
        raise Wrong(f"processes are left: {left}")
    run.check_files(left_by_itself)
    if code == 0 or (case.expected == "error" and code == -signal.SIGTERM and run.has_summary):
        if run.losses != baseline.losses:
            raise Wrong("ended well with other losses")
        return RECOVERED
    last_line = run.last_line
    _check_error(run, case, code, last_line)
    # The run may have trained to its end before the wait that failed.
    if seconds > to_the_error and seconds > limit:
        raise Wrong(f"ended after {seconds:.1f} s, limit {to_the_error:.1f}: {last_line}")
    if not case.memory and (trial.number + trial.number // len(CASES)) % _RESUMED == 0:
        _go_on(run, baseline)
    return f"{ERROR}: {last_line}"


def _check_error(run: Running, case: Case, code: int, last_line: str) -> None:
    if case.expected == "recovered" and not (case.named and run.returned_late):
        raise Wrong(f"should have recovered, ended with {code}: {last_line}")
    if code == -signal.SIGTERM and case.named and not last_line:
        # The signal came before there was anything to end in order.
        return
    if case.memory and code == -signal.SIGKILL:
        return
    if not re.search(case.named.format(place=run.place), last_line):
        raise Wrong(f"ended with {code}; the last line names something else: {last_line}")


def _go_on(run: Running, baseline: BaselineRun) -> None:
    """Start a run again that has ended, without any disturbance."""
    (run.folder / "ballast").unlink(missing_ok=True)
    serves_elsewhere = run.link is not None or run.victim is not None
    servers = '["' + '","'.join(run.world.servers) + '"]' if serves_elsewhere else "[]"
    run.train(*RESUME, "--cluster.servers", servers)
    code = run.await_end(2 * baseline.total + run.world.limits.grace)
    if code:
        raise Wrong(f"does not go on: {run.text[-300:]}")
    if run.losses != baseline.losses:
        raise Wrong("goes on with other losses")
