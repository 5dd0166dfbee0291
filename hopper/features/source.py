"""The interfaces through which feature and label rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.graph.topology import Ids
from hopper.ops import StoredRows

Mask = NDArray[np.bool_]
RowKind = Literal["features", "labels"]


class FeatureSource(Protocol):
    """Reads rows by global id. One conformance suite tests every implementation."""

    def gather(self, kind: RowKind, node_type: str, ids: Ids) -> NDArray[Any]:
        """Read the rows of [n] int64 global ids, which may repeat, in their order: [n, dim] in the
        stored dtype. One-dimensional labels have dim 1.

        GraphError: an id or the node type does not exist, or the type has no rows of this kind.
        ServerLost, DeadlineExceeded: a remote row could not be fetched.
        """


class InputRows(FeatureSource, Protocol):
    """Reads rows of the whole graph for models."""

    def stored(self, node_type: str, ids: Ids) -> StoredRows:
        """Return the features of distinct nodes in the order asked for: [n, dim].

        Rows of other servers are fetched now. Local ones are read when they are multiplied, if
        their table fits memory.
        """


class RemoteSource(FeatureSource, Protocol):
    """Reads rows of other servers, from caches or by request. One thread may use it at a time."""

    def fill(self, kind: RowKind, node_type: str, ids: Ids, out: NDArray[Any], places: Ids) -> None:
        """Read the rows of [n] ids into ``out[places]``; errors as of :meth:`FeatureSource.gather`.

        ``out`` [rows, dim] is C-contiguous and of the stored dtype, and undefined after an error.
        Places are distinct.
        """


def distinct(groups: Sequence[Ids]) -> Ids:
    """Return the distinct ids [n] of all groups, ascending."""
    if not groups:
        return np.empty(0, np.int64)
    # np.unique hashes the ids first, which takes five times as long.
    ids = np.sort(np.concatenate(groups))
    is_new = np.ones(ids.size, np.bool_)
    np.not_equal(ids[1:], ids[:-1], out=is_new[1:])
    return ids[is_new]
