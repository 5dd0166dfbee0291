"""The cells of an experiment. Each is a setting in which engines are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.paper.options import Options
from hopper.config import DEEP_MODELS, Config, make_config
from hopper.errors import RequestError

PAPER_BATCH: Final = 1024
"""roots a rank at scale 1; the papers' figures give sizes around it and no default"""
LEAST_BATCH: Final = 16
SCALES: Final = MappingProxyType(
    {
        "arxiv-like": 0.1,
        "products-like": 0.02,
        "uk-like": 0.02,
        "in-like": 0.02,
        "it-like": 0.001,
    }
)
"""what two cores do in minutes"""
METHODS: Final = {"it-like": "stream"}
"""how graphs are divided that METIS cannot hold at scale 1; the others by METIS (Table 1)"""
NAMED_AXES: Final = {
    "fanout": "fanout-{}",
    "batch_size": "batch-{}",
    "feature_dim": "dim-{}",
    "servers": "servers-{}",
    "cache_size": "cache-{}",
}
"""how an axis shows in a cell's name; graph, model and hidden always do"""


@dataclass(frozen=True)
class Cell:
    """One setting in which all sides of an experiment are compared.

    Attributes
    ----------
    graph: a preset, or the path of a graph directory.
    scale: of a preset; None for a directory.
    fanout: of every hop, or one per hop, first hop first.
    batch_size: roots a rank and iteration, already scaled.
    feature_dim: instead of the preset's; None = its own.
    cache_size: ``cache.size`` of the sides that have a cache; None = the configuration's own.
    """

    name: str
    graph: str
    scale: float | None
    model: str
    hidden: int
    layers: int
    fanout: int | tuple[int, ...]
    batch_size: int
    servers: int
    method: str
    feature_dim: int | None
    cache_size: str | None

    @property
    def fanouts(self) -> list[int]:
        """The fanouts, one for each layer."""
        if isinstance(self.fanout, int):
            return [self.fanout] * self.layers
        return list(self.fanout)

    def config(
        self, partitioned: Path, epochs: int, iterations: int, words: tuple[str, ...]
    ) -> Config:
        """Return the configuration that all sides share.

        Raises
        ------
        ConfigError: a word of ``--section.key value`` is at fault.
        """
        return make_config(self.values(str(partitioned), epochs, iterations), words)

    def values(self, partitioned: str, epochs: int, iterations: int) -> dict[str, Any]:
        """Return the values of :meth:`config`, nested, with ``partitioned`` as it is to be
        written."""
        cache = {} if self.cache_size is None else {"cache": {"size": self.cache_size}}
        return {
            "data": {"partitioned": partitioned},
            "model": {"name": self.model, "layers": self.layers, "hidden": self.hidden},
            "sampler": {"fanouts": self.fanouts},
            "train": {
                "batch_size": self.batch_size,
                "epochs": epochs,
                "iterations_per_epoch": iterations,
                "evaluate_every": 0,
            },
            **cache,
        }


@dataclass(frozen=True)
class Grid:
    """The cells of an experiment: the product of its axes.

    Attributes
    ----------
    scales: default scale by graph, where it is not that of SCALES.
    layers, fanouts: None = the model's own (3 layers and fanout 10; 7 or 10 layers and fanout 2). A
        fanout is that of every hop, or one per hop, which gives the layers too.
    batch_sizes: at scale 1.
    shared_batch: roots of all ranks together instead, whatever the scale.
    servers: None = as many as the command line asks for.
    trains: False where no model is trained, so that none is in a cell's name.
    pairs: a graph and a model each, those of the product that are run where the command line names
        neither graphs nor models; () = all.
    """

    graphs: tuple[str, ...]
    models: tuple[str, ...]
    scales: Mapping[str, float] = field(default_factory=dict)
    hidden: tuple[int, ...] = (16,)
    layers: int | None = None
    fanouts: tuple[int | tuple[int, ...], ...] | None = None
    batch_sizes: tuple[int, ...] = (PAPER_BATCH,)
    feature_dims: tuple[int | None, ...] = (None,)
    servers: tuple[int, ...] | None = None
    cache_sizes: tuple[str | None, ...] = (None,)
    trains: bool = True
    shared_batch: int | None = None
    pairs: tuple[tuple[str, str], ...] = ()

    def cells(self, options: Options) -> list[Cell]:
        """Return all cells, each setting once, in order of the axes.

        Raises
        ------
        RequestError: a number of servers that is not among the experiment's was asked for.
        """
        numbers = self.servers
        if numbers is not None and options.servers is not None:
            if options.servers not in numbers:
                raise RequestError(
                    "--emulate or --loopback: this experiment varies the number of servers itself; "
                    f"expected one of {', '.join(map(str, numbers))}, or none; "
                    f"given {options.servers}"
                )
            numbers = (options.servers,)
        is_chosen = options.graphs is not None or options.models is not None
        cells: dict[str, Cell] = {}
        for choice in product(
            options.graphs or self.graphs,
            options.models or self.models,
            options.hidden or self.hidden,
            self.fanouts or (None,),
            self.batch_sizes if options.batch_size is None else (None,),
            self.feature_dims,
            numbers or (options.servers or 4,),
            self.cache_sizes,
        ):
            if is_chosen or not self.pairs or choice[:2] in self.pairs:
                cell = self._cell(options, *choice)
                cells.setdefault(cell.name, cell)
        return list(cells.values())

    def _cell(
        self,
        options: Options,
        graph: str,
        model: str,
        hidden: int,
        fanout: int | tuple[int, ...] | None,
        batch_size: int | None,
        feature_dim: int | None,
        servers: int,
        cache_size: str | None,
    ) -> Cell:
        scale = (
            None
            if is_directory(graph)
            else options.scale or self.scales.get(graph, SCALES.get(graph, 0.02))
        )
        roots = batch_size or PAPER_BATCH
        scaled = options.batch_size or max(LEAST_BATCH, round(roots * (scale or 1)))
        if self.shared_batch is not None and options.batch_size is None:
            scaled = self.shared_batch // servers
        axes: dict[str, Any] = {
            "fanout": fanout if fanout is not None else 2 if model in DEEP_MODELS else 10,
            "batch_size": scaled,
            "feature_dim": feature_dim,
            "servers": servers,
            "cache_size": cache_size,
        }
        network = [model, str(hidden)] if self.trains else []
        return Cell(
            name="-".join([Path(graph).name, *network, *self._name_parts(axes)]),
            graph=graph,
            scale=scale,
            model=model,
            hidden=hidden,
            layers=len(fanout)
            if isinstance(fanout, tuple)
            else self.layers or DEEP_MODELS.get(model, 3),
            method=METHODS.get(graph, "metis"),
            **axes,
        )

    def _name_parts(self, axes: Mapping[str, Any]) -> Iterator[str]:
        """Yield the parts of a cell's name: the values of the axes that this grid varies."""
        varied = {
            "fanout": self.fanouts,
            "batch_size": self.batch_sizes,
            "feature_dim": self.feature_dims,
            "servers": self.servers,
            "cache_size": self.cache_sizes,
        }
        for axis, form in NAMED_AXES.items():
            if len(varied[axis] or ()) > 1:
                value = axes[axis]
                text = "-".join(map(str, value)) if isinstance(value, tuple) else value
                # A percent sign would have to be escaped in links to the cell's file.
                yield form.format(text).replace("%", "-percent")


def is_directory(graph: str) -> bool:
    """Return whether a word of ``--graphs`` names a graph directory, and not a preset."""
    return "/" in graph or Path(graph).is_dir()
