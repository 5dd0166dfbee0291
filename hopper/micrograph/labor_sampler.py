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
from cache_server.hop_draw import HopDraw
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
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

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> HopDraw:
        """See :class:`NeighborSampler`."""
        return self.drawn_by("labor", LABOR, hop, relation, moment)


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
