"""Graphs and partitions of experiments, made once and kept in a work folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.cells import Cell, is_directory
from benchmarks.paper.experiment import BY_DIMENSION
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import make
from hopper.hetero.divide import divide_graph
from hopper.hetero.precompute import MetapathTables, SubsetTables, precompute
from hopper.hetero.precompute.write_tables import Recipe
from hopper.micrograph.locality import measure_locality
from hopper.partition import PartitionedGraph
from hopper.partition.partitioner import BY_RELATION

SEED: Final = 0
_RANDOM_DIM: Final = 128
_RECIPES: Final[dict[str, Recipe]] = {
    "sehgnn": MetapathTables(layers=2),
    "nars": SubsetTables(layers=2, subsets=8, dim=_RANDOM_DIM),
}
"""what models of precomputed tables read of a graph"""


@dataclass(frozen=True)
class Materials:
    """Graphs and partitions of cells, below a work folder.

    say: told a line about everything that has to be made.
    """

    work: Path
    say: Callable[[str], None]

    def graph(self, cell: Cell) -> GraphDirectory:
        """Return the graph that a cell's model is trained on: the given one, or tables made of it.

        Raises
        ------
        RequestError: it cannot be made; says what is missing.
        """
        source = Path(cell.graph)
        if not is_directory(cell.graph):
            dim = f"-dim-{cell.feature_dim}" if cell.feature_dim else ""
            source = self.work / "graphs" / f"{cell.graph}-{cell.scale:g}{dim}"
            if not source.exists():
                self.say(f"making {source.name}")
                dims, scale = cell.feature_dim, cell.scale or 1.0
                make(cell.graph, source, scale=scale, seed=SEED, feature_dim=dims)
        if cell.model in _RECIPES:
            tables = self.work / "graphs" / f"{source.name}-for-{cell.model}"
            if not tables.exists():
                self.say(f"averaging neighbours: {tables.name}")
                precompute(source, tables, _RECIPES[cell.model], random_dim=_RANDOM_DIM, seed=SEED)
            source = tables
        return GraphDirectory.open(source, check="shapes")

    def parts(self, cell: Cell, method: str | None = None) -> PartitionedGraph:
        """Return the graph of a cell, divided over its servers by its own method or another.

        Raises
        ------
        RequestError: it cannot be divided; says what is missing.
        """
        graph, method = self.graph(cell), method or cell.method
        hops = f"-{cell.layers}-hops" if method == BY_RELATION else ""
        path = self.work / "parts" / f"{graph.path.name}-{method}-{cell.servers}{hops}"
        if not path.exists():
            self.say(f"dividing {path.name}")
            options: dict[str, Any] = {"seed": SEED, "measure": _measure}
            if method == BY_RELATION:
                options = {"layers": cell.layers}
            elif method == BY_DIMENSION:
                method, options = "random", {"seed": SEED, "features": BY_DIMENSION}
            divide_graph(graph, path, cell.servers, method, **options)
        return PartitionedGraph.open(path)


def _measure(graph: PartitionedGraph) -> dict[str, Any]:
    return measure_locality(graph, (10, 10), 500, seed=SEED).as_json()
