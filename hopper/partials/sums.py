"""Edges that other ranks add up: taking them out of a hop, and the requests for their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.graph.block import Edges
from hopper.graph.schema import Relation
from hopper.partials.fold import Folded, fold_edges
from hopper.partials.frontiers import Ids
from hopper.partials.hop import Hop
from hopper.partials.plan import Weighted

Words = NDArray[np.int32]


@dataclass(frozen=True)
class Folding:
    """A relation's edges after other ranks' part of them has been taken out.

    Attributes
    ----------
    left: the edges that stay, and those that other ranks add up.
    sums, edges: [ranks + 1], where each rank's sums and edges begin.
    inline: how many sums are among the sources of the edges that stay.
    """

    left: Folded
    sums: Ids
    edges: Ids
    inline: int

    def encode_for(self, rank: int) -> tuple[Words, Words]:
        """Encode the request that tells a rank which edges to add up.

        Returns
        -------
        ends: the number of edges of each sum or, if that is no shorter, the sum of each edge.
        edges: the edges' sources, followed by their weights.
        """
        sums, edges = (slice(bounds[rank], bounds[rank + 1]) for bounds in (self.sums, self.edges))
        ends, sources = self.left.sizes[sums], self.left.sources[edges]
        if ends.size >= sources.size:
            ends = self.left.numbers[edges] - np.int32(sums.start)
        weights = self.left.sum_weights[edges]
        return ends, np.concatenate((sources.view(np.int32), weights.view(np.int32)))


def fold_relation(hop: Hop, relation: Relation, weights: NDArray[Any]) -> Folding:
    """Take the edges that other ranks add up out of a relation.

    The columns of the edges that stay count the sources of the relation's type first, then sums.

    Parameters
    ----------
    weights: [edges], the weights of messages.
    """
    name, folded = relation.dst, hop.folded[relation.dst]
    edges, sums = (np.where(folded, count, 0) for count in (hop.edges[relation], hop.sums[name]))
    # Sums are over all relations into a type; one of these has them among its sources.
    inline = int(sums.sum()) if not hop.wires.merged and relation == hop.into(name)[0] else 0
    offsets, sources, _ = hop.drawn[relation]
    left = fold_edges(
        offsets,
        hop.places(relation),
        sources,
        hop.owners(relation),
        weights,
        folded,
        hop.numbers[name],
        edges,
        hop.sources[relation.src].versions.size if inline else -1,
        int(sums.sum()),
        np.empty(int(edges.sum()), hop.version_dtype),
    )
    return Folding(Folded(*left), bounds_of(sums), bounds_of(edges), inline)


@dataclass(frozen=True)
class AskedSums:
    """The partial sums, for destinations of one type, that other ranks ask this rank for.

    Attributes
    ----------
    lengths: by rank, the number of sums.
    sizes: by relation, [sums], the number of edges of each sum.
    sources: by relation, [edges], the versions of the edges' sources.
    weights: by relation, [edges], the factors of their messages.
    """

    lengths: list[int]
    sizes: Mapping[Relation, NDArray[Any]]
    sources: Mapping[Relation, NDArray[Any]]
    weights: Mapping[Relation, NDArray[Any]]

    @classmethod
    def read(
        cls,
        requests: Mapping[Relation, Sequence[tuple[Words, Words]]],
        number: np.dtype[Any],
        version: np.dtype[Any],
    ) -> AskedSums:
        """Decode the requests of all ranks.

        Parameters
        ----------
        requests: by relation into the type, the arrays that each rank made with
            :meth:`Folding.encode_for`.
        number: dtype of weights.
        version: dtype of sources.
        """
        source_words = version.itemsize // 4
        edge_words = source_words + number.itemsize // 4
        lengths: list[int] = []
        for rank_requests in zip(*requests.values(), strict=True):
            # Every sum has an edge of some relation, so the largest count is the number of sums.
            counts_seen = (_count(ends, edges.size // edge_words) for ends, edges in rank_requests)
            lengths.append(max(counts_seen))
        sizes, sources, weights = {}, {}, {}
        for relation, parts in requests.items():
            counts = [edges.size // edge_words for _, edges in parts]
            if any(counts):
                all_sizes = [
                    ends if ends.size < count else np.bincount(ends, minlength=total)
                    for (ends, _), count, total in zip(parts, counts, lengths, strict=True)
                ]
                sizes[relation] = np.concatenate(all_sizes)
                pairs = [
                    (source_words * count, edges)
                    for count, (_, edges) in zip(counts, parts, strict=True)
                ]
                words = np.concatenate([edges[:cut] for cut, edges in pairs])
                sources[relation] = words.view(version)
                words = np.concatenate([edges[cut:] for cut, edges in pairs])
                weights[relation] = words.view(number)
        return cls(lengths, sizes, sources, weights)

    def pattern(self, relation: Relation, rows: Ids, num_src: int) -> Weighted:
        """Return the edges from a relation's sources to its sums, with their weights.

        Parameters
        ----------
        rows: [edges], the own row of each of ``sources``.
        num_src: number of own rows.
        """
        edges = Edges.from_arrays(bounds_of(self.sizes[relation]), rows, num_src)
        return edges, torch.from_numpy(self.weights[relation])


def bounds_of(sizes: NDArray[np.integer[Any]]) -> Ids:
    """Return [n + 1] int64: where each of n consecutive stretches begins, and where the last one
    ends."""
    bounds = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _count(ends: Words, edges: int) -> int:
    """Return how many sums one relation's part of a request mentions."""
    return int(ends.size if ends.size < edges else ends.max(initial=-1) + 1)
