"""Data locality of micrographs and subgraphs (HopGNN, Table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.paper.cells import Cell
from benchmarks.paper.charts import COLOURS, finish, legend_above, panels, save
from benchmarks.paper.each_cell import graph_size, run_cells
from benchmarks.paper.experiment import Result, Table
from benchmarks.paper.grid import CONFIGS_FOLDER, Job, describe_cell
from benchmarks.paper.tables import NONE, graph_name, percent
from benchmarks.paper.toml import write_toml
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.locality import measure_locality
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionedGraph


class Depth(NamedTuple):
    """How deep micrographs are: name in Table 1, fanouts, roots that are measured."""

    name: str
    fanouts: tuple[int, ...]
    roots: int


DEPTHS: Final = (Depth("2L", (10, 10), 2000), Depth("10L", (2,) * 10, 300))
SAMPLINGS: Final = {"node-wise": NeighborSampler, "layer-wise": LayerSampler}

_COLUMNS: Final = tuple(
    (graph, depth) for graph in ("arxiv-like", "products-like", "papers", "it-like")
    for depth in ("2L", "10L")
)  # fmt: skip
# Rows of Table 1: R_micro by column, then the mean R_sub, per cent.
_TABLE: Final = {
    ("node-wise", 2): (75, 73, 95, 88, 93, 61, 66, 64, 50),
    ("node-wise", 4): (66, 45, 92, 79, 89, 43, 54, 46, 25),
    ("node-wise", 8): (59, 27, 88, 68, 84, 35, 48, 36, 12),
    ("node-wise", 16): (63, 35, 86, 61, 84, 30, 46, 32, 6),
    ("layer-wise", 2): (79, 54, 55, 52, 85, 58, 80, 53, 50),
    ("layer-wise", 4): (70, 30, 34, 28, 77, 31, 67, 30, 25),
    ("layer-wise", 8): (65, 18, 25, 14, 56, 24, 63, 18, 12),
    ("layer-wise", 16): (61, 12, 21, 9, 57, 12, 61, 12, 6),
}


def published_micrograph(sampling: str, servers: int, graph: str, depth: str) -> float | None:
    """R_micro in [0, 1] as Table 1 has it for the graph that a preset stands for; None = absent."""
    row = _TABLE.get((sampling, servers))
    if row is None or (graph, depth) not in _COLUMNS:
        return None
    return row[_COLUMNS.index((graph, depth))] / 100


def published_subgraph(sampling: str, servers: int) -> float | None:
    """Return the mean R_sub in [0, 1] of Table 1; None = absent."""
    row = _TABLE.get((sampling, servers))
    return None if row is None else row[-1] / 100


_SHOWN: Final = ("date", "commit", "nodes", "edges", "edge_cut", "localities")
"""what result.json has of a cell's file"""


def count_localities(job: Job) -> int:
    """Count the measurements of a job."""
    return len(job.cells) * len(SAMPLINGS) * len(DEPTHS)


def run_localities(job: Job) -> Iterator[dict[str, Any]]:
    """Measure every graph, number of servers, sampling and depth.

    Yields
    ------
    Cells of result.json: as in the grid, with ``localities``, one entry per sampling and depth.
    """
    for record in run_cells(job, _measure_cell):
        yield {
            **record["cell"],
            **{key: record[key] for key in _SHOWN},
            "problems": [],
            "ratios": [],
            "batch_size": None,
        }


def _measure_cell(job: Job, cell: Cell) -> dict[str, Any]:
    graph = job.materials.parts(cell)
    localities = []
    for name, sampler in SAMPLINGS.items():
        for depth in DEPTHS:
            job.progress.begin(f"{cell.name}: {name}, {depth.name}")
            sizes = depth.fanouts if name == "node-wise" else layer_sizes(graph, depth)
            locality = measure_locality(graph, sizes, depth.roots, sampler=sampler)
            localities.append(
                {
                    "sampling": name,
                    "depth": depth.name,
                    **asdict(locality),
                    "published": published_micrograph(name, cell.servers, cell.graph, depth.name),
                    "published_subgraph": published_subgraph(name, cell.servers),
                }
            )
    _write_config(job, cell)
    record = {
        **graph_size(graph),
        "edge_cut": graph.description.get("edge_cut"),
        "localities": localities,
        "cell": describe_cell(cell),
    }
    return job.keep(cell, record)


