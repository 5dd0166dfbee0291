"""Disturbs runs at random moments, and judges how each of them ended."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks.faults.cases import CASES, RESUME, Case
from benchmarks.faults.running import SERVERS, Running, World, running
from hopper.errors import ClusterError

RECOVERED, ERROR, WRONG = "recovered", "named error", "wrong"
STAGES: Final = ("start-up", "epochs", "shut-down", "after the end")
_STAGE_WEIGHTS: Final = (3, 5, 2, 0)
_FIRST_MOMENT: Final = 0.5
"""seconds; before it, the interpreter itself is not up"""
_RESUMED: Final = 4
"""every so manyth run that ended early is started again, and has to end as if nothing was"""
_HANG_SECONDS: Final = 30.0
"""beyond its limit a run is given up"""


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing happens to: its losses, and the seconds of its phases."""

    losses: list[list[float]]
    meeting: float
    start: float
    epoch: float
    end: float
    total: float


@dataclass
class Trial:
    """One run and what happens to it.

    Attributes
    ----------
    stage, after_epoch, share: the moment: in which stage, after how many epochs, and how far into
        the stage or epoch.
    found: the stage that the run was in then.
    writing: whether a checkpoint was being written.
    place: index of the rank, server or part.
    seconds: from the fault to the run's end, or to that of the run that went on.
    why: what is wrong.
    """

    number: int
    case: str
    stage: str
    after_epoch: int
    share: float
    place: int
    found: str = ""
    outcome: str = ""
    seconds: float = 0.0
    writing: bool = False
    resumed: bool = False
    last_line: str = ""
    why: str = ""


def measure(world: World) -> Undisturbed:
    """Let a run end without a disturbance, and measure it.

    Raises
    ------
    ClusterError: it does not end well.
    """
    begun = time.monotonic()
    with running(world, "undisturbed", 0) as run:
        moments, meeting = [], 0.0
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
        return Undisturbed(run.losses, meeting, first, epoch, total - last, total)


def draw_trials(count: int, cases: Sequence[str], epochs: int, seed: int) -> list[Trial]:
    """Draw equally many trials of each case, in the order in which they are tried."""
    draw = random.Random(seed)
    trials = []
    for number in range(count):
        stage = draw.choices(STAGES, _STAGE_WEIGHTS)[0]
        after = {"start-up": 0, "epochs": draw.randrange(epochs), "shut-down": epochs}[stage]
        trials.append(
            Trial(number, cases[number % len(cases)], stage, after, draw.random(),
                  draw.randrange(SERVERS))
        )  # fmt: skip
    return trials


def usable_cases() -> list[str]:
    """Return the names of the cases that this user can try."""
    return [name for name, case in CASES.items() if os.geteuid() == 0 or not case.needs_root]


def try_all(
    world: World,
    undisturbed: Undisturbed,
    trials: Sequence[Trial],
    at_once: int,
    begin: Callable[[Trial], None],
) -> Iterator[Trial]:
    """Try all trials, ``at_once`` of them side by side. Yield each as it ends; ``begin`` is told of
    each."""

    def try_next(trial: Trial) -> Trial:
        begin(trial)
        try:
            return try_one(world, undisturbed, trial)
        except Exception as error:
            # The other trials go on.
            trial.outcome, trial.why = WRONG, f"could not be tried: {error!r}"
            return trial

    with ThreadPoolExecutor(at_once, thread_name_prefix="trial") as pool:
        pending = [pool.submit(try_next, trial) for trial in trials]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            for future in pending:
                future.cancel()


def try_one(world: World, undisturbed: Undisturbed, trial: Trial) -> Trial:
    """Start a run, disturb it, and judge how it ended."""
    case = CASES[trial.case]
    with running(
        world, f"run-{trial.number}", trial.place, serving_by=case.serving_by, seed=trial.number,
        small_disk=case.small_disk, bounded_memory=case.bounded_memory, words=case.words,
    ) as run:  # fmt: skip
        _await_moment(run, trial, undisturbed)
        trial.found, trial.writing = _stage_of(run), run.is_writing
        run.begun = time.monotonic()
        with suppress(ProcessLookupError):
            case.act(run)
        try:
            trial.outcome = _judge(run, case, trial, undisturbed)
        except _Wrong as wrong:
            trial.outcome, trial.why = WRONG, str(wrong)
    if trial.outcome != WRONG:
        run.log.unlink()
    return trial


def _stage_of(run: Running) -> str:
    if run.process.poll() is not None:
        return STAGES[3]
    if run.epochs_done == run.world.epochs:
        return STAGES[2]
    return STAGES[int(run.has_met)]


class _Wrong(Exception):
    """The run neither recovered nor ended with a named error in time."""


