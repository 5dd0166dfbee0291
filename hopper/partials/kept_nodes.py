"""Nodes of other ranks that a rank computes itself, where that takes less time than fetching their
rows (NeutronStar: Wang et al., SIGMOD 2022, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.topology import Topology

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Costs:
    """Seconds, forward and backward.

    Attributes
    ----------
    project: of what the first layer makes of an input row by itself.
    destination, edge: by hop, of a destination of its layer, and of an edge.
    fetch: by hop, of a row that its layer reads of another rank.
    """

    project: float
    destination: tuple[float, ...]
    edge: tuple[float, ...]
    fetch: tuple[float, ...]


def choose_kept(topology: Topology, own: Mask, costs: Costs) -> list[Mask]:
    """By hop, [nodes]: whose rows a rank computes itself where its layers read them, of the nodes
    that other ranks own; of full batches, in which all neighbours are read.

    To compute a node's row takes its edges in every layer below, and what these read and nothing
    else does here: which the rank would compute or fetch, whichever takes less. What neighbours of
    several such nodes share is counted for each of them, so some are fetched that could be kept.

    Parameters
    ----------
    own: [nodes], those that the rank owns.
    """
    indptr, indices = np.asarray(topology.indptr), np.asarray(topology.indices)
    degrees, hops = np.diff(indptr), len(costs.fetch)
    near = own.copy()
    _mark_sources(indptr, indices, np.flatnonzero(own), near)
    found: list[Mask] = []
    # From the deepest hop, whose sources are input rows: what it takes to have a row there.
    below = np.full(own.size, costs.project)
    for hop in reversed(range(hops)):
        found.insert(0, ~own & (below <= costs.fetch[hop]))
        least = np.where(near, 0.0, np.minimum(below, costs.fetch[hop]))
        more = _sum_over_sources(indptr, indices, least)
        below = below + costs.destination[hop] + degrees * costs.edge[hop] + more
    # What is computed for one layer is computed for all below.
    for hop in range(1, hops):
        found[hop] |= found[hop - 1]
    return found


def keep_all_or_none(own: Mask, hops: int, *, keep: bool) -> list[Mask]:
    """:func:`choose_kept`, whatever it takes."""
    return [~own if keep else np.zeros_like(own)] * hops


@kernel
def _mark_sources(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], nodes: NDArray[np.int64], reached: Mask
) -> None:
    for node in nodes:
        for edge in range(indptr[node], indptr[node + 1]):
            reached[indices[edge]] = True


@kernel
def _sum_over_sources(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    out = np.zeros(indptr.size - 1)
    for node in range(out.size):
        for edge in range(indptr[node], indptr[node + 1]):
            out[node] += values[indices[edge]]
    return out
