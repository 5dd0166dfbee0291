"""Rows of nodes before or after a layer, and their exchange between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.inference.layer_shares import Ids, Share
from hopper.partials import KindsExchange, RowKind, source_type
from hopper.partition.id_index import Index
from hopper.run_log import RunLog


@dataclass(frozen=True)
class NodeRows:
    """Rows of nodes, in memory or in a mapped file.

    Attributes
    ----------
    ids: [n] int64 global ids.
    values: [n, ...] their rows.
    device: the device of computation, which rows are copied to.
    """

    ids: Ids
    values: Tensor
    device: torch.device

    def of(self, ids: Ids) -> Tensor:
        """Return the rows of some nodes on the device: [m, ...]."""
        places = torch.from_numpy(self._index.find(ids))
        return self.values.index_select(0, places.to(self.values.device)).to(self.device)

    @cached_property
    def _index(self) -> Index:
        return Index(self.ids)


def exchange_rows(
    cluster: Cluster,
    dtype: torch.dtype,
    share: Share,
    rows: Mapping[RowKind, NodeRows],
    most: int,
) -> None:
    """Fill the room after this rank's rows with other ranks' rows; collective.

    The exchange takes rounds of bounded size.

    Parameters
    ----------
    dtype: dtype of the rows.
    rows: by kind, the rows of ``share.known``, with room for those of ``share.wanted``.
    most: the most rows of a kind that a rank sends another in one round.
    """
    types = {kind: source_type(kind) for kind in rows}
    rows_here = {
        kind: NodeRows(
            share.known[name], rows[kind].values[: share.known[name].size], cluster.device
        )
        for kind, name in types.items()
    }
    for first in range(0, share.longest, most):
        piece = slice(first, first + most)
        asked = [[ids[piece] for ids in share.asked[name]] for name in types.values()]
        exchange = KindsExchange(
            cluster,
            RunLog(None),
            {
                kind: rows_here[kind].of(np.concatenate(ids))
                for kind, ids in zip(types, asked, strict=True)
            },
            [[ids.size for ids in parts] for parts in asked],
            [[ids[piece].size for ids in share.wanted[name]] for name in types.values()],
            dtype,
            "exchanging rows for evaluation",
        )
        for kind, parts in exchange.finish().items():
            values, offset = rows[kind].values, share.known[types[kind]].size
            for ids, part in zip(share.wanted[types[kind]], parts, strict=True):
                start = offset + min(first, ids.size)
                values[start : start + len(part)] = part.to(values.device)
                offset += ids.size
