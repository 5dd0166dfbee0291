"""Edges that other ranks add up: how they are taken out of a hop, told, and understood."""

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
    """A relation's edges once others add some of them up.

    left: those that stay, and those that others add up. sums, edges: [ranks + 1], where each rank's
    begin. inline: how many sums are among the sources of the edges that stay.
    """

    left: Folded
    sums: Ids
    edges: Ids
    inline: int

    def told(self, rank: int) -> tuple[Words, Words]:
        """What a rank adds up: the sizes of its sums or, where these are no longer, the sum that
        each edge is part of; and its edges' sources and, behind them, weights."""
        sums, edges = (slice(each[rank], each[rank + 1]) for each in (self.sums, self.edges))
        ends, sources = self.left.sizes[sums], self.left.sources[edges]
        if ends.size >= sources.size:
            ends = self.left.numbers[edges] - np.int32(sums.start)
        weights = self.left.sum_weights[edges]
        return ends, np.concatenate((sources.view(np.int32), weights.view(np.int32)))


def fold_relation(hop: Hop, relation: Relation, weights: NDArray[Any]) -> Folding:
    """Take what others add up out of a relation's edges. Columns of those that are left are places
    among the sources of its type and, behind these, sums.

    Parameters
    ----------
    weights: [edges].
    """
    name, folded = relation.dst, hop.folded[relation.dst]
    edges, sums = (np.where(folded, each, 0) for each in (hop.edges[relation], hop.sums[name]))
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
        hop.found[relation.src].versions.size if inline else -1,
        int(sums.sum()),
        np.empty(int(edges.sum()), hop.version_dtype),
    )
    return Folding(Folded(*left), bounds_of(sums), bounds_of(edges), inline)


@dataclass(frozen=True)
class AskedSums:
    """The partial sums for destinations of a type that others want of this rank.

    lengths: by rank, how many. sizes: by relation, [sums], the edges of each. sources, weights: by
    relation, [n], of these edges: versions, and what they are multiplied with.
    """

    lengths: list[int]
    sizes: Mapping[Relation, NDArray[Any]]
    sources: Mapping[Relation, NDArray[Any]]
    weights: Mapping[Relation, NDArray[Any]]

    @classmethod
    def read(
        cls,
        told: Mapping[Relation, Sequence[tuple[Words, Words]]],
        number: np.dtype[Any],
        version: np.dtype[Any],
    ) -> AskedSums:
        """From what every rank has told of each relation into the type: :meth:`Folding.told`.

        Parameters
        ----------
        number, version: dtypes of weights and of sources.
        """
        of_source = version.itemsize // 4
        words = of_source + number.itemsize // 4
        lengths: list[int] = []
        for of_rank in zip(*told.values(), strict=True):
            # Every sum has an edge of some relation.
            most = (_count(ends, edges.size // words) for ends, edges in of_rank)
            lengths.append(max(most))
        sizes, sources, weights = {}, {}, {}
        for each, parts in told.items():
            counts = [edges.size // words for _, edges in parts]
            if any(counts):
                all_sizes = [
                    ends if ends.size < count else np.bincount(ends, minlength=total)
                    for (ends, _), count, total in zip(parts, counts, lengths, strict=True)
                ]
                sizes[each] = np.concatenate(all_sizes)
                pairs = [
                    (of_source * count, edges)
                    for count, (_, edges) in zip(counts, parts, strict=True)
                ]
                own = np.concatenate([edges[:cut] for cut, edges in pairs])
                sources[each] = own.view(version)
                own = np.concatenate([edges[cut:] for cut, edges in pairs])
                weights[each] = own.view(number)
        return cls(lengths, sizes, sources, weights)

    def block(self, relation: Relation, rows: Ids, num_src: int) -> Weighted:
        """A relation's part of the sums, as a pattern over own rows.

        Parameters
        ----------
        rows: [n], of ``sources``.
        """
        edges = Edges.from_arrays(bounds_of(self.sizes[relation]), rows, num_src)
        return edges, torch.from_numpy(self.weights[relation])


def bounds_of(sizes: NDArray[np.integer[Any]]) -> Ids:
    """[n + 1] int64: where each of several stretches, side by side, begins, and the end."""
    found = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def _count(ends: Words, edges: int) -> int:
    """How many sums some edges are seen to be part of."""
    return int(ends.size if ends.size < edges else ends.max(initial=-1) + 1)
