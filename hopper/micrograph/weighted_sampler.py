"""Samplers that draw in proportion to edges' weights, or with replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draw import ARRIVALS, NEIGHBOURS
from cache_server.hop_draw import HopDraw, Method
from cache_server.left_out import NOTHING
from cache_server.weighted_probability import inverse_frequencies, inverse_probabilities
from hopper.device_copies import to_device
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.kernel_threads import threads_for
from hopper.micrograph.sample import NeighborSampler, SamplerOptions
from hopper.micrograph.subgraph import Inclusion


class ReplacementSampler(NeighborSampler):
    """Draws ``fanouts[l]`` in-neighbours a relation at hop l with replacement.

    A destination with any in-neighbours gets that many edges, and an edge that is drawn twice
    counts twice. Parameters and errors are those of :class:`NeighborSampler`.
    """

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> HopDraw:
        """Draw uniformly with replacement; see :meth:`NeighborSampler.how`."""
        return self.make_draw("replacement", NEIGHBOURS, hop, relation, moment)


class WeightedSampler(ReplacementSampler):
    """Draws in-neighbours in proportion to the weights of their edges.

    Relations without weights are drawn uniformly, as by :class:`NeighborSampler` or
    :class:`ReplacementSampler`. Parameters and errors not listed are those of
    :class:`NeighborSampler`.

    Parameters
    ----------
    unbiased: whether a drawn edge counts one over its probability, so that the expectation of a sum
        over drawn edges is the sum over all edges. Otherwise all drawn edges count the same, as in
        DGL and PyG.
    replace: whether draws are with replacement.
    """

    reads_weights: ClassVar[bool] = True

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, NDArray[np.int64]],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        *,
        unbiased: bool = False,
        replace: bool = False,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        self._unbiased, self._replace = unbiased, replace

    @classmethod
    def draws_elsewhere(cls, options: Mapping[str, Any]) -> bool:
        """Return whether servers can draw for ranks.

        They cannot if draws are unbiased: probabilities depend on weights that ranks do not have.
        """
        return super().draws_elsewhere(options) and not options.get("unbiased")

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> HopDraw:
        """Draw by weight where the relation has weights; see :meth:`NeighborSampler.how`."""
        is_weighted = self.topologies[relation].weight_sums is not None
        method: Method = "replacement" if self._replace else "uniform"
        if is_weighted:
            method = "weighted_replacement" if self._replace else "weighted"
        return self.make_draw(method, NEIGHBOURS, hop, relation, moment)

    def inclusions_at(self, moment: tuple[int, int]) -> Sequence[Inclusion | None]:
        """Return the probabilities per hop; see :meth:`NeighborSampler.inclusions_at`."""
        if not self._unbiased:
            return self.inclusions
        return [
            None if fanout == -1 else ByWeight(self, hop, moment)
            for hop, fanout in enumerate(self.fanouts)
        ]

    def inverse_probability(
        self, hop: int, moment: tuple[int, int], block: Block, destinations: NDArray[np.int64]
    ) -> Tensor:
        """Return [edges] float64: one over the probability of each edge of a block.

        For draws with replacement it is one over the expected number of times that an edge is
        drawn.

        Parameters
        ----------
        destinations: [num_dst] int64 global ids.
        """
        # Several names of one relation have the same draws, so any name will do.
        relation = next(
            name for name in self.topologies if self.drawn_as.get(name, name) == block.relation
        )
        topology, fanout = self.topologies[relation], self.fanouts[hop]
        if topology.weight_sums is None:
            by_destination = block.in_degree().double() / block.sampled_degree().clamp(min=1)
            return block.to_edges(by_destination)
        lists = topology.indptr, topology.weight_sums
        drawn = destinations, block.indptr.cpu().numpy(), block.positions.cpu().numpy()
        lacking = (self.lacking(relation, moment) or NOTHING).arrays
        with threads_for(destinations.size):
            if self._replace:
                inverse = inverse_frequencies(*lists, *drawn, fanout, *lacking)
            else:
                originals = self.original_ids[relation.dst]
                assert topology.alias_table is not None
                tables = *lists, topology.alias_table, originals
                draws = self.hop_key(NEIGHBOURS, moment, hop, relation)
                arrivals = self.hop_key(ARRIVALS, moment, hop, relation)
                inverse = inverse_probabilities(*tables, *drawn, fanout, draws, arrivals, *lacking)
        return to_device(inverse, block.device)


@dataclass(frozen=True)
class ByWeight:
    """The inclusion of edges drawn in proportion to their weights, at a hop of an iteration."""

    sampler: WeightedSampler
    hop: int
    moment: tuple[int, int]
    equally_likely: bool = False

    def inverse_probability(
        self, block: Block, sources: NDArray[np.int64], destinations: NDArray[np.int64]
    ) -> Tensor:
        """Return [edges] float64: inverse probabilities from the sampler's weights."""
        return self.sampler.inverse_probability(self.hop, self.moment, block, destinations)
