"""The spans of a run, ranks laid on one time axis, for a few iterations of the last epoch.

Every rank writes ``start`` in seconds since it opened its log. Ranks that name the same clock are
aligned by it, exactly. For ranks on several machines, whose clocks differ, the wait that ends an
iteration is taken: nobody leaves it before the last rank has come, so its end is the same moment
everywhere, up to a message's travel. The median over the epoch's iterations is used.
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
"""the first of the last epoch: more would only make the file larger"""
_KEPT_ITERATIONS: Final = 8
_KEPT_AHEAD: Final = 40
"""of what threads have prepared ahead"""

Key = tuple[int, int]
"""epoch and iteration"""
Alignment = Literal["clock", "barriers", "none"]


class Span(NamedTuple):
    """A stage of one rank; start in seconds since the iteration began on its first rank.

    thread: of the rank, which prepares other iterations; empty = the one that trains this one.
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
    """A model on its way, from the start of the sender's ``migrate`` to the receiver's end."""

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
    """When a log was opened, by two clocks; ``clock`` names the second one."""

    unix: float
    monotonic: float
    clock: str


@dataclass
class _RankLog:
    """One file: the kept iterations' lines, those of what was prepared ahead, and when the rank
    left each iteration's last wait."""

    path: Path
    opened: dict[Key, _Opened | None] = field(default_factory=dict)
    lines: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    ahead: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)
    left: dict[Key, tuple[_Opened | None, float]] = field(default_factory=dict)
    kept: dict[tuple[int, bool], list[int]] = field(default_factory=dict)


def read_timelines(folder: Path) -> list[Timeline]:
    """The first iterations of the last epoch that every rank recorded; none without files.

    Raises
    ------
    RequestError: a file is not a run log, or a rank's is missing.
    """
    logs = [_read_rank(path) for path in log_files(folder)]
    if not logs:
        return []
    together = set.intersection(*(set(log.lines) for log in logs))
    if not together:
        return []
    last = max(epoch for epoch, _ in together)
    keys = sorted(key for key in together if key[0] == last)[:SHOWN_ITERATIONS]
    return [_timeline(logs, key) for key in keys]


def _read_rank(path: Path) -> _RankLog:
    """Keep the first iterations of every epoch; what a resumed run wrote anew replaces the old."""
    log = _RankLog(path)
    opened: _Opened | None = None
    written: set[tuple[Key, bool]] = set()
    for number, line in log_lines(path):
        if line.get("event") == OPENED:
            opened, written = _opening(path, number, line), set()
        if "span" not in line or "epoch" not in line or "iteration" not in line:
            continue
        span = _checked(path, number, line)
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
    first = log.kept.setdefault((epoch, is_ahead), [])
    if iteration not in first and len(first) < (_KEPT_AHEAD if is_ahead else _KEPT_ITERATIONS):
        first.append(iteration)
    return iteration in first


def _opening(path: Path, number: int, line: dict[str, Any]) -> _Opened:
    unix, monotonic = (_number(path, number, line, name) for name in ("unix", "monotonic"))
    return _Opened(unix, monotonic, str(line.get("clock") or ""))


def _checked(path: Path, number: int, line: dict[str, Any]) -> dict[str, Any]:
    for name in ("start", "seconds"):
        _number(path, number, line, name)
    for name in ("epoch", "iteration", "model", "step"):
        value = line.get(name)
        # A bool is an int to Python, and no iteration.
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
    placed = list(enumerate(zip(logs, offsets, strict=True)))
    spans = [
        _span(rank, line, offset - begin)
        for rank, (log, offset) in placed
        for line in log.lines[key]
    ]
    seconds = max(span.start + span.seconds for span in spans)
    ahead = [
        _span(rank, line, offset - begin)
        for rank, (log, offset) in placed
        for own, lines in log.ahead.items()
        # What was written before a resumption counts from another zero.
        if log.opened[own] == log.opened[key]
        for line in lines
    ]
    during = [each for each in ahead if each.start < seconds and each.start + each.seconds > 0]
    return Timeline(
        epoch=key[0],
        iteration=key[1],
        ranks=len(logs),
        seconds=seconds,
        spans=(*spans, *(_cut(each, seconds) for each in during)),
        passages=tuple(_passages(spans)),
        alignment=alignment,
    )


def _span(rank: int, line: Mapping[str, Any], shift: float) -> Span:
    """A line's span; ``shift`` is added to its start."""
    told = {"span", "start", "seconds", "cpu", "model", "step", "thread"}
    thread = str(line.get("thread") or "")
    # Of another iteration than the one that is shown.
    told |= set() if thread else {"epoch", "iteration"}
    return Span(
        rank=rank,
        stage=line["span"],
        start=line["start"] + shift,
        seconds=max(0.0, line["seconds"]),
        model=line.get("model"),
        step=line.get("step"),
        details={name: value for name, value in line.items() if name not in told},
        thread=thread,
    )


def _cut(span: Span, seconds: float) -> Span:
    """The part of a span that lies within the iteration."""
    start = max(0.0, span.start)
    return span._replace(start=start, seconds=min(seconds, span.start + span.seconds) - start)


def _offsets(logs: Sequence[_RankLog], key: Key) -> tuple[list[float], Alignment]:
    """What to add to each rank's ``start``."""
    opened = [log.opened[key] for log in logs]
    known = [each for each in opened if each is not None]
    if len(known) == len(logs) and known[0].clock and len({each.clock for each in known}) == 1:
        return [each.monotonic for each in known], "clock"
    if len(logs) == 1:
        return [0.0], "clock"
    left = [_left(log, key) for log in logs]
    together = set.intersection(*(set(each) for each in left))
    if together:
        differences = ([left[0][i] - each[i] for i in together] for each in left)
        return [median(each) for each in differences], "barriers"
    if len(known) == len(logs):
        return [each.unix for each in known], "none"
    return [0.0] * len(logs), "none"


def _left(log: _RankLog, key: Key) -> dict[int, float]:
    """When a rank left each iteration's last wait, on the clock of ``key``'s spans."""
    return {
        iteration: left
        for (epoch, iteration), (opened, left) in log.left.items()
        # What was written before a resumption counts from another zero.
        if epoch == key[0] and opened == log.opened[key]
    }


def _passages(spans: Sequence[Span]) -> Iterator[Passage]:
    """Where models went between time steps: each group is sampled where it is trained."""
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
