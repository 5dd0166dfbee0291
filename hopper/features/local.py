"""Rows of one server, read from its own files, or from where its features come from instead."""

from __future__ import annotations

import resource
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.errors import SourceError
from cache_server.mapped_tables import read_rows_alone
from cache_server.read_ahead import read_ahead
from hopper.errors import GraphError
from hopper.features.copy_rows import copy_rows, read_pages
from hopper.features.source import RowKind
from hopper.ops import RowPart
from hopper.partition import PartitionedGraph


class LocalRows:
    """Reads the rows that one server stores, by memory map."""

    def __init__(self, graph: PartitionedGraph, server: int) -> None:
        self._graph = graph
        self._server = server
        self._tables: dict[tuple[RowKind, str], NDArray[Any]] = {}
        self._alone: set[tuple[RowKind, str]] = set()
        """tables that memory does not hold"""
        self._mapped: dict[str, Tensor] = {}
        self._faults = -1
        """pages that this process had waited for when rows were last located"""

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`; an id of another server is an error."""
        rows = self._rows(kind, node_type, ids)
        if self._is_sourced(kind, node_type):
            return self._read(node_type, ids)
        return np.take(self._ready(kind, node_type, rows), rows, axis=0)

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
        if self._is_sourced(kind, node_type):
            out[places] = self._read(node_type, ids)
        else:
            copy_rows(self._ready(kind, node_type, rows), rows, out, places)

    def part(
        self, node_type: str, ids: NDArray[np.int64], places: NDArray[np.int64] | None
    ) -> RowPart:
        """Features of nodes of this server, where they are stored.

        Parameters
        ----------
        places: [n] int64, ascending: which rows of a whole they are; None = all of it.
        """
        rows = self._rows("features", node_type, ids)
        whole = None if places is None else torch.from_numpy(places)
        if self._is_sourced("features", node_type):
            return RowPart(torch.from_numpy(self._read(node_type, ids)), None, whole)
        stored = self._ready("features", node_type, rows)
        table = self._mapped.get(node_type)
        if table is None:
            table = self._mapped[node_type] = _read_only(stored)
        # Where memory holds all that is read, nothing waits for a disk; until it does, this thread
        # had better wait than the one that computes.
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if faults != self._faults and ("features", node_type) not in self._alone:
            self._faults = faults
            read_pages(stored, rows)
        return RowPart(table, torch.from_numpy(rows), whole)

    def row_format(self, kind: RowKind, node_type: str) -> tuple[int, np.dtype[Any]]:
        """How many numbers a row has, and of which dtype."""
        if self._is_sourced(kind, node_type):
            source = self._graph.feature_sources[node_type](self._server)
            return source.dim, source.dtype
        table = self._table(kind, node_type)
        return table.shape[1], table.dtype

    def _is_sourced(self, kind: RowKind, node_type: str) -> bool:
        return kind == "features" and node_type in self._graph.feature_sources

    def _read(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """[n, dim]: features of this server's nodes that are in no file of the graph."""
        source = self._graph.feature_sources[node_type](self._server)
        try:
            return source.read(self._graph.original_ids(node_type)[ids])
        except SourceError as error:
            raise GraphError(str(error)) from error

    def _rows(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """[n] int64: the local rows of ids, all of this server."""
        rows, here = self._graph.stored(node_type, self._server).find(ids)
        if not here.all():
            raise GraphError(
                f"{kind}/{node_type}: node {ids[~here][0]} is not stored on server {self._server}"
            )
        return rows

    def _ready(self, kind: RowKind, node_type: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """As :meth:`_table`, once the disk has been asked for these rows of it."""
        table = self._table(kind, node_type)
        if (kind, node_type) in self._alone:
            read_ahead(table, rows)
        return table

    def _table(self, kind: RowKind, node_type: str) -> NDArray[Any]:
        """[rows, dim] memory map of this server's rows."""
        found = self._tables.get((kind, node_type))
        if found is None:
            read = self._graph.features if kind == "features" else self._graph.labels
            stored = read(node_type, self._server)
            if stored is None:
                raise GraphError(f"{self._graph.path}: node type {node_type!r} has no {kind}")
            if read_rows_alone(stored):
                self._alone.add((kind, node_type))
            found = stored if stored.ndim == 2 else stored[:, None]
            self._tables[kind, node_type] = found
        return found


def _read_only(table: NDArray[Any]) -> Tensor:
    """The same memory; torch warns that it has no tensors that cannot be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(table)
