#!/usr/bin/env python
"""Write docs/results/figures.md: what the papers report beside what Hopper measured, from all
results.

usage: python scripts/make_figures_page.py [--check]

With ``--check`` nothing is written; exits with 1 where the page is not what it would be.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.paper.experiment import Experiment, Table  # noqa: E402
from benchmarks.paper.page import markdown, network_text  # noqa: E402
from benchmarks.paper.registry import EXPERIMENTS  # noqa: E402
from benchmarks.paper.tables import graph_name  # noqa: E402

PAGE = ROOT / "docs" / "results" / "figures.md"
RESULTS = ROOT / "benchmarks" / "results"
_HEADINGS = ("run", "date", "graphs, at scale", "models", "where", "what", "times", "cells")
_INTRODUCTION = """\
# The papers' figures and Hopper's

Every experiment of a paper that has a command ([paper-experiments](../howto/paper-experiments.md)):
what is reported, what was measured here, at which scale and when, and why the two differ. Written
by `python scripts/make_figures_page.py` from the results below `benchmarks/results`; the pages that
are linked to have intervals, bytes and settings. "Times" is the geometric mean over a run's cells
of how many times as fast the one side is as the other, with the least and the most of them; beside
it how many cells there are, and in how many the 95 % interval is above 1. The latest run stands
first.
"""


def read_results() -> dict[str, list[tuple[Path, Mapping[str, Any]]]]:
    """By experiment, its results and where they lie, the latest first."""
    found: dict[str, list[tuple[Path, Mapping[str, Any]]]] = {}
    for file in sorted(RESULTS.glob("*/*/result.json"), reverse=True):
        result = json.loads(file.read_text(encoding="utf-8"))
        if result.get("experiment") in EXPERIMENTS:
            found.setdefault(result["experiment"], []).append((file.parent, result))
    return found


def make_page() -> str:
    """The page's text."""
    results = read_results()
    lines = [_INTRODUCTION]
    for name, experiment in EXPERIMENTS.items():
        if experiment.published:
            lines += _section(name, experiment, results.get(name, []))
    return "\n".join(lines).rstrip() + "\n"


def _section(
    name: str, experiment: Experiment, results: list[tuple[Path, Mapping[str, Any]]]
) -> Iterator[str]:
    yield f"## {experiment.title} (`{name}`)"
    yield ""
    yield from (f"- {each.place}: {each.what}: {each.value}" for each in experiment.published)
    yield ""
    rows = [row for folder, result in results for row in _rows(folder, result)]
    if rows:
        yield from markdown(Table("", _HEADINGS, rows))
    else:
        yield "Not run yet."
    reasons = dict.fromkeys(
        [*experiment.differs, *(each for _, r in results for each in r["differs"])]
    )
    if reasons:
        yield ""
        yield "Why they differ, besides scale and hardware: " + " ".join(reasons)
    yield ""


def _networks_text(cells: Iterable[Mapping[str, Any]]) -> str:
    """Where cells ran. Networks that differ only in the number of hosts are one entry."""
    hosts: dict[str, list[str]] = {}
    for text in dict.fromkeys(map(network_text, cells)):
        number, _, network = text.partition(" ")
        if number.isdecimal():
            hosts.setdefault(network, []).append(number)
        else:
            hosts[text] = []
    return "; ".join(f"{', '.join(numbers)} {text}".strip() for text, numbers in hosts.items())


def _rows(folder: Path, result: Mapping[str, Any]) -> Iterator[list[str]]:
    cells = result["cells"]
    trained = any(cell.get("batch_size") for cell in cells)
    place = Path("../..") / folder.relative_to(ROOT)
    setting = [
        f"[{folder.name}]({place / 'README.md'})",
        f"[{result['date']}]({place / 'result.json'})",
        ", ".join(dict.fromkeys(graph_name(cell) for cell in cells)),
        ", ".join(dict.fromkeys(f"{cell['model']} {cell['hidden']}" for cell in cells)),
        _networks_text(cells) if trained else "",
    ]
    summary = result["summary"]
    first = summary[0]["baseline"] if summary else ""
    told = [each for each in summary if each["baseline"] == first] or [None]
    for row, each in enumerate(told):
        own = setting if row == 0 else [""] * len(setting)
        if each is None:
            yield [*own, "see the page", "", str(len(cells))]
        elif each["mean"] is not None:
            times = f"{each['mean']:.2f} ({each['least']:.2f} to {each['most']:.2f})"
            counts = f"{each['cells']}, {each['above_one']} above 1"
            yield [*own, f"{each['role']} over {each['baseline']}", times, counts]


def main() -> int:
    """Write or check the page."""
    text = make_page()
    if "--check" in sys.argv[1:]:
        is_same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        if not is_same:
            print(f"{PAGE}: is not what scripts/make_figures_page.py writes", file=sys.stderr)
        return 0 if is_same else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
