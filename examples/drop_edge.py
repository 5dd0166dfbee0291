"""A user-defined sampler that drops sampled edges at random (DropEdge: Rong, Huang, Xu and Huang,
ICLR 2020, section 4.1).

Whether an edge stays is a function of (seed, epoch, iteration, hop, relation, destination, position
in its neighbour list), so all ranks agree on it and every engine trains the same graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Unpack

import numba
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cache_server.draws.counter import variate
from cache_server.draws.spec import Drawn
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.frontier_kernels import keep_edges
from hopper.micrograph.sample import NeighborSampler, SamplerOptions

_DROP_EDGE = 1001
"""The first word of the keys, which says what is drawn."""


class DropEdge(NeighborSampler):
    """Draws like :class:`NeighborSampler`, and keeps each edge with probability ``keep``."""

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, NDArray[np.int64]],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        keep: Annotated[float, Field(gt=0, le=1)] = 0.8,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        self.keep = keep

    def draw(
        self,
        hop: int,
        relation: Relation,
        destinations: NDArray[np.int64],
        moment: tuple[int, int],
    ) -> Drawn:
        """Draw the in-edges of some destinations, and drop some of them."""
        offsets, sources, positions = super().draw(hop, relation, destinations, moment)
        originals = self.original_ids[relation.dst][destinations]
        keys = self.node_keys(_DROP_EDGE, moment, hop, relation, originals)
        most = np.uint64(min(self.keep * 2.0**64, 2.0**64 - 1))
        flags = _flag_kept(offsets, positions, keys, most)
        return keep_edges((offsets, sources, positions), flags)


@numba.njit(nogil=True)
def _flag_kept(
    offsets: NDArray[np.int64],
    positions: NDArray[np.int64],
    keys: NDArray[np.uint64],
    most: np.uint64,
) -> NDArray[np.bool_]:
    flags = np.empty(positions.size, np.bool_)
    for row in range(keys.size):
        for edge in range(offsets[row], offsets[row + 1]):
            flags[edge] = variate(keys[row], np.uint64(positions[edge])) <= most
    return flags
