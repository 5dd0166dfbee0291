"""Versions of nodes: what frontiers have rows for.

A version is a node as seen by some roots. Nodes that every root sees alike have one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.spec import Drawn
from hopper.graph.schema import Relation
from hopper.micrograph.frontiers import DenseTable, RowTable

Versions = NDArray[np.int64]
"""versions of nodes of one type, as :meth:`NodeVersions.versions` makes them"""


class NodeVersions:
    """The versions of a sampler whose draws are the same for every root.

    A node's only version is its global id. Samplers whose draws depend on the root override these
    methods.

    Parameters
    ----------
    original_ids: per node type, [count] int64, original id of every global id.
    """

    def __init__(self, original_ids: Mapping[str, NDArray[np.int64]]) -> None:
        self.original_ids = dict(original_ids)

    @property
    def version_dtype(self) -> np.dtype[Any]:
        """The dtype that every version fits."""
        return np.dtype(np.int32)

    def versions(self, node_type: str, roots: NDArray[np.int64]) -> Versions:
        """Return [n] int64: the versions of some roots."""
        return roots

    def versions_at(
        self, node_type: str, nodes: NDArray[np.int64], times: NDArray[np.int64] | None
    ) -> Versions:
        """Return [n] int64: the versions of nodes for roots of the given times.

        Parameters
        ----------
        times: [n] int64; None if roots have no times.
        """
        return nodes

    def nodes_of(self, node_type: str, versions: Versions) -> NDArray[np.int64]:
        """Return [n] int64: the global ids of versions."""
        return versions

    def times_of(self, node_type: str, versions: Versions) -> NDArray[np.int64] | None:
        """Return [n] int64: the times of the roots that versions are for; None = no times."""
        return None

    def source_versions(self, relation: Relation, destinations: Versions, drawn: Drawn) -> Versions:
        """Return [edges] int64: the versions of the sources drawn for some destinations."""
        return drawn[1]

    def row_table(self, node_type: str) -> RowTable:
        """Make an empty table for the versions of a type's nodes."""
        return DenseTable(self.original_ids[node_type].size)

    def nodes_and_times(
        self, versions: Mapping[str, Versions]
    ) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
        """Return, by node type, the global ids of versions, and their roots' times if any."""
        nodes = {node_type: self.nodes_of(node_type, ids) for node_type, ids in versions.items()}
        times = {node_type: self.times_of(node_type, ids) for node_type, ids in versions.items()}
        return nodes, {t: of_type for t, of_type in times.items() if of_type is not None}
