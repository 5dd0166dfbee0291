"""Rows of one server, read from its own files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
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
        table = self.table(kind, node_type)
        rows = self._graph.book.row(node_type, ids)
        homes = self._graph.book.home(node_type, ids)
        if (homes != self._server).any():
            wrong = ids[homes != self._server][0]
            raise GraphError(
                f"{kind}/{node_type}: node {wrong} is not stored on server {self._server}"
            )
        return np.take(table, rows, axis=0)

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
