"""Rows of one server, read from its own files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features.copy_rows import copy_rows
from hopper.features.source import RowKind
from hopper.partition import PartitionedGraph


class LocalRows:
    """Reads the rows that one server stores, by memory map."""

    def __init__(self, graph: PartitionedGraph, server: int) -> None:
        self._graph = graph
        self._server = server
        self._tables: dict[tuple[RowKind, str], NDArray[Any]] = {}

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`; an id of another server is an error."""
        return np.take(self.table(kind, node_type), self._rows(kind, node_type, ids), axis=0)

    def fill(
        self,
        kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        """See :class:`RowFiller`."""
        rows = self._rows(kind, node_type, ids)
        copy_rows(self.table(kind, node_type), rows, out, places)

    def _rows(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] int64: the local rows of ids, all of this server."""
        rows, here = self._graph.stored(node_type, self._server).find(ids)
        if not here.all():
            raise GraphError(
                f"{kind}/{node_type}: node {ids[~here][0]} is not stored on server {self._server}"
            )
        return rows

    def table(self, kind: RowKind, node_type: str) -> NDArray[Any]:
        """[rows, dim] memory map of this server's rows."""
        found = self._tables.get((kind, node_type))
        if found is None:
            read = self._graph.features if kind == "features" else self._graph.labels
            stored = read(node_type, self._server)
            if stored is None:
                raise GraphError(f"{self._graph.path}: node type {node_type!r} has no {kind}")
            found = stored if stored.ndim == 2 else stored[:, None]
            self._tables[kind, node_type] = found
        return found
