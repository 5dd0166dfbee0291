"""Choice of the nodes of other ranks that a rank computes itself.

It computes a node's row where that takes less time than to fetch it (NeutronStar: Wang et al.,
SIGMOD 2022, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.topology import Topology

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Costs:
    """Seconds that pieces of work take, forward and backward.

    Attributes
    ----------
    project: for the first layer's own work on one input row.
    destination: by hop, for one destination of its layer.
    edge: by hop, for one edge of its layer.
    fetch: by hop, for one row that its layer reads of another rank.
    """

    project: float
    destination: tuple[float, ...]
    edge: tuple[float, ...]
    fetch: tuple[float, ...]


def choose_kept(topology: Topology, owned: Mask, costs: Costs) -> list[Mask]:
    """Choose the nodes of other ranks whose rows a rank computes itself, for full batches.

    The cost of a row is that of its edges in every layer below, plus the rows that only these edges
    read on this rank. Each of those is computed or fetched, whichever takes less. A row that
    several such nodes need is counted for each of them, so the choice errs towards fetching.

    Parameters
    ----------
    topology: in-edges of all nodes.
    owned: [nodes], whether the rank owns a node.

    Returns
    -------
    By hop, [nodes]: whether the rank computes the node's row where the hop's layer reads it.
    """
    indptr, indices = np.asarray(topology.indptr), np.asarray(topology.indices)
    degrees, hops = np.diff(indptr), len(costs.fetch)
    near = owned.copy()
    _mark_sources(indptr, indices, np.flatnonzero(owned), near)
    masks: list[Mask] = []
    # Start at the deepest hop, whose sources are input rows: there a row costs its projection.
    compute = np.full(owned.size, costs.project)
    for hop in reversed(range(hops)):
        masks.insert(0, ~owned & (compute <= costs.fetch[hop]))
        cheapest = np.where(near, 0.0, np.minimum(compute, costs.fetch[hop]))
        sources = _sum_over_sources(indptr, indices, cheapest)
        compute = compute + costs.destination[hop] + degrees * costs.edge[hop] + sources
    # A node that is computed for one layer is computed for all layers below it.
    for hop in range(1, hops):
        masks[hop] |= masks[hop - 1]
    return masks


def keep_all_or_none(owned: Mask, hops: int, *, keep: bool) -> list[Mask]:
    """Keep all nodes of other ranks, or none of them, at any cost.

    The result has the form of :func:`choose_kept`'s.
    """
    return [~owned if keep else np.zeros_like(owned)] * hops


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
