#!/usr/bin/env python
"""Write docs/results/figures.md: what the papers report beside what Hopper measured, from all
results.

usage: python scripts/make_figures_page.py [--check]

With ``--check`` nothing is written; exits with 1 where the page is not what it would be.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_INTRODUCTION = """\
# The papers' figures and Hopper's

This page has every experiment of a paper that has a
[command](../howto/paper-experiments.md). Each section lists what the paper reports, why Hopper's
numbers differ, and every run, the latest first. A run's name leads to its page, with intervals,
bytes and settings. Its date leads to the file with all numbers.

| column | meaning |
|---|---|
| times as fast | the geometric mean over the run's cells; in brackets the least and the most |
| cells | the number of settings that were compared |
| above 1 | in how many of them the 95 % interval lies above 1 |

`python scripts/make_figures_page.py` writes this page from the results below `benchmarks/results`.
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
    yield "The paper reports:"
    yield ""
    yield from (f"- {each.place}: {each.what}: {each.value}" for each in experiment.published)
    yield ""
    if experiment.differs:
        yield "Why Hopper's numbers differ, besides scale and hardware:"
        yield ""
        yield from (f"- {reason}" for reason in experiment.differs)
        yield ""
    if not results:
        yield "Not run yet."
        yield ""
    for folder, result in results:
        yield from _run(folder, result)


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


def _run(folder: Path, result: Mapping[str, Any]) -> Iterator[str]:
    """A run's setting in a paragraph, and its ratios in a table below."""
    cells = result["cells"]
    place = Path("../..") / folder.relative_to(ROOT)
    graphs = ", ".join(dict.fromkeys(graph_name(cell) for cell in cells))
    parts = [f"{_models_text(cells)} on {graphs}"]
    if any(cell.get("batch_size") for cell in cells):
        parts.append(_networks_text(cells))
    told = _told(result["summary"])
    if not told:
        parts.append(f"{len(cells)} cells, whose numbers are on the page")
    links = f"[{folder.name}]({place / 'README.md'}), [{result['date']}]({place / 'result.json'})"
    yield f"**Run** {links}: {'; '.join(parts)}."
    yield ""
    if told:
        headings = ("side", f"times as fast as {told[0]['baseline']}", "cells", "above 1")
        yield from markdown(Table("", headings, [_row(each) for each in told]))
        yield ""


def _told(summary: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The ratios over the first baseline, without those that were refused."""
    first = summary[0]["baseline"] if summary else ""
    return [each for each in summary if each["baseline"] == first and each["mean"] is not None]


def _row(ratio: Mapping[str, Any]) -> list[str]:
    times = f"{ratio['mean']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})"
    return [ratio["role"], times, str(ratio["cells"]), str(ratio["above_one"])]


def _models_text(cells: Iterable[Mapping[str, Any]]) -> str:
    """The models of some cells. Those of one hidden width stand together."""
    widths: dict[int, dict[str, None]] = {}
    for cell in cells:
        widths.setdefault(cell["hidden"], {})[cell["model"]] = None
    return "; ".join(f"{', '.join(models)}, hidden {width}" for width, models in widths.items())


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
