"""Layer-wise sampling after FastGCN (Chen, Ma and Xiao, ICLR 2018, section 3.1).

FastGCN draws the nodes of a layer independently of the frontier, in proportion to the squared
column norms of the normalised adjacency. It draws n nodes with replacement. Here a variate for each
node decides whether it is drawn (Poisson sampling), with the same probabilities, so that a draw
depends on no other node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Unpack

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draws.counter import LAYERS, node_key, variate
from cache_server.draws.kernels import list_neighbors, take_flagged
from cache_server.draws.spec import DrawKey, Drawn
from cache_server.kernel import kernel, read_only
from hopper.device.copies import to_device
from hopper.device.kernel_threads import threads_for
from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology
from hopper.micrograph.sample import NeighborSampler, SamplerOptions


class LayerSampler(NeighborSampler):
    """Takes all in-edges of the frontier whose source is in the layer's sample.

    Source u is in the sample of hop l with probability ``min(1, layer_sizes[l] q(u))``, per
    relation, where q adds up to 1 over the relation's sources. The constructor reads every edge
    once and keeps 4 bytes per source. Parameters and errors not listed are those of
    :class:`NeighborSampler`.

    Parameters
    ----------
    fanouts: the expected size of each hop's sample, first hop first; -1 takes all neighbors.
    """

    size_key: ClassVar[str] = "layer_sizes"

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, Ids],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        weights = {
            relation: column_weights(topology.indptr, topology.indices, topology.out_degrees)
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
        self, hop: int, relation: Relation, destinations: Ids, moment: tuple[int, int]
    ) -> Drawn:
        """Take in-edges from sources in the hop's sample; see :meth:`NeighborSampler.draw`."""
        sample = self._samples[hop]
        if sample is None:
            return super().draw(hop, relation, destinations, moment)
        topology = self.topologies[relation]
        key = self.hop_key(LAYERS, moment, hop, relation)
        ids = self.whole_ids(relation.src)
        with threads_for(destinations.size):
            bounds, listed = list_neighbors(
                topology.indptr, topology.indices, read_only(destinations)
            )
            flags = _flag_layer(listed, ids, *sample.thresholds[relation], key)
            return take_flagged(bounds, listed, flags)


class Thresholds(NamedTuple):
    """A source of weight w is drawn if w >= certain or its variate < w * factor."""

    weights: NDArray[np.uint32]
    """[sources] uint32 importance of every source"""
    factor: np.uint64
    certain: np.uint64


class LayerSample:
    """The sample of one hop: the probability of each source to be in it.

    Its expected size, which is positive, is that of a sample of which no node is certain. The
    weights are per relation [sources] uint32, the importance of every source.
    """

    equally_likely: Final = False

    def __init__(self, size: int, weights: Mapping[Relation, NDArray[np.uint32]]) -> None:
        self.thresholds = {
            relation: make_thresholds(size, importance) for relation, importance in weights.items()
        }

    def inverse_probability(self, block: Block, sources: Ids, destinations: Ids) -> Tensor:
        """Return [edges] float64: one over the probability of each edge's source."""
        weights, factor, certain = self.thresholds[block.relation]
        by_source = inverse_probabilities(weights, sources, factor, certain)
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


@kernel(parallel=True)
def _flag_layer(
    listed: Ids,
    original_ids: Ids,
    weights: NDArray[np.uint32],
    factor: np.uint64,
    certain: np.uint64,
    key: DrawKey,
) -> NDArray[np.bool_]:
    """Return [listed] bool: whether each source of the neighbor lists is in the layer's sample."""
    now, later, dependence, elapsed = key
    flags = np.empty(listed.size, np.bool_)
    for j in numba.prange(listed.size):
        weight = np.uint64(weights[listed[j]])
        of_source = node_key(now, later, dependence, elapsed, original_ids[listed[j]])
        flags[j] = (weight >= certain) | (variate(of_source, np.uint64(0)) < weight * factor)
    return flags


@kernel
def column_weights(indptr: Ids, indices: Ids, out_degrees: Ids) -> NDArray[np.uint32]:
    """Return [sources] uint32: squared column norms of the normalised adjacency, in fixed point.

    They are 0 for a source without out-edges and at least 1 for any other.
    """
    sums = np.zeros(out_degrees.size, np.uint64)
    for destination in range(indptr.size - 1):
        degree = np.uint64(indptr[destination + 1] - indptr[destination])
        share = np.uint64(1 << 32) // (degree + np.uint64(1))
        for edge in range(indptr[destination], indptr[destination + 1]):
            sums[indices[edge]] += share
    weights = np.zeros(out_degrees.size, np.uint32)
    for node in range(out_degrees.size):
        if out_degrees[node] > 0:
            weight = sums[node] // (np.uint64(out_degrees[node]) + np.uint64(1))
            weights[node] = max(weight, np.uint64(1))
    return weights


def inverse_probabilities(
    weights: NDArray[np.uint32], nodes: Ids, factor: np.uint64, certain: np.uint64
) -> NDArray[np.float64]:
    """Return [n] float64: one over the probability of each node; 1 for nodes of weight 0."""
    node_weights = weights[nodes].astype(np.uint64)
    is_drawn = (node_weights > 0) & (node_weights < certain)
    products = np.where(is_drawn, node_weights * factor, 1).astype(np.float64)
    return np.where(is_drawn, 2.0**64 / products, 1.0)
