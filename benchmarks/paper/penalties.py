"""What a missing byte costs, by node type (Heta, section 6 and Figure 7).

A short run with a cache profiles itself before its first iteration, and keeps the profile beside
the partitions (docs/howto/cache.md). That profile is what is shown: penalties are measured by all
ranks at once, over the links and on the disk that training uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from benchmarks.paper.charts import colour_of, finish, legend_above, panels, save
from benchmarks.paper.each_cell import Turns, run_sides
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.grid import Job
from benchmarks.paper.tables import number, sides_of
from hopper.bench.contender import Contender
from hopper.config import Config
from hopper.engines import Request
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file
from hopper.train.cache_sources import list_cacheable_tables
from hopper.train.warm_cache import profile_key

WIDTH: Final = 128
"""numbers of a learnable row, as many as a paper of mag-like has (Figure 7b)"""
WORDS: Final = (
    *(f"--learnable.dim={WIDTH}", "--learnable.storage=mmap"),
    *("--cache.policy=hotness+penalty", "--cache.size=10%", "--cache.decline=false"),
)
"""what the configurations of an experiment with penalties need"""
_MICROSECONDS: Final = 1e6


def count_profiles(job: Job) -> int:
    """Count the runs of a job."""
    return len(job.cells) * len(job.experiment.sides) * job.rounds


def run_profiles(job: Job) -> Iterator[dict[str, Any]]:
    """Let every side profile itself, in as many rounds as a comparison has.

    Yields
    ------
    Cells of result.json; see :func:`~benchmarks.paper.each_cell.run_sides`. A run is what
    :func:`describe_types` says of it.
    """
    turns: Turns = {f"round {turn + 1} of {job.rounds}": () for turn in range(job.rounds)}
    yield from run_sides(job, turns, _take_profiles)


def _take_profiles(side: Contender, config: Config, _summary: Any) -> dict[str, dict[str, Any]]:
    """Return what a run of a side has kept beside its partitions."""
    request = Request(side.configure(config), side.graph(config))
    key = profile_key(request)
    profiles = [
        load_profile(profile_file(request.graph.path, key, rank)) for rank in range(request.ranks)
    ]
    return describe_types(request, profiles)


def describe_types(request: Request, profiles: Sequence[CacheProfile]) -> dict[str, dict[str, Any]]:
    """Return what the profiles of all ranks say, by node type. Types that no rank visited are left
    out.

    Returns
    -------
    learned: whether rows are learned, and lie beside the optimiser's state of them.
    width: numbers of a row. row_bytes: of what is missed, the state included.
    rows: that an iteration reads, and penalties: seconds of a missing byte; of each rank that reads
    any.
    """
    tables, profiles_by_type = list_cacheable_tables(request), {}
    for name, first in profiles[0].types.items():
        visited = [profile for profile in profiles if profile.types[name].ids.size]
        if visited:
            learned = name in tables
            profiles_by_type[name] = {
                "learned": learned,
                "width": _width(request, name, learned=learned),
                "row_bytes": first.row_bytes,
                "rows": [profile.types[name].total / profile.iterations for profile in visited],
                "penalties": [profile.types[name].penalty for profile in visited],
            }
    return profiles_by_type


def _width(request: Request, name: str, *, learned: bool) -> int:
    if learned:
        return request.config.learnable.dim or request.config.model.hidden
    dim = request.schema.node_types[name].feature_dim
    assert dim is not None
    return dim


def penalty_table(result: Result) -> Table:
    """Make a table of what a missing byte and a missing row of every type cost."""
    rows = []
    for cell, role, side in sides_of(result):
        for name, record in _types(side).items():
            penalties = [_MICROSECONDS * penalty for penalty in record["penalties"]]
            rows.append(
                [
                    *(cell["name"], role, name, "learnable" if record["learned"] else "features"),
                    *(
                        f"{record['width']:,}",
                        f"{record['row_bytes']:,}",
                        number(fmean(record["rows"])),
                    ),
                    *(
                        number(penalty)
                        for penalty in (median(penalties), min(penalties), max(penalties))
                    ),
                    number(median(penalties) * record["row_bytes"]),
                ]
            )
    headings = (
        *("cell", "side", "node type", "rows", "width", "bytes of a row", "rows at once"),
        *("microseconds a byte", "least", "most", "microseconds a row"),
    )
    note = (
        "Medians over rounds and ranks. Rows at once: as many are fetched as an iteration reads. "
        "A learnable row is missed with its two moments of Adam, which triple its bytes; it is "
        "read and written back."
    )
    return Table("Miss penalties", headings, rows, note)


def learnable_penalty_table(result: Result) -> Table:
    """Make a table of learnable rows against features of the same width, by byte and by row."""
    rows = []
    for cell, role, side in sides_of(result):
        types = _types(side).items()
        for name, record in types:
            for other, base in types:
                if record["learned"] and not base["learned"] and record["width"] == base["width"]:
                    ratio = median(record["penalties"]) / median(base["penalties"])
                    by_row = ratio * record["row_bytes"] / base["row_bytes"]
                    texts = [number(ratio), number(by_row)]
                    rows.append([cell["name"], role, name, other, str(record["width"]), *texts])
    headings = (
        *("cell", "side", "learnable", "features of", "width"),
        *("penalty of a byte, times", "of a row, times"),
    )
    note = "Medians of the one over those of the other."
    return Table("Learnable rows against features of the same width", headings, rows, note)


def draw_penalties(result: Result, path: Path) -> None:
    """Draw a line for each type, the narrowest on top: every side's median, from the least to the
    largest. Squares are learnable rows."""
    cells = result["cells"]
    most = max(len(side["runs"][0]) for _, _, side in sides_of(result))
    figure, axes = panels(len(cells), 6.5, 1.6 + 0.4 * most)
    for axis, cell in zip(axes, cells, strict=True):
        records = {
            name: record for side in cell["sides"].values() for name, record in _types(side).items()
        }
        names = sorted(records, key=lambda name: (records[name]["width"], name))
        for role, side in cell["sides"].items():
            for name, record in _types(side).items():
                penalties = [_MICROSECONDS * penalty for penalty in record["penalties"]]
                middle = median(penalties)
                reach = [[middle - min(penalties)], [max(penalties) - middle]]
                axis.errorbar(
                    [middle], [names.index(name)], xerr=reach, capsize=2, label=role,
                    fmt="s" if record["learned"] else "o", color=colour_of(role, cell),
                )  # fmt: skip
        axis.set_yticks(range(len(names)), [_label(name, records[name]) for name in names])
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xscale("log")
        finish(axis, f"{cell['graph']}: microseconds a missing byte", "both")
    legend_above(figure, axes)
    save(figure, result, path)


def _label(name: str, record: Mapping[str, Any]) -> str:
    return f"{name}, {record['width']}" + (", learnable" if record["learned"] else "")


def _types(side: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what all runs of a side say, by node type, the narrowest first."""
    first = side["runs"][0]
    names = sorted(first, key=lambda name: (first[name]["width"], name))
    keys = ("rows", "penalties")
    return {
        name: first[name]
        | {key: [value for run in side["runs"] for value in run[name][key]] for key in keys}
        for name in names
    }
