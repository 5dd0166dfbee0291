"""LABOR-0 (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023, section 3.2).

Destinations share one variate per source, so they tend to take the same sources. A batch then
reaches fewer nodes than under node-wise sampling with the same fanouts. Whether an edge is drawn
does not depend on the other nodes of the frontier, so draws do not depend on who makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draws.counter import LABOR
from cache_server.draws.spec import SamplingSpec
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Inclusion


class LaborSampler(NeighborSampler):
    """Draws edge (u, v) if the variate of u is below ``fanout / in_degree(v)``.

    A destination gets ``fanouts[l]`` in-neighbors a relation in expectation, and all of them if it
    has no more. It may get none. Parameters and errors are those of :class:`NeighborSampler`.
    """

    def inclusions_at(self, moment: tuple[int, int]) -> Sequence[Inclusion | None]:
        """Return the probabilities per hop; see :meth:`NeighborSampler.inclusions_at`."""
        return [None if fanout == -1 else ByInDegree(fanout) for fanout in self.fanouts]

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> SamplingSpec:
        """Draw by LABOR-0; see :meth:`NeighborSampler.how`."""
        return self.make_spec("labor", LABOR, hop, relation, moment)


@dataclass(frozen=True)
class ByInDegree:
    """The inclusion of LABOR-0: edges into v are drawn with ``min(1, fanout / in_degree(v))``."""

    fanout: int
    equally_likely: bool = True

    def inverse_probability(
        self, block: Block, sources: NDArray[np.int64], destinations: NDArray[np.int64]
    ) -> Tensor:
        """Return [edges] float64: ``max(1, in_degree(v) / fanout)`` for each edge into v."""
        return block.to_edges((block.in_degree().double() / self.fanout).clamp(min=1.0))
