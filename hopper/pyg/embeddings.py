"""Embeddings of all nodes by a model of one's own, layer by layer over all neighbors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from rich.progress import track
from torch import Tensor
from torch_geometric.data import HeteroData

from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.files.whole_files import write_text
from hopper.graph.array_file import create_array
from hopper.graph.topology import Ids
from hopper.pipeline.connected import ConnectedGraph
from hopper.pipeline.loader import Drawn, Loader, draw_with, pipeline_config
from hopper.pyg.data import to_data

ModelLayer = Callable[[Any, str], Tensor]
"""computes [batch_size, dim] rows of a batch's input nodes, of the named type"""
_SAVED_EVERY: Final = 16
"""batches, after which a broken-off call is gone on with"""


def write_embeddings(
    graph: ConnectedGraph,
    layers: Sequence[ModelLayer],
    out: str | os.PathLike[str],
    *,
    batch_size: int = 1024,
) -> Path:
    """Compute a model's rows of all nodes, each layer over all neighbors of every node.

    Every rank computes its own nodes. After a layer its rows are on disk, and the next one reads
    them there. The same call continues one that was broken off.

    Parameters
    ----------
    layers: the model's layers. Each is called with a batch as :class:`hopper.pyg.NeighborLoader`
        makes it, of one hop, whose ``x`` are the rows of the layer before, and with the node type.
        It returns the rows of the first ``batch_size`` nodes.
    out: a folder that all ranks see.
    batch_size: nodes of a rank in the mean.

    Returns
    -------
    The folder of the last layer. It has, for the target type and each rank,
    ``TYPE/ids-RANK.npy`` with [n] int64 original ids and ``TYPE/rows-RANK.npy`` with [n, dim] rows.

    Raises
    ------
    RequestError: there are no layers, or the folder has rows of another call.
    """
    if not layers:
        raise RequestError("layers: expected at least one")
    schema, folder = graph.graph.schema, Path(out)
    below: _LayerRows | None = None
    for number, layer in enumerate(layers):
        here = folder / f"layer-{number + 1}"
        is_last = number == len(layers) - 1
        types = [name for name, kind in schema.node_types.items() if kind.count]
        for node_type in [schema.target_type()] if is_last else types:
            _write_rows(graph, layer, node_type, here, below, batch_size)
        if dist.is_initialized():
            dist.barrier()
        below = _LayerRows(graph, here)
    return here


class _LayerRows:
    """The rows that all ranks have written of a layer, by original id."""

    def __init__(self, graph: ConnectedGraph, folder: Path) -> None:
        self._graph, self._folder = graph, folder
        self._places: dict[str, tuple[Ids, Ids]] = {}
        self._tables: dict[tuple[str, int], NDArray[Any]] = {}

    def read(self, node_type: str, originals: Ids) -> Tensor:
        """Return [n, dim]: the rows of some nodes."""
        if node_type not in self._places:
            ranks = _ranks_of(self._graph, node_type)
            rows = np.empty(ranks.size, np.int64)
            for rank in range(self._graph.world):
                own = ranks == rank
                rows[own] = np.arange(np.count_nonzero(own))
            self._places[node_type] = ranks, rows
        ranks, rows = (of_all[originals] for of_all in self._places[node_type])
        tables = [self._table(node_type, rank) for rank in range(self._graph.world)]
        found = np.empty((originals.size, tables[0].shape[1]), tables[0].dtype)
        for rank, table in enumerate(tables):
            places = np.flatnonzero(ranks == rank)
            found[places] = table[rows[places]]
        return torch.from_numpy(found)

    def _table(self, node_type: str, rank: int) -> NDArray[Any]:
        key = node_type, rank
        if key not in self._tables:
            file = self._folder / node_type / f"rows-{rank}.npy"
            self._tables[key] = np.load(file, mmap_mode="r", allow_pickle=False)
        return self._tables[key]


def _write_rows(
    graph: ConnectedGraph,
    layer: ModelLayer,
    node_type: str,
    folder: Path,
    below: _LayerRows | None,
    batch_size: int,
) -> None:
    """Write a layer's rows of this rank's nodes of a type, from where an earlier call stopped."""
    sampler = graph.sampler([-1], node_type=node_type)
    schema, rank = graph.graph.schema, graph.rank
    schedule = graph.schedule(
        batch_size,
        roots=np.arange(schema.node_types[node_type].count),
        node_type=node_type,
        shuffle=False,
    )
    originals = graph.graph.original_ids(node_type)

    def read(drawn: Drawn, rows: PartitionedRows) -> tuple[Any, Ids]:
        batch: Any = to_data(drawn.subgraph, rows, with_features=below is None)
        typed = isinstance(batch, HeteroData)
        for name, ids in drawn.subgraph.nodes.items():
            if below is not None and schema.node_types[name].count:
                store = batch[name] if typed else batch
                store.x = below.read(name, graph.graph.original_ids(name)[ids])
        roots = drawn.subgraph.roots
        (batch[node_type] if typed else batch).batch_size = roots.size
        return batch, originals[roots]

    draw = draw_with(graph, sampler, schedule, "home", once=True)
    loader = Loader(graph, draw, read, schedule.iterations, pipeline_config({}))
    place = folder / node_type
    state_file, rows_file = place / f"state-{rank}.json", place / f"rows-{rank}.npy"
    asked = {"batch_size": batch_size, "world": graph.world, "batches": schedule.iterations}
    first = written = 0
    table: NDArray[Any] | None = None
    if state_file.exists():
        state = json.loads(state_file.read_text())
        if {key: state.get(key) for key in asked} != asked:
            raise RequestError(f"out: {place} has rows of another call; expected {asked}")
        first, written = state["next"], state["rows"]
        if first == schedule.iterations:
            return
        table = np.load(rows_file, mmap_mode="r+", allow_pickle=False)
        loader.load_state_dict({"epoch": 0, "iteration": first, "iterations": len(loader)})
    own = np.flatnonzero(_ranks_of(graph, node_type) == rank)
    ids = create_array(place / f"ids-{rank}.npy", np.int64, own.shape)
    ids[:] = own

    def save(next_batch: int) -> None:
        if isinstance(table, np.memmap):
            table.flush()
        write_text(state_file, json.dumps({**asked, "next": next_batch, "rows": written}))

    batches = track(
        loader,
        f"{folder.name}: {node_type}",
        total=len(loader) - first,
        disable=rank > 0,
        transient=True,
    )
    with loader, torch.no_grad():
        for number, (batch, batch_ids) in enumerate(batches, first):
            rows = layer(batch, node_type).cpu().numpy()
            if rows.shape[:1] != batch_ids.shape:
                raise RequestError(
                    f"layers: expected {batch_ids.size} rows of {node_type!r}, one of each input "
                    f"node, given {list(rows.shape)}"
                )
            if table is None:
                table = create_array(rows_file, rows.dtype, (own.size, *rows.shape[1:]))
            table[written : written + len(rows)] = rows
            written += len(rows)
            if (number + 1) % _SAVED_EVERY == 0:
                save(number + 1)
    save(schedule.iterations)


def _ranks_of(graph: ConnectedGraph, node_type: str) -> Ids:
    """Return [count] int64: the rank that computes each node of a type, by original id."""
    nodes = np.asarray(graph.graph.global_ids(node_type))
    if graph.world == 1:
        return np.zeros(nodes.size, np.int64)
    return graph.placement().rank_of(node_type, nodes)
