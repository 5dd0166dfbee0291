"""Named sides take turns in rounds; medians and paired ratios become lines of summary.csv.

Every script here measures by :func:`take_turns` and tells by :class:`Results`.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.summary import SUMMARY_FILE, Row, write
from hopper.bench.machine import commit, short_commit
from hopper.timing.paired_ratio import paired_ratio

Side = Callable[[int], Mapping[str, float] | None]
"""measures a part of a round, and returns values by measure; None = the seconds that it took"""
Measured = dict[str, dict[str, NDArray[np.float64]]]
"""by side and measure, [rounds, parts]"""


def make_parser(doc: str | None, *, rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser of what all scripts take: ``--out`` and ``--rounds``."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help=f"its {SUMMARY_FILE} is changed"
    )
    parser.add_argument("--rounds", type=positive, default=rounds, help=f"default {rounds}")
    return parser


def positive(text: str) -> int:
    """Parse a number of the command line that has to be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, given {number}")
    return number


def take_turns(
    sides: Mapping[str, Side], rounds: int, *, parts: int = 1, warm_up: int = 1
) -> Measured:
    """Measure all sides, part by part of each round, in an order that rotates.

    Parameters
    ----------
    warm_up: rounds before, which are not counted.
    """
    names = list(sides)
    values: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for turn in range(-warm_up, rounds):
        for part in range(parts):
            first = (turn + part) % len(names)
            for name in [*names[first:], *names[:first]]:
                gc.disable()
                begun = time.perf_counter()
                measured = sides[name](part)
                seconds = time.perf_counter() - begun
                gc.enable()
                if turn < 0:
                    continue
                for measure, value in (
                    {"seconds": seconds} if measured is None else measured
                ).items():
                    values[name].setdefault(measure, []).append(value)
    return {
        name: {
            key: np.array(all_values, float).reshape(rounds, parts)
            for key, all_values in of_side.items()
        }
        for name, of_side in values.items()
    }


class Results:
    """The lines of one experiment, each cell written and printed as soon as it is there."""

    def __init__(self, experiment: str, out: Path) -> None:
        self._experiment, self._file = experiment, out / SUMMARY_FILE
        out.mkdir(parents=True, exist_ok=True)
        # No column may be cut short where the output is a file.
        self._console = Console(width=max(Console().width, 120))
        self._stamp: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "commit": short_commit(commit()),
        }

    def add(
        self,
        cell: str,
        measured: Measured,
        against: Mapping[str, Sequence[str]] | None = None,
        facts: Iterable[tuple[str, str, float]] = (),
        sent: Mapping[str, float] | None = None,
    ) -> list[Row]:
        """Write and print the lines of a cell.

        Parameters
        ----------
        against: by side, the baselines that it is compared with.
        facts: sides, measures and values that no round changes.
        sent: by side, the bytes of an epoch.
        """
        rows = [
            row
            for side in measured
            for baseline in (against or {}).get(side) or [""]
            for row in self._compare(cell, measured, side, baseline, (sent or {}).get(side))
        ]
        rows += [
            Row(self._experiment, cell, side, measure, value, **self._stamp)
            for side, measure, value in facts
        ]
        write(self._file, rows)
        self._print(cell, rows)
        return rows

    def _compare(
        self, cell: str, measured: Measured, side: str, baseline: str, sent: float | None
    ) -> Iterator[Row]:
        for measure, values in measured[side].items():
            totals = values.sum(1)
            more: dict[str, Any] = {"bytes": None if sent is None else round(sent)} | self._stamp
            others = measured.get(baseline, {}).get(measure)
            if others is not None and min(totals.min(), others.sum(1).min()) > 0:
                ratio = paired_ratio(others.sum(1).tolist(), totals.tolist())
                more |= {"ratio": ratio.mean, "low": ratio.low, "high": ratio.high}
            yield Row(
                self._experiment, cell, side, measure, float(np.median(totals)), baseline,
                rounds=len(totals), **more,
            )  # fmt: skip

    def _print(self, cell: str, rows: Sequence[Row]) -> None:
        table = Table(title=f"{self._experiment}: {cell}", title_justify="left")
        for heading in ("side", "measure", "median", "baseline", "ratio (95 % interval)"):
            table.add_column(heading, justify="right" if heading == "median" else "left")
        for row in rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.3g}x"
            if row.low is not None:
                ratio += f" ({row.low:.3g} to {row.high:.3g})"
            table.add_row(row.side, row.measure, f"{row.median:,.6g}", row.baseline, ratio)
        self._console.print(table)
