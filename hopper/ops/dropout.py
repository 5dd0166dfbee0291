"""Dropout of a block's rows and edges, with the same masks on any rank (docs/inside/dropout.md)."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from hopper.graph.block import Block, Nodes, TypedBlocks
from hopper.ops.counter_mask import Site, drop, drop_threshold, row_keys, site_key
from hopper.ops.csr import destinations
from hopper.ops.precision import in_full
from hopper.ops.stored_rows import StoredRows


@functools.cache
def node_type_key(node_type: str) -> int:
    """Return a node type's uint64 key: the first 8 bytes, little-endian, of its name's SHA-256."""
    return int.from_bytes(hashlib.sha256(node_type.encode()).digest()[:8], "little")


def drop_rows(nodes: Nodes, rows: Tensor, p: float, layer: int) -> Tensor:
    """Apply dropout to a layer's input rows.

    Parameters
    ----------
    rows: [n, ...], the rows of the nodes.
    p: the probability, in [0, 1); 0 returns the rows themselves.
    layer: the index of the layer that reads them, from 0.

    Raises
    ------
    ConfigError: p is outside [0, 1).
    RequestError: there is not one row per node.
    """
    threshold = drop_threshold(p)
    if threshold == 0:
        return rows
    keys = _keys_of(nodes, layer)
    if isinstance(rows, StoredRows):
        if not rows.is_dropped and len(keys) == len(rows):
            return rows.drop(keys, threshold, nodes.first_column)
        rows = rows.to_tensor()
    return drop(in_full(rows), keys, threshold, nodes.first_column)


def drop_rows_of_types(
    hop: TypedBlocks, types: Sequence[str], rows: Tensor, p: float, layer: int
) -> Tensor:
    """Apply dropout to a layer's input rows of several types, [rows of all types, ...], in the
    order of ``types``; otherwise as :func:`drop_rows`."""
    threshold = drop_threshold(p)
    if threshold == 0:
        return rows
    return drop(in_full(rows), keys_of_types(hop, types, layer), threshold)


def keys_of_types(hop: TypedBlocks, types: Sequence[str], layer: int) -> Tensor:
    """Return the keys [rows of all types] int64 of a layer's input rows, which are made once."""
    nodes = [hop.nodes[name] for name in types if name in hop.nodes]
    key = ("keys of dropout", layer, *(of_type.iteration_key for of_type in nodes[:1]), *types)
    if key not in hop.prepared:
        hop.prepared[key] = torch.cat([_keys_of(of_type, layer) for of_type in nodes])
    return hop.prepared[key]


def _keys_of(nodes: Nodes, layer: int) -> Tensor:
    """Return the keys of a layer's input rows, [n] int64."""
    site = site_key(nodes.iteration_key, layer, Site.ROWS, node_type_key(nodes.node_type))
    return row_keys(site, nodes.original)


def drop_edges(block: Block, x: Tensor, p: float, layer: int) -> Tensor:
    """Apply dropout to values x [edges, ...] per edge and head; otherwise as :func:`drop_rows`."""
    threshold = drop_threshold(p)
    if threshold == 0:
        return x
    key = site_key(block.dst.iteration_key, layer, Site.EDGES, block.relation.draw_key())
    ends = block.dst.original.index_select(0, destinations(block))
    return drop(in_full(x), row_keys(key, ends, block.positions), threshold)


def drop_self(block: Block, x: Tensor, p: float, layer: int) -> Tensor:
    """Apply dropout to destinations' attention to themselves, x [num_dst, ...]; otherwise as
    :func:`drop_rows`."""
    threshold = drop_threshold(p)
    if threshold == 0:
        return x
    key = site_key(block.dst.iteration_key, layer, Site.SELF, block.relation.draw_key())
    return drop(in_full(x), row_keys(key, block.dst.original), threshold)
