"""The cells of an experiment. Each is a setting in which its sides are compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.paper.experiment import Grid
from hopper.config import DEEP_MODELS, Config, make_config
from hopper.errors import RequestError
from hopper.graph.presets import find_preset

LEAST_BATCH: Final = 16
SERVERS: Final = 4
SCALES: Final = MappingProxyType({"arxiv-like": 0.1, "it-like": 0.001})
"""what two cores do in minutes; 0.02 of the other presets"""
_SCALE: Final = 0.02
METHODS: Final = {"it-like": "stream"}
"""how graphs are divided that METIS cannot hold at scale 1; the others by METIS"""
_NAMED_AXES: Final = {
    "fanouts": "fanout-{}",
    "batch_sizes": "batch-{}",
    "feature_dims": "dim-{}",
    "servers": "servers-{}",
    "links": "link-{}",
    "cache_sizes": "cache-{}",
}
"""how an axis shows in a cell's name where a grid varies it; graph, model and hidden always do"""


@dataclass(frozen=True)
class Cell:
    """One setting in which all sides of an experiment are compared.

    Attributes
    ----------
    graph: a preset, or the path of a graph directory.
    scale: of a preset; None for a directory.
    fanouts: one for each layer.
    batch_size: roots a rank and iteration, already scaled.
    feature_dim, cache_size: None = the preset's, the configuration's own.
    """

    name: str
    graph: str
    scale: float | None
    model: str
    hidden: int
    fanouts: tuple[int, ...]
    batch_size: int
    servers: int
    link: str
    method: str
    feature_dim: int | None
    cache_size: str | None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.fanouts)

    def config(
        self, partitioned: Path, epochs: int, iterations: int, words: tuple[str, ...]
    ) -> Config:
        """Return the configuration that all sides share.

        Raises
        ------
        ConfigError: a word of ``--section.key value`` is at fault.
        """
        values = {
            "data": {"partitioned": str(partitioned)},
            "model": {"name": self.model, "layers": self.layers, "hidden": self.hidden},
            "sampler": {"fanouts": list(self.fanouts)},
            "train": {
                "batch_size": self.batch_size,
                "epochs": epochs,
                "iterations_per_epoch": iterations,
                "evaluate_every": 0,
            },
            # As HopGNN does it.
            "hop": {"migrate": "model"},
        }
        if self.cache_size is not None:
            values["cache"] = {"size": self.cache_size}
        return make_config(values, words)


def make_cells(grid: Grid, scale: float | None = None, batch_size: int | None = None) -> list[Cell]:
    """Return the cells of a grid, each setting once, in order of the axes.

    Parameters
    ----------
    scale: of every preset, instead of the grid's.
    batch_size: roots a rank and iteration, whatever the scale, instead of the grid's.

    Raises
    ------
    RequestError: a graph is neither a preset nor a graph directory.
    """
    cells: dict[str, Cell] = {}
    for graph in grid.graphs:
        _check_graph(graph)
    for graph, model, hidden, fanout, roots, dim, servers, link, cache in product(
        grid.graphs,
        grid.models or ("",),
        grid.hidden,
        grid.fanouts or (None,),
        grid.batch_sizes,
        grid.feature_dims or (None,),
        grid.servers or (SERVERS,),
        grid.links,
        grid.cache_sizes or (None,),
    ):
        if grid.pairs and (graph, model) not in grid.pairs:
            continue
        share = None if is_directory(graph) else scale or grid.scales.get(
            graph, SCALES.get(graph, _SCALE)
        )  # fmt: skip
        batch = batch_size or max(LEAST_BATCH, round(roots * (share or 1)))
        if grid.shared_batch is not None and batch_size is None:
            batch = grid.shared_batch // servers
        if isinstance(fanout, tuple):
            fanouts = fanout
        else:
            layers = grid.layers or DEEP_MODELS.get(model, 3)
            fanouts = (fanout or (2 if model in DEEP_MODELS else 10),) * layers
        axes = (fanout, batch, dim, servers, link, cache)
        named = [model, str(hidden)] if grid.models else []
        name = "-".join([Path(graph).name, *named, *_name_axes(grid, axes)])
        cell = Cell(
            name, graph, share, model or "sage", hidden, fanouts, batch, servers, link,
            METHODS.get(graph, "metis"), dim, cache,
        )  # fmt: skip
        cells.setdefault(name, cell)
    return list(cells.values())


def is_directory(graph: str) -> bool:
    """Return whether a graph's name is that of a graph directory, and not a preset."""
    return "/" in graph or Path(graph).is_dir()


def _check_graph(graph: str) -> None:
    if not is_directory(graph):
        find_preset(graph)
    elif not (Path(graph) / "graph.json").is_file():
        raise RequestError(
            f"--graphs: {graph}: expected a preset or a graph directory (with a graph.json); "
            "`hopper dataset import` makes one from other formats"
        )


def _name_axes(grid: Grid, values: tuple[Any, ...]) -> Iterator[str]:
    """Yield the parts of a cell's name that tell the axes that a grid varies."""
    for (axis, form), value in zip(_NAMED_AXES.items(), values, strict=True):
        if len(getattr(grid, axis)) > 1 or (axis == "links" and grid.names_link):
            text = "-".join(map(str, value)) if isinstance(value, tuple) else str(value)
            yield form.format(text).replace("%", "-percent")
