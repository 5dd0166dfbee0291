"""LABOR-0 (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023, section 3.2).

Destinations share one variate per source, so they tend to take the same sources: a batch reaches
fewer nodes than under node-wise sampling with the same fanouts. A source is taken or not whatever
else is in the frontier, which is what placement invariance needs (design.md, invariant 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draw import LABOR
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.kernel_threads import threads_for
from hopper.micrograph import source_draw
from hopper.micrograph.frontier import Drawn
from hopper.micrograph.sample import NeighborSampler, SamplerOptions


class LaborSampler(NeighborSampler):
    """Takes edge (u, v) where the variate of u lies below ``fanout / in_degree(v)``.

    A destination has ``fanouts[l]`` sampled in-neighbours a relation in expectation, all of them
    where it has no more; it may have none. Parameters and errors as :class:`NeighborSampler`.
    """

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, NDArray[np.int64]],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        self.inclusions = [None if fanout == -1 else ByInDegree(fanout) for fanout in fanouts]

    def draw(
        self,
        hop: int,
        relation: Relation,
        destinations: NDArray[np.int64],
        moment: tuple[int, int],
    ) -> Drawn:
        """See :class:`NeighborSampler`."""
        fanout = self.fanouts[hop]
        if fanout == -1:
            return super().draw(hop, relation, destinations, moment)
        topology = self.topologies[relation]
        key = self.hop_key(LABOR, moment, hop, relation)
        ids = self.original_ids[relation.src]
        with threads_for(destinations.size):
            bounds, listed = source_draw.neighbour_lists(
                topology.indptr, topology.indices, destinations
            )
            flags = source_draw.labor_flags(bounds, listed, ids, fanout, key)
            return source_draw.take_flagged(bounds, listed, flags)


@dataclass(frozen=True)
class ByInDegree:
    """Edges into v are drawn with probability ``min(1, fanout / in_degree(v))``."""

    fanout: int
    equally_likely: bool = True

    def inverse_probability(
        self, block: Block, sources: NDArray[np.int64], destinations: NDArray[np.int64]
    ) -> Tensor:
        """See :class:`hopper.micrograph.subgraph.Inclusion`."""
        by_destination = (block.in_degree().to(torch.float64) / self.fanout).clamp(min=1.0)
        return by_destination.repeat_interleave(
            block.edges_per_destination(), output_size=block.num_edges
        )
