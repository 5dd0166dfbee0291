"""Layer-wise sampling after FastGCN (Chen, Ma and Xiao, ICLR 2018, section 3.1).

FastGCN draws the nodes of a layer independently of the frontier, in proportion to the squared
column norms of the normalised adjacency. It draws n nodes with replacement. Here a variate for each
node decides whether it is drawn (Poisson sampling), with the same probabilities, so that a draw
depends on no other node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache_server import source_draw
from cache_server.draw import LAYERS
from cache_server.hop_draw import Drawn
from cache_server.kernel import read_only
from hopper.device_copies import to_device
from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.kernel_threads import threads_for
from hopper.micrograph.sample import NeighborSampler, SamplerOptions


class LayerSampler(NeighborSampler):
    """Takes all in-edges of the frontier whose source is in the layer's sample.

    Source u is in the sample of hop l with probability ``min(1, layer_sizes[l] q(u))``, per
    relation, where q adds up to 1 over the relation's sources. The constructor reads every edge
    once and keeps 4 bytes per source. Parameters and errors not listed are those of
    :class:`NeighborSampler`.

    Parameters
    ----------
    fanouts: the expected size of each hop's sample, first hop first; -1 takes all neighbours.
    """

    size_key: ClassVar[str] = "layer_sizes"

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
        weights = {
            relation: source_draw.column_weights(
                topology.indptr, topology.indices, topology.out_degrees
            )
            for relation, topology in self.topologies.items()
        }
        self._samples = [None if size == -1 else LayerSample(size, weights) for size in fanouts]
        self.inclusions = self._samples

    @classmethod
    def check(cls, *, typed: bool, draws_alone: bool, where: str) -> None:
        """Refuse typed models and partitioned topology; see :meth:`NeighborSampler.check`."""
        if typed:
            raise RequestError(
                "sampler.kind: 'layer' draws one sample of the whole graph per relation, which "
                "models of typed graphs do not take; expected node or labor"
            )
        if not draws_alone:
            raise RequestError(
                f"sampler.kind: 'layer' weighs nodes by all edges, and the topology of {where} is "
                "partitioned; expected node or labor"
            )

    def draw(
        self,
        hop: int,
        relation: Relation,
        destinations: NDArray[np.int64],
        moment: tuple[int, int],
    ) -> Drawn:
        """Take in-edges from sources in the hop's sample; see :meth:`NeighborSampler.draw`."""
        sample = self._samples[hop]
        if sample is None:
            return super().draw(hop, relation, destinations, moment)
        topology = self.topologies[relation]
        key = self.hop_key(LAYERS, moment, hop, relation)
        ids = self.original_ids[relation.src]
        with threads_for(destinations.size):
            bounds, listed = source_draw.neighbour_lists(
                topology.indptr, topology.indices, read_only(destinations)
            )
            flags = source_draw.layer_flags(listed, ids, *sample.thresholds[relation], key)
            return source_draw.take_flagged(bounds, listed, flags)


class Thresholds(NamedTuple):
    """A source of weight w is drawn if w >= certain or its variate < w * factor."""

    weights: NDArray[np.uint32]
    """[sources] uint32 importance of every source"""
    factor: np.uint64
    certain: np.uint64


class LayerSample:
    """The sample of one hop: the probability of each source to be in it.

    Parameters
    ----------
    size: expected number of nodes in the sample if none is certain to be in it; positive.
    weights: per relation, [sources] uint32 importance of every source.
    """

    equally_likely: Final = False

    def __init__(self, size: int, weights: Mapping[Relation, NDArray[np.uint32]]) -> None:
        self.thresholds = {
            relation: make_thresholds(size, importance) for relation, importance in weights.items()
        }

    def inverse_probability(
        self, block: Block, sources: NDArray[np.int64], destinations: NDArray[np.int64]
    ) -> Tensor:
        """Return [edges] float64: one over the probability of each edge's source."""
        weights, factor, certain = self.thresholds[block.relation]
        by_source = source_draw.inverse_probabilities(weights, sources, factor, certain)
        by_row = to_device(by_source, block.device)
        return by_row.index_select(0, block.indices)


def make_thresholds(size: int, weights: NDArray[np.uint32]) -> Thresholds:
    """Make the thresholds that draw each source with probability ``min(1, size * weight / total)``.

    The relative error of a probability below 1 is at most 2**-64 * total / size.
    """
    total = max(1, int(weights.sum(dtype=np.uint64)))
    certain = -(-total // size)
    factor = (size << 64) // total if certain > 1 else 0
    return Thresholds(weights, np.uint64(factor), np.uint64(certain))
