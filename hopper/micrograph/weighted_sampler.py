"""Samplers that draw in proportion to edges' weights, or with replacement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draws.counter import NEIGHBORS
from cache_server.draws.kernels import find_range, units_at
from cache_server.draws.spec import ExcludedEdges, Method, SamplingSpec
from cache_server.kernel import kernel, read_only
from hopper.device.copies import to_device
from hopper.device.kernel_threads import threads_for
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology
from hopper.micrograph.sample import NeighborSampler, SamplerOptions
from hopper.micrograph.subgraph import Inclusion


class ReplacementSampler(NeighborSampler):
    """Draws ``fanouts[l]`` in-neighbors a relation at hop l with replacement.

    A destination with any in-neighbors gets that many edges, and an edge that is drawn twice
    counts twice. Parameters and errors are those of :class:`NeighborSampler`.
    """

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> SamplingSpec:
        """Draw uniformly with replacement; see :meth:`NeighborSampler.how`."""
        return self.make_spec("replacement", NEIGHBORS, hop, relation, moment)


class WeightedSampler(ReplacementSampler):
    """Draws in-neighbors in proportion to the weights of their edges.

    Relations without weights are drawn uniformly, as by :class:`NeighborSampler` or
    :class:`ReplacementSampler`. Parameters and errors not listed are those of
    :class:`NeighborSampler`.

    Parameters
    ----------
    unbiased: whether drawn edges count so that the expectation of a sum over them is the sum over
        all edges. Otherwise all drawn edges count the same, as in DGL and PyG.
    replace: whether draws are with replacement.
    """

    reads_weights: ClassVar[bool] = True

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, Ids],
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

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> SamplingSpec:
        """Draw by weight where the relation has weights; see :meth:`NeighborSampler.how`."""
        is_weighted = self.topologies[relation].cumulative_weights is not None
        method: Method = "replacement" if self._replace else "uniform"
        if is_weighted:
            method = "weighted_replacement" if self._replace else "weighted"
        return self.make_spec(method, NEIGHBORS, hop, relation, moment)

    def inclusions_at(self, moment: tuple[int, int]) -> Sequence[Inclusion | None]:
        """Return the probabilities per hop; see :meth:`NeighborSampler.inclusions_at`."""
        if not self._unbiased:
            return self.inclusions
        return [
            None if fanout == -1 else ByWeight(self, fanout, self._replace, moment)
            for fanout in self.fanouts
        ]


@dataclass(frozen=True)
class ByWeight:
    """The inclusion of edges drawn in proportion to their weights, in an iteration."""

    sampler: NeighborSampler
    fanout: int
    replace: bool
    moment: tuple[int, int]
    equally_likely: bool = False

    def inverse_probability(self, block: Block, sources: Ids, destinations: Ids) -> Tensor:
        """Return [edges] float64: how often each edge of a block counts.

        The edges of a destination must be all that were drawn, in the order of the draws.
        """
        sampler = self.sampler
        # Several names of one relation have the same draws, so any name will do.
        relation = next(
            name for name in sampler.topologies if sampler.names.relation(name) == block.relation
        )
        topology = sampler.topologies[relation]
        if topology.cumulative_weights is None:
            by_destination = block.in_degree().double() / block.sampled_degree().clamp(min=1)
            return block.to_edges(by_destination)
        excluded = sampler.excluded(relation, self.moment)
        skipped = excluded._replace(nodes=topology.rows(excluded.nodes))
        with threads_for(destinations.size):
            inverse = weigh_drawn(
                read_only(topology.indptr),
                read_only(topology.cumulative_weights),
                read_only(topology.rows(destinations)),
                read_only(block.indptr.cpu().numpy()),
                read_only(block.positions.cpu().numpy()),
                self.fanout,
                self.replace,
                ExcludedEdges(*map(read_only, skipped)),
            )
        return to_device(inverse, block.device)


@kernel(parallel=True)
def weigh_drawn(
    indptr: Ids,
    sums: NDArray[np.int32],
    rows: Ids,
    offsets: Ids,
    positions: Ids,
    fanout: int,
    replace: bool,
    excluded: ExcludedEdges,
) -> NDArray[np.float64]:
    """Return [edges] float64: how often drawn edges count, so that sums over them are unbiased.

    The i-th of f draws takes an edge of w units from L that are left. With replacement an edge
    counts L / (w f) times (Hansen and Hurwitz, Annals of Mathematical Statistics 14(4), 1943).
    Without, sum(earlier edges) + L / w * (this edge) is an unbiased estimate for each i, and the
    mean of these f estimates is taken (Des Raj, Journal of the American Statistical Association
    51(274), 1956).

    Parameters
    ----------
    indptr, sums: bounds of the lists, and running sums of weights within them.
    rows: [n] of the destinations' lists.
    offsets, positions: [n + 1] and [edges], all that was drawn from these lists, in that order.
    excluded: with rows for nodes.
    """
    skipped_rows, bounds, places, _, _ = excluded
    counts = np.ones(positions.size, np.float64)
    if not positions.size:
        return counts
    firsts, degrees = np.empty(rows.size, np.int64), np.empty(rows.size, np.int64)
    totals = np.empty(rows.size, np.int64)
    # These loads wait for nothing, so that many run at once; branches on them would wait.
    for i in numba.prange(rows.size):
        firsts[i] = indptr[rows[i]]
        degrees[i] = indptr[rows[i] + 1] - firsts[i]
    for i in numba.prange(rows.size):
        totals[i] = sums[max(firsts[i] + degrees[i] - 1, 0)]
    for i in numba.prange(rows.size):
        first, start, stop = firsts[i], offsets[i], offsets[i + 1]
        begin, end = find_range(rows[i], skipped_rows, bounds)
        if start == stop or (degrees[i] - (end - begin) <= fanout and not replace):
            continue
        left = totals[i]
        for k in range(begin, end):
            left -= units_at(sums, first, places[k])
        for j in range(start, stop):
            units = units_at(sums, first, positions[j])
            counts[j] = np.float64(left) / np.float64(units)
            if not replace:
                counts[j] += stop - j - 1
                left -= units
            counts[j] /= fanout
    return counts
