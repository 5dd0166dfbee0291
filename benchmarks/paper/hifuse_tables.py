"""Tables and pictures of the measures in HiFuse's figures, made from result.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from benchmarks.layers.operators import AGGREGATION, PRODUCTS, SELECTION
from benchmarks.layers.sides import BY_RELATION, MERGED
from benchmarks.paper.charts import COLOURS, canvas, finish, legend_above, save
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.hifuse_layers import PYG_ROLE
from benchmarks.paper.tables import NONE, number, percent

_COLOURS: Final = {BY_RELATION: COLOURS[0], PYG_ROLE: COLOURS[1], MERGED: COLOURS[3]}
_GIGA: Final = 1e9

Measure = Callable[[Mapping[str, Any]], int]
"""a number of operators, which are reported of a side"""


def batches_table(result: Result) -> Table:
    """Make a table of the batches that all sides of a cell compute."""
    rows = [
        [
            *(cell["name"], str(cell["relations"]), str(cell["batches"])),
            *(f"{cell[key] / cell['batches']:,.0f}" for key in ("roots", "sampled_edges")),
            str(cell["threads"]),
        ]
        for cell in result["cells"]
    ]
    headings = ("cell", "relations", "batches", "roots a batch", "edges a batch", "threads")
    return Table("Batches", headings, rows)


def balance_table(result: Result) -> Table:
    """Make a table of the seconds that prepare an epoch's batches over those that compute them
    (Figure 10)."""
    rows = [
        [
            *(cell["name"], role),
            *(number(side[key]) for key in ("prepare", "compute")),
            number(side["prepare"] / side["compute"]),
        ]
        for cell in result["cells"]
        for role, side in cell["sides"].items()
    ]
    note = (
        "Medians over rounds. Preparing is sampling and, in Hopper, making blocks of what was "
        "sampled; merged, also laying relations behind one another. PyG's edges are stacked off "
        "the clock, and selected by relation while it computes."
    )
    return Table(
        "Preparing over computing",
        ("cell", "side", "preparing, s", "computing, s", "ratio"),
        rows,
        note,
    )


def operators_table(result: Result) -> Table:
    """Make a table of the operators of an epoch, forward and backward (Figure 8)."""
    rows = []
    for cell in result["cells"]:
        whole = {role: operators["whole"] for role, operators in cell["operators"].items()}
        rows.append([cell["name"], *_counts(whole), *_reductions(whole)])
    note = (
        "Operators of torch that compute something; views and allocations are left out. Hopper's "
        "message passing is computed by torch's operators for this count, where otherwise one "
        "compiled kernel takes the place of several."
    )
    return Table("Operators of an epoch", _headings(), rows, note)


def forward_table(result: Result) -> Table:
    """Make a table of the forward pass's operators that select edges and that aggregate (Figure
    11)."""
    rows = []
    for cell in result["cells"]:
        by_role = {role: operators["forward"] for role, operators in cell["operators"].items()}
        for kind in (SELECTION, AGGREGATION):
            operators = {role: forward[kind] for role, forward in by_role.items()}
            rows.append([f"{cell['name']}: {kind}", *_counts(operators), *_reductions(operators)])
        products = {role: forward[PRODUCTS] for role, forward in by_role.items()}
        rows.append([f"{cell['name']}: {PRODUCTS}", *_counts(products), NONE, NONE])
    note = (
        "Selection: operators whose results are whole numbers or truth values. Products: of "
        "matrices. Aggregation: all others, which gather, weigh and add up rows."
    )
    return Table("Operators of the forward pass", _headings(), rows, note)


def _headings() -> tuple[str, ...]:
    return ("cell", *_COLOURS, f"fewer than {BY_RELATION}", f"fewer than {PYG_ROLE}")


def _counts(by_role: Mapping[str, int]) -> list[str]:
    return [f"{by_role[role]:,}" if role in by_role else NONE for role in _COLOURS]


def _reductions(by_role: Mapping[str, int]) -> list[str]:
    """Write in per cent how many operators merging saves against the other sides."""
    return [
        percent(1 - by_role[MERGED] / by_role[role]) if by_role.get(role) else NONE
        for role in (BY_RELATION, PYG_ROLE)
    ]


def rates_table(result: Result) -> Table:
    """Make a table of the rates of sums over edges, and of their shares of the machine's own (Table
    3)."""
    rows = []
    for cell in result["cells"]:
        machine = cell["machine_rates"]
        for role, side in cell["rates"].items():
            rates = [(side[key], machine[key]) for key in ("arithmetic", "memory")]
            texts = [text for rate, most in rates for text in _rate(rate, most)]
            rows.append([cell["name"], role, f"{side['calls']:,}", number(side["seconds"]), *texts])
        texts = [text for key in ("arithmetic", "memory") for text in _rate(machine[key], None)]
        rows.append([cell["name"], "the machine", NONE, NONE, *texts])
    headings = (
        *("cell", "side", "calls", "seconds", "Gflop/s", "of the machine's"),
        *("GB/s", "of the machine's"),
    )
    note = (
        "Medians over rounds of all sums of the cell's batches. What a sum has to do is counted "
        "and not measured: an addition for every number of every edge (of weighted messages a "
        "product too), every edge's row and indices read, every row of a result written. The "
        "machine: a product of two matrices of 2,048 by 2,048, and a triad over arrays of 64 MiB, "
        "in the same process."
    )
    return Table("Rates of the sums over edges", headings, rows, note)


def _rate(rate: float, most: float | None) -> tuple[str, str]:
    return number(rate / _GIGA), NONE if most is None else percent(rate / most)


def draw_operators(result: Result, path: Path) -> None:
    """Draw the operators of an epoch and of the forward pass's selection and aggregation. Every
    side has a bar, in per cent of the operators relation by relation."""
    measures: dict[str, Measure] = {
        "operators of an epoch": lambda side: side["whole"],
        "forward: selection and aggregation": lambda side: (
            side["forward"][SELECTION] + side["forward"][AGGREGATION]
        ),
    }
    cells = result["cells"]
    figure, axes = canvas(2, 12, 1.6 + 0.5 * len(cells), sharey=True)
    for place, (title, measure) in zip(axes, measures.items(), strict=True):
        _draw_bars(place, cells, measure)
        finish(place, title, "x", x_label=f"per cent of {BY_RELATION}")
    axes[0].set_yticks(range(len(cells)), [cell["name"] for cell in cells])
    axes[0].invert_yaxis()
    legend_above(figure, axes[:1])
    save(figure, result, path)


def _draw_bars(axes: Axes, cells: Sequence[Mapping[str, Any]], measure: Measure) -> None:
    for index, (role, colour) in enumerate(_COLOURS.items()):
        bars = [
            (place + 0.27 * (index - 1), 100 * measure(sides[role]) / measure(sides[BY_RELATION]))
            for place, sides in enumerate(cell["operators"] for cell in cells)
            if role in sides
        ]
        if bars:
            places, values = zip(*bars, strict=True)
            axes.barh(places, values, height=0.25, color=colour, label=role)
