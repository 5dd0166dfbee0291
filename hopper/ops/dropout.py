"""Dropout for the rows and edges of a block, placement-invariant (docs/dropout.md)."""

from __future__ import annotations

import functools
import hashlib

from torch import Tensor

from hopper.graph.block import Block
from hopper.ops.counter_mask import Site, drop, drop_threshold, edge_keys, row_keys, site_key
from hopper.ops.csr import destinations
from hopper.ops.precision import in_full


@functools.cache
def node_type_key(node_type: str) -> int:
    """The uint64 key of a node type: the first 8 bytes, little-endian, of its name's SHA-256."""
    return int.from_bytes(hashlib.sha256(node_type.encode()).digest()[:8], "little")


def drop_rows(block: Block, h_src: Tensor, p: float, layer: int) -> Tensor:
    """Dropout on a layer's input rows.

    Parameters
    ----------
    h_src: [num_src, ...], rows of the block's sources.
    p: probability in [0, 1); 0 returns h_src itself.
    layer: index of the layer, first layer 0.

    Raises
    ------
    ConfigError
        p is outside [0, 1).
    RequestError
        h_src does not have one row per source.
    """
    threshold = drop_threshold(p)
    if threshold == 0:
        return h_src
    key = site_key(block.iteration_key, layer, Site.ROWS, node_type_key(block.relation.src))
    return drop(in_full(h_src), row_keys(key, block.src_original), threshold)


def drop_destinations(block: Block, h_dst: Tensor, p: float, layer: int) -> Tensor:
    """Dropout on rows of the destinations, h_dst [num_dst, ...], as a next layer would drop them.

    ``layer`` is the index of what reads the rows: the masks are those of :func:`drop_rows` in a
    block whose sources these destinations are. Otherwise as :func:`drop_rows`.
    """
    threshold = drop_threshold(p)
    if threshold == 0:
        return h_dst
    key = site_key(block.iteration_key, layer, Site.ROWS, node_type_key(block.relation.dst))
    return drop(in_full(h_dst), row_keys(key, block.dst_original), threshold)


def drop_edges(block: Block, x: Tensor, p: float, layer: int) -> Tensor:
    """Dropout on values per edge and head, x [edges, ...]; otherwise as :func:`drop_rows`."""
    threshold = drop_threshold(p)
    if threshold == 0:
        return x
    key = site_key(block.iteration_key, layer, Site.EDGES, block.relation.draw_key())
    ends = block.dst_original.index_select(0, destinations(block))
    return drop(in_full(x), edge_keys(key, ends, block.positions), threshold)


def drop_self(block: Block, x: Tensor, p: float, layer: int) -> Tensor:
    """Dropout on a destination's own attention, x [num_dst, ...]; otherwise as drop_rows."""
    threshold = drop_threshold(p)
    if threshold == 0:
        return x
    key = site_key(block.iteration_key, layer, Site.SELF, block.relation.draw_key())
    return drop(in_full(x), row_keys(key, block.dst_original), threshold)