def _write_config(job: Job, cell: Cell) -> None:
    *lines, partition = job.materials.recipe(cell)
    for depth in DEPTHS:
        fanouts = ",".join(map(str, depth.fanouts))
        lines.append(
            f"{partition}-{depth.name} --locality-fanouts {fanouts} --locality-roots {depth.roots}"
        )
    values = {depth.name: {"fanouts": depth.fanouts, "roots": depth.roots} for depth in DEPTHS}
    folder = job.options.out / CONFIGS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_toml(folder / f"{cell.name}.toml", values, lines)


def layer_sizes(graph: PartitionedGraph, depth: Depth) -> tuple[int, ...]:
    """Return sizes of layer samples. A node would keep as many in-edges as at the fanout if all
    nodes were equally likely to be in the sample."""
    nodes = graph.schema.node_types[graph.schema.target_type()].count
    edges = sum(kind.count for kind in graph.schema.relations.values())
    return tuple(max(1, min(nodes, round(f * nodes * nodes / edges))) for f in depth.fanouts)


def locality_table(result: Result) -> Table:
    """Make a table of R_micro and R_sub, measured and published."""
    rows = [
        [
            graph_name(cell),
            str(cell["servers"]),
            locality["sampling"],
            locality["depth"],
            percent(locality["micrograph"]),
            NONE if locality["published"] is None else f"{locality['published']:.0%}",
            percent(locality["subgraph"]),
            NONE
            if locality["published_subgraph"] is None
            else f"{locality['published_subgraph']:.0%}",
            str(locality["roots"]),
        ]
        for cell, locality in _entries(result)
    ]
    above = sum(locality["micrograph"] > locality["subgraph"] for _, locality in _entries(result))
    headings = (
        *("graph", "servers", "sampling", "layers", "R_micro", "published"),
        *("R_sub", "published mean", "roots"),
    )
    return Table(
        "Locality", headings, rows, f"R_micro is above R_sub in {above} of {len(rows)} rows."
    )


def draw_localities(result: Result, path: Path) -> None:
    """Draw R_micro against R_sub by number of servers, a place for each graph. Node-wise is
    solid."""
    graphs = list(dict.fromkeys(cell["graph"] for cell in result["cells"]))
    figure, axes = panels(len(graphs), 5.0, 4.2, sharey=True)
    for axis, graph in zip(axes, graphs, strict=True):
        for index, (sampling, depth) in enumerate((s, d) for s in SAMPLINGS for d in DEPTHS):
            entries = [
                (cell["servers"], locality)
                for cell, locality in _entries(result)
                if cell["graph"] == graph and locality["sampling"] == sampling
                and locality["depth"] == depth.name
            ]  # fmt: skip
            entries.sort(key=lambda entry: entry[0])
            xs = [servers for servers, _ in entries]
            style = "-" if sampling == "node-wise" else "--"
            colour = COLOURS[3 if depth.name == "2L" else 5]
            axis.plot(xs, [100 * e["micrograph"] for _, e in entries], style, marker="o",
                       color=colour, label=f"R_micro, {sampling}, {depth.name}")  # fmt: skip
            if index == 0:
                axis.plot(xs, [100 * e["subgraph"] for _, e in entries], ":", marker="s",
                           color=COLOURS[0], label="R_sub, 2L")  # fmt: skip
        finish(axis, graph, "both", x_label="servers")
        axis.set_ylim(0, 100)
    figure.supylabel("per cent", fontsize=9)
    legend_above(figure, axes[:1])
    save(figure, result, path)


def _entries(result: Result) -> Iterator[tuple[Any, Any]]:
    for cell in result["cells"]:
        for locality in cell["localities"]:
            yield cell, locality
