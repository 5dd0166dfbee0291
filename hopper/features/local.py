"""Rows of one server, read from its files or from a feature source that replaces them."""

from __future__ import annotations

import copy
import resource
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.errors import SourceError
from cache_server.store.mapped_rows import feature_bytes, read_rows_alone
from cache_server.store.read_ahead import read_ahead, take_ahead
from hopper.errors import GraphError
from hopper.features.cached import look_up
from hopper.features.copy_rows import copy_rows
from hopper.features.row_cache import RowCache
from hopper.features.source import RowKind
from hopper.graph.topology import Ids
from hopper.ops import RowPart
from hopper.partition import PartitionedGraph
from hopper.partition.description import server_folder


class LocalRows:
    """Reads the rows that one server stores, through memory maps of its files."""

    def __init__(self, graph: PartitionedGraph, server: int) -> None:
        self._graph = graph
        self._server = server
        self._tables: dict[tuple[RowKind, str], tuple[NDArray[Any], bool]] = {}
        self._mapped: dict[str, Tensor] = {}
        self._ready: Mapping[str, RowCache] = {}
        self._faults = -1
        """major page faults of this process when rows were last located"""

    def with_ready(self, ready: Mapping[str, RowCache]) -> LocalRows:
        """Return a view that takes features from rows in memory, by node type, as far as they are
        there."""
        view = copy.copy(self)
        view._ready = ready
        return view

    def gather(self, kind: RowKind, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read rows of this server; see :meth:`FeatureSource.gather`."""
        if self._is_sourced(kind, node_type):
            return self._read(node_type, ids)
        table, is_read_alone = self._table(kind, node_type)
        if not is_read_alone:
            return np.take(table, self._rows(kind, node_type, ids), axis=0)
        out = np.empty((ids.size, table.shape[1]), table.dtype)
        self.fill(kind, node_type, ids, out, np.arange(ids.size))
        return out

    def fill(self, kind: RowKind, node_type: str, ids: Ids, out: NDArray[Any], places: Ids) -> None:
        """Read rows of this server into a table."""
        if self._is_sourced(kind, node_type):
            out[places] = self._read(node_type, ids)
            return
        table, is_read_alone = self._table(kind, node_type)

        def read(ids: Ids, out: NDArray[Any], places: Ids) -> None:
            take = take_ahead if is_read_alone else copy_rows
            take(table, self._rows(kind, node_type, ids), out, places)

        if kind == "features" and node_type in self._ready:
            look_up(self._ready[node_type], ids, out, places, read)
        else:
            read(ids, out, places)

    def is_beyond_memory(self, node_type: str) -> bool:
        """Return whether features of a type are in a file that does not fit memory."""
        is_here = self._graph.stored(node_type, self._server).count > 0
        is_sourced = self._is_sourced("features", node_type)
        return is_here and not is_sourced and self._table("features", node_type)[1]

    def are_copied(self, node_type: str) -> bool:
        """Return whether features of a type are copied when they are read, since their table does
        not fit memory or a source provides them; others stay where they are mapped."""
        return self._is_sourced("features", node_type) or self._table("features", node_type)[1]

    def part(self, node_type: str, ids: Ids, places: Ids | None) -> RowPart:
        """Describe where the features of some of this server's nodes are mapped or copied."""
        whole_rows = None if places is None else torch.from_numpy(places)
        if self.are_copied(node_type):
            copied = torch.from_numpy(self.gather("features", node_type, ids))
            return RowPart(copied, None, whole_rows)
        rows = self._rows("features", node_type, ids)
        stored, _ = self._table("features", node_type)
        if node_type not in self._mapped:
            # A tensor that nobody writes to may share a read-only map.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                self._mapped[node_type] = torch.from_numpy(stored)
        # New page faults mean that the table is not in memory yet. This thread then waits for the
        # disk, so that the computing thread need not.
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if faults != self._faults:
            self._faults = faults
            read_ahead(stored, rows)
        return RowPart(self._mapped[node_type], torch.from_numpy(rows), whole_rows)

    def row_format(self, kind: RowKind, node_type: str) -> tuple[int, np.dtype[Any]]:
        """Return the number of elements in a row, and their dtype."""
        if self._is_sourced(kind, node_type):
            source = self._graph.feature_sources[node_type](self._server)
            return source.dim, source.dtype
        table, _ = self._table(kind, node_type)
        return table.shape[1], table.dtype

    def _is_sourced(self, kind: RowKind, node_type: str) -> bool:
        return kind == "features" and node_type in self._graph.feature_sources

    def _read(self, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read features of this server's nodes from their source: [n, dim]."""
        self._rows("features", node_type, ids)
        source = self._graph.feature_sources[node_type](self._server)
        try:
            return source.read(self._graph.original_ids(node_type)[ids])
        except SourceError as error:
            raise GraphError(str(error)) from error

    def _rows(self, kind: RowKind, node_type: str, ids: Ids) -> Ids:
        """Return [n] int64, the local rows of ids; raise GraphError for an id of another server."""
        rows, is_here = self._graph.stored(node_type, self._server).find(ids)
        if not is_here.all():
            raise GraphError(
                f"{kind}/{node_type}: node {ids[~is_here][0]} is not stored on server "
                f"{self._server}"
            )
        return rows

    def _table(self, kind: RowKind, node_type: str) -> tuple[NDArray[Any], bool]:
        """Return the memory map of this server's rows, [rows, dim], and whether it does not fit
        memory, so that rows are read one by one."""
        if (kind, node_type) not in self._tables:
            read_table = self._graph.features if kind == "features" else self._graph.labels
            stored = read_table(node_type, self._server)
            if stored is None:
                raise GraphError(f"{self._graph.path}: node type {node_type!r} has no {kind}")
            is_read_alone = read_rows_alone(
                stored, feature_bytes(server_folder(self._graph.path, self._server))
            )
            table = stored if stored.ndim == 2 else stored[:, None]
            self._tables[kind, node_type] = table, is_read_alone
        return self._tables[kind, node_type]
