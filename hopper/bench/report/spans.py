"""The spans of all ranks on one time axis, for a few iterations of the last epoch.

Ranks that name the same clock are aligned exactly by this clock. Others are aligned by the wait
that ends an iteration. No rank leaves it before the last one has come, so it ends everywhere at the
same moment, up to the time that a message takes. Offsets are medians over iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from hopper.bench.report.records import check_record
from hopper.bench.span_lines import log_files, log_lines
from hopper.timing.run_log import OPENED, Stage

SHOWN_ITERATIONS: Final = 3
_KEPT: Final = {False: 8, True: 40}
"""How many iterations of an epoch are kept, of the thread that trains and of threads ahead."""

Number = Annotated[float, Field(allow_inf_nan=False)]
_Key = tuple[int, bool, int]
"""Epoch, whether the work is ahead, iteration."""
_Log = dict[_Key, list["Span"]]


class Opened(BaseModel):
    """The moment at which a log was opened, by the clock that ``clock`` names."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)
    monotonic: Number
    clock: str | None = None


class Span(BaseModel):
    """A stage of one rank. ``thread`` names a thread that prepares other iterations."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)
    rank: int
    opened: Opened | None
    epoch: int
    iteration: int
    stage: Annotated[Stage, Field(alias="span")]
    start: Number
    seconds: Number
    model: int | None = None
    thread: str | None = None
    operation: str | None = None

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.seconds


class Timeline(NamedTuple):
    """A few iterations on all ranks, in seconds since the first rank began the first of them.

    iterations: their starts. alignment: how clocks were compared: "clock", "barriers" or "none".
    """

    epoch: int
    iterations: dict[int, float]
    ranks: int
    seconds: float
    spans: list[Span]
    alignment: str

    def waiting(self, rank: int) -> float:
        """Return the share of the time that a rank waits for others."""
        waits = [s for s in self.spans if (s.rank, s.stage) == (rank, "wait") and not s.thread]
        return sum(span.seconds for span in waits) / self.seconds


def read_timeline(folder: Path) -> Timeline | None:
    """Read the first iterations of the last epoch that every rank recorded, without the one that
    fills the pipeline. None if there are no spans.

    Raises
    ------
    RequestError: a file is not a run log, or the file of a rank is missing.
    """
    logs = [_read_rank(rank, path) for rank, path in enumerate(log_files(folder))]
    shared = set.intersection(*map(set, logs)) if logs else set()
    keys = sorted(key for key in shared if not key[1])
    if not keys:
        return None
    opened = [log[keys[-1]][0].opened for log in logs]
    # Lines from before a resumption count from another zero.
    keys = [
        key
        for key in keys
        if key[0] == keys[-1][0] and [log[key][0].opened for log in logs] == opened
    ]
    offsets, alignment = _offsets(logs, keys, opened)
    spans = [span for log in logs for of_key in log.values() for span in of_key]
    spans = [span for span in spans if span.opened == opened[span.rank]]
    for span in spans:
        span.start += offsets[span.rank]
    shown = [(epoch, number) for epoch, _, number in keys[1 : 1 + SHOWN_ITERATIONS] or keys]
    trained = [s for s in spans if not s.thread and (s.epoch, s.iteration) in shown]
    begin, end = min(span.start for span in trained), max(span.end for span in trained)
    ahead = [span for span in spans if span.thread and span.start < end and span.end > begin]
    for span in (*trained, *ahead):
        start, end_of_span = max(begin, span.start), min(end, span.end)
        span.start, span.seconds = start - begin, max(0.0, end_of_span - start)
    starts = {number: min(s.start for s in trained if s.iteration == number) for _, number in shown}
    seconds = max(end - begin, 1e-9)
    return Timeline(keys[0][0], starts, len(logs), seconds, [*trained, *ahead], alignment)


def _read_rank(rank: int, path: Path) -> _Log:
    """Keep the first iterations of the last epochs. Lines of a resumed run replace older ones."""
    log: _Log = {}
    opened: Opened | None = None
    iterations: Counter[tuple[int, bool]] = Counter()
    for number, line in log_lines(path):
        where = f"{path}: line {number}"
        if line.get("event") == OPENED:
            opened = check_record(Opened, line, where)
        if not {"span", "epoch", "iteration"} <= line.keys():
            continue
        span = check_record(Span, line | {"rank": rank, "opened": opened}, where)
        key = span.epoch, bool(span.thread), span.iteration
        if key not in log:
            if not iterations[key[:2]]:
                log = {kept: spans for kept, spans in log.items() if kept[0] >= span.epoch - 1}
            iterations[key[:2]] += 1
            if iterations[key[:2]] > _KEPT[key[1]]:
                continue
        if key not in log or log[key][0].opened != opened:
            log[key] = []
        log[key].append(span)
    return log


def _offsets(
    logs: Sequence[_Log], keys: Sequence[_Key], opened: Sequence[Opened | None]
) -> tuple[list[float], str]:
    """Return the seconds to add to each rank's ``start``, and how they were found."""
    clocks = {opening and opening.clock for opening in opened}
    if len(logs) == 1 or (len(clocks) == 1 and all(clocks)):
        return [opening.monotonic if opening else 0.0 for opening in opened], "clock"
    waits = [
        [[s.end for s in log[key] if (s.stage, s.operation) == ("wait", "sync")] for log in logs]
        for key in keys
    ]
    ends = [[moments[-1] for moments in ranks] for ranks in waits if all(ranks)]
    if ends:
        return [median(m[0] - m[r] for m in ends) for r in range(len(logs))], "barriers"
    return [0.0] * len(logs), "none"
