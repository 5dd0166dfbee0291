"""The spans of all ranks on one time axis, for a few iterations of the last epoch.

Every rank writes ``start`` in seconds since it opened its log. Ranks that name the same clock are
aligned exactly by this clock. Ranks on several machines have different clocks. They are aligned by
the wait that ends an iteration. No rank leaves this wait before the last rank has come. So it ends
at the same moment everywhere, up to the time that a message takes. The offset of a rank is the
median over the epoch's iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal, NamedTuple

from hopper.bench.span_lines import log_files, log_lines
from hopper.errors import RequestError
from hopper.run_log import OPENED, STAGES

SHOWN_ITERATIONS: Final = 3
"""The first iterations of the last epoch are shown. More would only make the file larger."""
_KEPT_ITERATIONS: Final = 8
_KEPT_AHEAD: Final = 40
"""The same limit for spans of threads that work ahead."""

Key = tuple[int, int]
"""Epoch and iteration."""
Alignment = Literal["clock", "barriers", "none"]


class Span(NamedTuple):
    """A stage of one rank.

    Attributes
    ----------
    start: seconds since the first rank began the iteration.
    thread: the name of a thread that prepares other iterations. Empty for the thread that trains.
    """

    rank: int
    stage: str
    start: float
    seconds: float
    model: int | None
    step: int | None
    details: Mapping[str, Any]
    thread: str = ""


class Passage(NamedTuple):
    """The way of a model, from the start of the sender's ``migrate`` to the receiver's end."""

    model: int
    step: int
    source: int
    target: int
    leaves: float
    arrives: float


@dataclass(frozen=True)
class Timeline:
    """One iteration on all ranks."""

    epoch: int
    iteration: int
    ranks: int
    seconds: float
    spans: tuple[Span, ...]
    passages: tuple[Passage, ...]
    alignment: Alignment


@dataclass(frozen=True)
class _Opened:
    """The moment at which a log was opened, by two clocks. ``clock`` names the second one."""

    unix: float
    monotonic: float
    clock: str


@dataclass
class _RankLog:
    """The content of a rank's file, by epoch and iteration.

    Attributes
    ----------
    opened: the opening of the log that the lines belong to.
    lines, ahead: spans of the thread that trains, and of threads that work ahead.
    left: the opening of the log, and when the rank left the iteration's last wait.
    kept: by epoch and whether spans are of work ahead, the iterations whose lines are kept.
    """

    path: Path
    opened: dict[Key, _Opened | None] = field(default_factory=dict)
    lines: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    ahead: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    left: dict[Key, tuple[_Opened | None, float]] = field(default_factory=dict)
    kept: dict[tuple[int, bool], list[int]] = field(default_factory=dict)


def read_timelines(folder: Path) -> list[Timeline]:
    """Read the first iterations of the last epoch that every rank recorded.

    Raises
    ------
    RequestError: a file is not a run log, or the file of a rank is missing.
    """
    logs = [_read_rank(path) for path in log_files(folder)]
    if not logs:
        return []
    common_keys = set.intersection(*(set(log.lines) for log in logs))
    if not common_keys:
        return []
    last = max(epoch for epoch, _ in common_keys)
    keys = sorted(key for key in common_keys if key[0] == last)[:SHOWN_ITERATIONS]
    return [_timeline(logs, key) for key in keys]


def _read_rank(path: Path) -> _RankLog:
    """Keep the first iterations of every epoch. Lines of a resumed run replace older ones."""
    log = _RankLog(path)
    opened: _Opened | None = None
    written: set[tuple[Key, bool]] = set()
    for number, line in log_lines(path):
        if line.get("event") == OPENED:
            opened, written = _opening(path, number, line), set()
        if "span" not in line or "epoch" not in line or "iteration" not in line:
            continue
        span = _check_span(path, number, line)
        key = span["epoch"], span["iteration"]
        if span["span"] == "wait" and span.get("operation") == "sync":
            log.left[key] = opened, span["start"] + span["seconds"]
        is_ahead = bool(span.get("thread"))
        if _is_kept(log, key, is_ahead=is_ahead):
            lines = log.ahead if is_ahead else log.lines
            if (key, is_ahead) not in written:
                written.add((key, is_ahead))
                lines[key], log.opened[key] = [], opened
            lines[key].append(span)
    return log


def _is_kept(log: _RankLog, key: Key, *, is_ahead: bool) -> bool:
    epoch, iteration = key
    iterations = log.kept.setdefault((epoch, is_ahead), [])
    if iteration not in iterations and len(iterations) < (
        _KEPT_AHEAD if is_ahead else _KEPT_ITERATIONS
    ):
        iterations.append(iteration)
    return iteration in iterations


def _opening(path: Path, number: int, line: dict[str, Any]) -> _Opened:
    unix, monotonic = (_number(path, number, line, name) for name in ("unix", "monotonic"))
    return _Opened(unix, monotonic, str(line.get("clock") or ""))


def _check_span(path: Path, number: int, line: dict[str, Any]) -> dict[str, Any]:
    for name in ("start", "seconds"):
        _number(path, number, line, name)
    for name in ("epoch", "iteration", "model", "step"):
        value = line.get(name)
        # In Python a bool is an int, but it is no number of an iteration.
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise RequestError(
                f"{path}: line {number}: {name}: expected an integer, given {value!r}"
            )
    if line["span"] not in STAGES:
        raise RequestError(
            f"{path}: line {number}: span: expected {', '.join(STAGES)}, given {line['span']!r}"
        )
    return line


def _number(path: Path, number: int, line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{path}: line {number}: {name}: expected a number, given {value!r}")
    return float(value)


def _timeline(logs: Sequence[_RankLog], key: Key) -> Timeline:
    offsets, alignment = _offsets(logs, key)
    begin = min(
        line["start"] + offset
        for log, offset in zip(logs, offsets, strict=True)
        for line in log.lines[key]
    )
    ranked_logs = list(enumerate(zip(logs, offsets, strict=True)))
    spans = [
        _span(rank, line, offset - begin)
        for rank, (log, offset) in ranked_logs
        for line in log.lines[key]
    ]
    seconds = max(span.start + span.seconds for span in spans)
    ahead = [
        _span(rank, line, offset - begin)
        for rank, (log, offset) in ranked_logs
        for ahead_key, lines in log.ahead.items()
        # Lines from before a resumption count from another zero.
        if log.opened[ahead_key] == log.opened[key]
        for line in lines
    ]
    during = [span for span in ahead if span.start < seconds and span.start + span.seconds > 0]
    return Timeline(
        epoch=key[0],
        iteration=key[1],
        ranks=len(logs),
        seconds=seconds,
        spans=(*spans, *(_cut(span, seconds) for span in during)),
        passages=tuple(_passages(spans)),
        alignment=alignment,
    )


def _span(rank: int, line: Mapping[str, Any], shift: float) -> Span:
    """Make the span of a line. ``shift`` is added to its start."""
    field_names = {"span", "start", "seconds", "cpu", "model", "step", "thread"}
    thread = str(line.get("thread") or "")
    # Work ahead is for another iteration than the one that is shown, so its details say which.
    field_names |= set() if thread else {"epoch", "iteration"}
    return Span(
        rank=rank,
        stage=line["span"],
        start=line["start"] + shift,
        seconds=max(0.0, line["seconds"]),
        model=line.get("model"),
        step=line.get("step"),
        details={name: value for name, value in line.items() if name not in field_names},
        thread=thread,
    )


def _cut(span: Span, seconds: float) -> Span:
    """Cut off what lies outside the iteration."""
    start = max(0.0, span.start)
    return span._replace(start=start, seconds=min(seconds, span.start + span.seconds) - start)


def _offsets(logs: Sequence[_RankLog], key: Key) -> tuple[list[float], Alignment]:
    """Return the seconds to add to each rank's ``start``, and how they were found."""
    opened = [log.opened[key] for log in logs]
    known_openings = [opening for opening in opened if opening is not None]
    if (
        len(known_openings) == len(logs)
        and known_openings[0].clock
        and len({opening.clock for opening in known_openings}) == 1
    ):
        return [opening.monotonic for opening in known_openings], "clock"
    if len(logs) == 1:
        return [0.0], "clock"
    wait_ends = [_wait_ends(log, key) for log in logs]
    common_iterations = set.intersection(*(set(ends) for ends in wait_ends))
    if common_iterations:
        differences = ([wait_ends[0][i] - ends[i] for i in common_iterations] for ends in wait_ends)
        return [median(rank_differences) for rank_differences in differences], "barriers"
    if len(known_openings) == len(logs):
        return [opening.unix for opening in known_openings], "none"
    return [0.0] * len(logs), "none"


def _wait_ends(log: _RankLog, key: Key) -> dict[int, float]:
    """Return when a rank left each iteration's last wait, on the clock of ``key``'s spans."""
    return {
        iteration: moment
        for (epoch, iteration), (opened, moment) in log.left.items()
        # Lines from before a resumption count from another zero.
        if epoch == key[0] and opened == log.opened[key]
    }


def _passages(spans: Sequence[Span]) -> Iterator[Passage]:
    """List the moves of models between time steps.

    A model is at the rank that samples and computes its group.
    """
    places = {
        (span.model, span.step): span.rank
        for span in spans
        if span.stage in ("sample", "compute") and span.model is not None and span.step is not None
    }
    moves = {(span.rank, span.step): span for span in spans if span.stage == "migrate"}
    for (model, step), rank in sorted(places.items()):
        target = places.get((model, step + 1), rank)
        leaving, coming = moves.get((rank, step + 1)), moves.get((target, step + 1))
        if target == rank or leaving is None or coming is None:
            continue
        arrives = max(coming.start + coming.seconds, leaving.start)
        yield Passage(model, step + 1, rank, target, leaving.start, arrives)