def _await_moment(run: Running, trial: Trial, undisturbed: Undisturbed) -> None:
    while run.process.poll() is None and not (
        trial.stage == "start-up" or (run.has_met and run.epochs_done >= trial.after_epoch)
    ):
        time.sleep(0.005)
    first_epoch = undisturbed.start - undisturbed.meeting
    seconds = {
        "start-up": _FIRST_MOMENT + trial.share * (undisturbed.meeting - _FIRST_MOMENT),
        "epochs": trial.share * (undisturbed.epoch if trial.after_epoch else first_epoch),
        "shut-down": trial.share * undisturbed.end,
    }[trial.stage]
    with suppress(subprocess.TimeoutExpired):
        run.process.wait(seconds)


def _judge(run: Running, case: Case, trial: Trial, undisturbed: Undisturbed) -> str:
    limits = run.world.limits
    # Ranks wait for each other only after they have started.
    early = run.epochs_done == 0
    to_the_error = (limits.start + undisturbed.start if early else limits.wait) + limits.grace
    to_the_error += case.seconds
    left_by_itself: list[str] = []
    until_the_end = to_the_error + 2 * undisturbed.total + limits.grace
    limit = to_the_error if case.right == "error" and not case.goes_on else until_the_end
    code = _await_end(run, limit + _HANG_SECONDS)
    if case.kills_launcher:
        _await_nothing_left(run, to_the_error)
        # The launcher had to remove what it keeps for a while: the next one does.
        left_by_itself = [path.name for path in run.temporary.iterdir()]
        if run.has_summary:
            code = 0
        elif case.goes_on:
            run.start(*RESUME)
            code, left_by_itself = _await_end(run, until_the_end), []
    trial.seconds = time.monotonic() - run.begun
    lines = [line for line in run.log.read_text(errors="replace").splitlines() if line.strip()]
    # What to do next may stand below the error.
    errors = [line for line in lines if line.startswith("error: ")]
    trial.last_line = (errors or lines or [""])[-1][-300:]
    _check_leftovers(run, left_by_itself)
    if "Traceback" in run.text:
        raise _Wrong(f"a traceback: {run.text[run.text.index('Traceback') :][-600:]}")
    if code == 0 or (case.right == "error" and code == -signal.SIGTERM and run.has_summary):
        if run.losses != undisturbed.losses:
            raise _Wrong("ended well with other losses")
        return RECOVERED
    _check_error(run, case, trial, code)
    # The run may have trained to its end before the wait that failed.
    if trial.seconds > to_the_error and trial.seconds > limit:
        raise _Wrong(f"ended after {trial.seconds:.1f} s, limit {to_the_error:.1f}: "
                     f"{trial.last_line}")  # fmt: skip
    if not case.bounded_memory and (trial.number + trial.number // len(CASES)) % _RESUMED == 0:
        _go_on(run, trial, undisturbed)
    return ERROR


def _check_error(run: Running, case: Case, trial: Trial, code: int) -> None:
    last_line = trial.last_line
    if case.right == "recovered" and not (case.named and run.returned_late):
        raise _Wrong(f"should have recovered, ended with {code}: {last_line}")
    if code == -signal.SIGTERM and case.named and not last_line:
        # The signal came before there was anything to end in order.
        return
    if case.bounded_memory and code == -signal.SIGKILL:
        # The kernel killed the launcher, which then prints nothing.
        return
    if not re.search(case.named.format(place=run.place), last_line):
        raise _Wrong(f"ended with {code}; the last line names something else: {last_line}")


def _check_leftovers(run: Running, but: Sequence[str]) -> None:
    leftovers = []
    for process in run.members():
        with suppress(psutil.Error):
            leftovers.append(" ".join(process.cmdline())[-200:])
    if leftovers:
        raise _Wrong(f"processes are left: {leftovers}")
    files = [path.name for path in run.run_dir.rglob("*.unfinished")]
    files += [path.name for path in run.temporary.iterdir() if path.name not in but]
    if files:
        raise _Wrong(f"files are left: {files}")


def _await_end(run: Running, limit: float) -> int:
    try:
        return run.process.wait(limit)
    except subprocess.TimeoutExpired:
        raise _Wrong(f"did not end within {limit:.0f} s: {run.text[-300:]}") from None


def _await_nothing_left(run: Running, limit: float) -> None:
    deadline = time.monotonic() + limit
    while run.members():
        if time.monotonic() > deadline:
            raise _Wrong(f"its ranks and servers live {limit:.0f} s after the launcher was killed")
        time.sleep(0.02)


def _go_on(run: Running, trial: Trial, undisturbed: Undisturbed) -> None:
    """Start a run again that has ended, without any disturbance."""
    (run.folder / "ballast").unlink(missing_ok=True)
    trial.resumed = True
    servers = '["' + '","'.join(run.world.servers) + '"]' if run.serves_elsewhere else "[]"
    run.start(*RESUME, "--cluster.servers", servers)
    code = _await_end(run, 2 * undisturbed.total + run.world.limits.grace)
    if code:
        raise _Wrong(f"does not go on: {run.text[-300:]}")
    if run.losses != undisturbed.losses:
        raise _Wrong("goes on with other losses")
