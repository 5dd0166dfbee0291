"""Graphs and partitions of experiments, made once and kept in a work folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.cells import Cell, is_directory
from benchmarks.paper.experiment import BY_DIMENSION
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.presets import find_preset
from hopper.graph.synthesise import make
from hopper.graph.typed_presets import TYPED_PRESETS
from hopper.hetero.divide import divide_graph
from hopper.hetero.precompute import MetapathTables, SubsetTables, precompute
from hopper.hetero.precompute.tables import Recipe
from hopper.micrograph.locality import measure_locality
from hopper.partition import PartitionedGraph
from hopper.partition.assign import BY_RELATION

GRAPHS_FOLDER: Final = "graphs"
PARTS_FOLDER: Final = "parts"
SEED: Final = 0
_LOCALITY_FANOUTS: Final = (10, 10)
_LOCALITY_ROOTS: Final = 500
_RANDOM_DIM: Final = 128
_RECIPES: Final[dict[str, Recipe]] = {
    "sehgnn": MetapathTables(layers=2),
    "nars": SubsetTables(layers=2, subsets=8, dim=_RANDOM_DIM),
}
"""what models of precomputed tables read of a graph"""
_COMMANDS: Final = {
    "sehgnn": "metapaths --layers 2",
    "nars": f"subsets --layers 2 --subsets 8 --dim {_RANDOM_DIM}",
}


@dataclass(frozen=True)
class Materials:
    """Graphs and partitions of cells, below a work folder.

    say: told a line about everything that has to be made.
    """

    work: Path
    say: Callable[[str], None]

    def check(self, graph: str) -> None:
        """Refuse a graph that does not exist, before anything is made.

        Raises
        ------
        RequestError: it is neither a preset nor a graph directory.
        """
        if not is_directory(graph):
            if graph not in TYPED_PRESETS:
                find_preset(graph)
        elif not (Path(graph) / "graph.json").is_file():
            raise RequestError(
                f"--graphs: {graph}: expected a preset or a graph directory (with a graph.json); "
                "`hopper dataset import` makes one from other formats"
            )

    def graph(self, cell: Cell) -> GraphDirectory:
        """Return the graph of a cell.

        Raises
        ------
        RequestError: it cannot be made; says what is missing.
        """
        path_given, path = self._source_path(cell), self._graph_path(cell)
        if not is_directory(cell.graph) and not path_given.exists():
            self.say(f"making {path_given.name}")
            dim = cell.feature_dim
            make(cell.graph, path_given, scale=cell.scale or 1.0, seed=SEED, feature_dim=dim)
        if not path.exists():
            self.say(f"averaging neighbours: {path.name}")
            precompute(path_given, path, _RECIPES[cell.model], random_dim=_RANDOM_DIM, seed=SEED)
        return GraphDirectory.open(path, check="shapes")

    def parts(self, cell: Cell) -> PartitionedGraph:
        """Return the graph of a cell, divided over its servers.

        Raises
        ------
        RequestError: it cannot be divided; says what is missing.
        """
        return self.division(cell, cell.method)

    def division(self, cell: Cell, method: str) -> PartitionedGraph:
        """Return the graph of a cell, divided over its servers by some method.

        Raises
        ------
        RequestError: it cannot be divided; says what is missing.
        """
        path = self.work / self.parts_path(cell, method)
        if not path.exists():
            graph = self.graph(cell)
            self.say(f"dividing {path.name}")
            if method == BY_RELATION:
                return divide_graph(graph, path, cell.servers, method, layers=cell.layers)
            if method == BY_DIMENSION:
                return divide_graph(
                    graph, path, cell.servers, "random", seed=SEED, features=BY_DIMENSION
                )
            divide_graph(graph, path, cell.servers, method, seed=SEED, measure=_measure)
        return PartitionedGraph.open(path)

    def parts_path(self, cell: Cell, method: str | None = None) -> Path:
        """Return the path of a cell's partitions in the work folder, by its own method or
        another."""
        hops = f"-{cell.layers}-hops" if method == BY_RELATION else ""
        name = f"{self._graph_path(cell).name}-{method or cell.method}-{cell.servers}{hops}"
        return Path(PARTS_FOLDER) / name

    def recipe(self, cell: Cell, divisions: Sequence[str] = ()) -> list[str]:
        """Return the commands that make a cell's partitions, to be run in the work folder.

        Parameters
        ----------
        divisions: methods by which the graph is divided besides the cell's own.
        """
        graph = cell.graph
        commands = []
        if not is_directory(cell.graph):
            graph = str(self._graph_path(cell).relative_to(self.work))
            dim = f" --feature-dim {cell.feature_dim}" if cell.feature_dim else ""
            commands.append(
                f"hopper dataset make {cell.graph} --scale {cell.scale:g} --seed {SEED}{dim} "
                f"--out {graph}"
            )
        else:
            graph = Path(cell.graph).name
        if cell.model in _RECIPES:
            tables = str(self._graph_path(cell).relative_to(self.work))
            commands.append(
                f"hopper precompute {_COMMANDS[cell.model]} {graph} --random-dim {_RANDOM_DIM} "
                f"--seed {SEED} --out {tables}"
            )
            graph = tables
        for method in (cell.method, *divisions):
            how = f"--method {method} --seed {SEED}"
            if method == BY_RELATION:
                how = f"--method {method} --layers {cell.layers}"
            elif method == BY_DIMENSION:
                how = f"--method random --features {method} --seed {SEED}"
            commands.append(
                f"hopper partition {graph} --servers {cell.servers} {how} "
                f"--out {self.parts_path(cell, method)}"
            )
        return commands

    def _graph_path(self, cell: Cell) -> Path:
        """Return the graph that a cell's model is trained on: the given one, or tables made of
        it."""
        path_given = self._source_path(cell)
        if cell.model not in _RECIPES:
            return path_given
        return self.work / GRAPHS_FOLDER / f"{path_given.name}-for-{cell.model}"

    def _source_path(self, cell: Cell) -> Path:
        if is_directory(cell.graph):
            return Path(cell.graph)
        dim = f"-dim-{cell.feature_dim}" if cell.feature_dim else ""
        return self.work / GRAPHS_FOLDER / f"{cell.graph}-{cell.scale:g}{dim}"


def _measure(graph: PartitionedGraph) -> dict[str, Any]:
    return measure_locality(graph, _LOCALITY_FANOUTS, _LOCALITY_ROOTS, seed=SEED).as_json()
