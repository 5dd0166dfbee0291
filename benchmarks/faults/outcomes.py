"""faults.csv: a line for each fault, what was expected of it beforehand, and what came out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from hopper.bench.machine import commit, short_commit
from hopper.files.whole_files import write_text

FAULTS_FILE = "faults.csv"
WRONG = "wrong: "
"""how the outcome of a fault begins that did not end as expected"""


class Outcome(NamedTuple):
    """A fault: what happened to what, the outcome expected and found, and the seconds to it."""

    fault: str
    target: str
    expected: str
    outcome: str
    seconds: float

    @property
    def is_wrong(self) -> bool:
        """Whether it did not end as expected."""
        return self.outcome.startswith(WRONG)


def write_outcomes(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Replace the lines of the same faults in ``faults.csv``."""
    file, stamp = folder / FAULTS_FILE, short_commit(commit())
    faults = {outcome.fault for outcome in outcomes}
    lines: list[Sequence[object]] = []
    if file.exists():
        with file.open(newline="") as stream:
            lines = [line for line in list(csv.reader(stream))[1:] if line[0] not in faults]
    lines += [(*outcome[:4], f"{outcome.seconds:.2f}", stamp) for outcome in outcomes]
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow((*Outcome._fields, "commit"))
    writer.writerows(lines)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, output.getvalue())


def print_outcomes(outcomes: Iterable[Outcome]) -> None:
    """Print how often each fault had which outcome, and whatever is wrong."""
    table = Table("fault", "expected", "outcomes", "longest, s")
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.fault, outcome.expected), []).append(outcome)
    console = Console(width=max(Console().width, 120))
    for names, group in groups.items():
        counts: dict[str, int] = {}
        for outcome in group:
            # What follows a colon is told below, or in the file.
            word = outcome.outcome.partition(":")[0]
            counts[word] = counts.get(word, 0) + 1
        words = ", ".join(f"{count} {word}" for word, count in counts.items())
        table.add_row(*names, words, f"{max(outcome.seconds for outcome in group):.1f}")
    console.print(table)
    for outcome in (one for group in groups.values() for one in group if one.is_wrong):
        line = f"{outcome.fault}, {outcome.target}: {outcome.outcome}"
        console.print(line, style="red", markup=False, soft_wrap=True)
