"""What a rank asks of the others for one hop: rows, or partial sums where these are fewer bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.graph.block import Edges
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.frontiers import RowTable
from hopper.micrograph.subgraph import HopEdges
from hopper.partials.transfer import LayerTransfer, RowKind, Sums, source_type

Words = NDArray[np.int32]
"""Requests on the network."""
Ranks = NDArray[np.bool_]
Weighted = tuple[Edges, Tensor]
"""The edges of sums, and their weights, [edges]."""
_NUMBER_BYTES: Final = 4
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True)
class Sources:
    """The distinct sources of edges, ordered by owner."""

    places: Ids
    """[edges], the index of each edge's source in ``versions``"""
    versions: Ids
    """[sources]"""
    bounds: Ids
    """[ranks + 1], where each owner's part of ``versions`` begins and ends"""
    owners: NDArray[np.int16]
    """[edges], the rank that owns each edge's source"""

    def part(self, rank: int) -> slice:
        """Return the part of ``versions`` that a rank owns."""
        return slice(self.bounds[rank], self.bounds[rank + 1])


def sort_sources(
    sources: Ids, table: RowTable, world: int, owners_of: Callable[[Ids], NDArray[np.int16]]
) -> Sources:
    """Find the distinct sources of edges, [edges] int64 versions, and order them by owner. The
    type's table is empty before and after."""
    rows, distinct = table.discover(sources, 0)
    table.clear(distinct)
    owners = owners_of(distinct)
    order = np.argsort(owners, kind="stable")
    rank_order = np.empty(order.size, np.int64)
    rank_order[order] = np.arange(order.size)
    bounds = bounds_of(np.bincount(owners, minlength=world))
    return Sources(rank_order[rows], distinct[order], bounds, owners[rows])


class Wanted(NamedTuple):
    """The sources whose rows this rank asks others for, those of rank 0 first."""

    places: Ids
    """[n], their indices among all sources"""
    versions: Ids
    """[n]"""
    bounds: Ids
    """[ranks + 1], where each rank's begin"""


class Folded(NamedTuple):
    """A relation's edges, where other ranks add some of them up."""

    left: HopEdges
    """the edges that stay, whose columns are the relation's sources and then sums"""
    weights: NDArray[Any]
    """[edges that stay]; 1 for sums"""
    requests: list[Words]
    """by rank, the edges to add up: the number of each edge's sum, its source, its weight"""
    sums: int
    """how many sums are among the sources of the edges that stay"""


class HopRequests:
    """The drawn edges of a hop, and what their rank asks each other rank for.

    Relations are in canonical order, with versions as sources. ``destinations`` are numbers by
    type, and ``sources`` those of the edges of all relations from a type, in the order of
    ``drawn``. Versions have ``version_dtype`` on the network.
    """

    def __init__(
        self,
        drawn: Mapping[Relation, HopEdges],
        destinations: Mapping[str, int],
        sources: Mapping[str, Sources],
        transfer: LayerTransfer,
        rank: int,
        world: int,
        version_dtype: np.dtype[Any],
    ) -> None:
        self.drawn, self.destinations, self.sources = drawn, destinations, sources
        self.transfer, self.rank, self.version_dtype = transfer, rank, version_dtype
        self._others: Ranks = np.arange(world) != rank
        self._parts: dict[Relation, slice] = {}
        next_edge = dict.fromkeys(sources, 0)
        for relation, edges in drawn.items():
            first = next_edge[relation.src]
            next_edge[relation.src] = first + edges.indices.size
            self._parts[relation] = slice(first, next_edge[relation.src])
        names = [kind.node_type for kind in transfer.layouts if isinstance(kind, Sums)]
        self._reached = {name: self._reach(name) for name in names}
        self.folded = self._choose_sums()
        """by type of destinations, [ranks], whether a rank sends partial sums for them"""

    def into(self, node_type: str) -> list[Relation]:
        """Return the relations that end in a type."""
        return [relation for relation in self.drawn if relation.dst == node_type]

    def summable(self) -> list[Relation]:
        """Return the relations whose edges other ranks may be asked to add up."""
        return [relation for relation in self.drawn if relation.dst in self._reached]

    def places(self, relation: Relation) -> Ids:
        """Return [edges]: the index of each edge's source among the sources of its type."""
        return self.sources[relation.src].places[self._parts[relation]]

    def wanted(self, kind: RowKind, folded: Mapping[str, Ranks] | None = None) -> Wanted:
        """Return the rows of a kind that this rank asks others for, where ``folded`` says who adds
        up; None = as it was chosen."""
        folded = self.folded if folded is None else folded
        sources = self.sources[source_type(kind)]
        marked = np.zeros(sources.versions.size, np.bool_)
        for relation in self.drawn:
            if self.transfer.kind_of(relation) == kind:
                asked = self._others & ~folded.get(relation.dst, np.False_)
                _mark_sources(self.places(relation), self._owners(relation), asked, marked)
        places = np.flatnonzero(marked)
        bounds = np.searchsorted(places, sources.bounds)
        return Wanted(places, sources.versions[places], bounds)

    def encode_versions(self, wanted: Wanted) -> list[Words]:
        """Return, by rank, the request for rows."""
        versions = wanted.versions.astype(self.version_dtype)
        return [
            versions[start:stop].view(np.int32) for start, stop in pairwise(wanted.bounds.tolist())
        ]

    def count_sums(self, node_type: str) -> Ids:
        """Return [ranks]: how many partial sums for a type each rank sends."""
        return np.asarray(self._sums(node_type).sum(1))

    def ends_of_sums(self, node_type: str) -> Ids:
        """Return [sums]: the destination of each sum, in the order in which sums arrive."""
        return np.nonzero(self._sums(node_type))[1]

    def fold(self, relation: Relation, weights: NDArray[Any]) -> Folded:
        """Take the edges that other ranks add up out of a relation, whose messages have weights.

        Each destination keeps its other edges in their order. One of the relations into a type has
        the sums among its sources: these follow, in order of rank.
        """
        has_sum = self._sums(relation.dst)
        number, first = np.cumsum(has_sum, 1) - 1, bounds_of(has_sum.sum(1))
        ends, owners = self.drawn[relation].destinations(), self._owners(relation)
        is_folded = self.folded[relation.dst][owners]
        (kept,), (taken,) = np.nonzero(~is_folded), np.nonzero(is_folded)
        taken = taken[np.argsort(owners[taken], kind="stable")]
        sources = self.drawn[relation].indices[taken].astype(self.version_dtype)
        numbers = number[owners[taken], ends[taken]].astype(np.int32)
        bounds = bounds_of(np.bincount(owners[taken], minlength=len(has_sum)))
        arrays = numbers, sources, weights[taken]
        requests = [
            np.concatenate([array[start:stop].view(np.int32) for array in arrays])
            for start, stop in pairwise(bounds)
        ]
        rows, columns, left_weights = ends[kept], self.places(relation)[kept], weights[kept]
        sums = 0
        if not self.transfer.merged and relation == self.into(relation.dst)[0]:
            sum_rows, ranks = np.nonzero(has_sum.T)
            sums = sum_rows.size
            order = np.argsort(np.concatenate((rows, sum_rows)), kind="stable")
            count = self.sources[relation.src].versions.size
            sum_columns = count + first[ranks] + number[ranks, sum_rows]
            rows = np.concatenate((rows, sum_rows))[order]
            columns = np.concatenate((columns, sum_columns))[order]
            left_weights = np.concatenate((left_weights, np.ones(sums, weights.dtype)))[order]
        indptr = bounds_of(np.bincount(rows, minlength=self.destinations[relation.dst]))
        return Folded(HopEdges(indptr, columns, _NONE), left_weights, requests, sums)

    def _owners(self, relation: Relation) -> NDArray[np.int16]:
        """Return [edges]: the rank that owns each edge's source."""
        return self.sources[relation.src].owners[self._parts[relation]]

    def _reach(self, node_type: str) -> Ranks:
        """Return [ranks, destinations]: whether a destination has an edge from a rank."""
        reached = np.zeros((self._others.size, self.destinations[node_type]), np.bool_)
        for relation in self.into(node_type):
            reached[self._owners(relation), self.drawn[relation].destinations()] = True
        return reached

    def _sums(self, node_type: str) -> Ranks:
        """Return [ranks, destinations]: whether a rank sends a partial sum for a destination."""
        return self._reached[node_type] & self.folded[node_type][:, None]

    def _choose_sums(self) -> dict[str, Ranks]:
        """Choose, rank by rank, the types of destinations for which sums and their requests take
        fewer bytes than rows.

        Rows that several types read are saved only with the last of these, so type after type is
        tried, and then all together.
        """
        costs = {name: self._count_sum_bytes(name) for name in self._reached}
        folded = {name: np.zeros_like(self._others) for name in costs}
        if not costs:
            return folded
        kinds = [kind for kind in self.transfer.layouts if not isinstance(kind, Sums)]
        rows = {kind: self._count_row_bytes(kind, folded) for kind in kinds}
        spent = np.zeros(self._others.size, np.int64)
        for name, cost in costs.items():
            read = {self.transfer.kind_of(relation) for relation in self.into(name)} & rows.keys()
            trial = folded | {name: self._others}
            left = {kind: self._count_row_bytes(kind, trial) for kind in read}
            saved = sum(rows[kind] - left[kind] for kind in read)
            folded[name] = self._others & (cost < saved)
            rows |= {kind: np.where(folded[name], left[kind], rows[kind]) for kind in read}
            spent += cost * folded[name]
        all_folded = dict.fromkeys(costs, self._others)
        saved = sum(rows[kind] - self._count_row_bytes(kind, all_folded) for kind in kinds)
        all_are_fewer = self._others & (np.sum(list(costs.values()), 0) < spent + saved)
        return {name: ranks | all_are_fewer for name, ranks in folded.items()}

    def _count_row_bytes(self, kind: RowKind, folded: Mapping[str, Ranks]) -> Ids:
        """Return [ranks]: the bytes of the rows of a kind that are asked for, and of the
        requests."""
        count = np.diff(self.wanted(kind, folded).bounds)
        row_bytes = self.transfer.layouts[kind].row_bytes
        return np.asarray(count * (self.version_dtype.itemsize + row_bytes))

    def _count_sum_bytes(self, node_type: str) -> Ids:
        """Return [ranks]: the bytes of a type's sums from each rank, and of the requests."""
        layout = self.transfer.layouts[Sums(node_type)]
        total = self._reached[node_type].sum(1) * layout.row_bytes
        edge = _NUMBER_BYTES + self.version_dtype.itemsize + self.transfer.item_bytes
        for relation in self.into(node_type):
            total += edge * np.bincount(self._owners(relation), minlength=total.size)
        return total


@dataclass(frozen=True)
class AskedSums:
    """The partial sums, for destinations of one type, that other ranks ask this rank for."""

    lengths: list[int]
    """by rank, the number of sums"""
    indptr: Mapping[Relation, Ids]
    """[sums + 1], where each sum's edges begin"""
    sources: Mapping[Relation, Ids]
    """[edges], the versions of the edges' sources"""
    weights: Mapping[Relation, NDArray[Any]]
    """[edges], the factors of their messages"""

    @classmethod
    def read(
        cls,
        requests: Mapping[Relation, Sequence[Words]],
        number: np.dtype[Any],
        version: np.dtype[Any],
    ) -> AskedSums:
        """Decode the requests of all ranks, by relation into the type, given the dtypes of weights
        and of sources."""
        dtypes = (np.dtype(np.int32), version, number)
        arrays = {
            relation: [_split_words(words, dtypes) for words in by_rank]
            for relation, by_rank in requests.items()
        }
        # Every sum has an edge of some relation, so the largest number is that of the last sum.
        lengths = [
            max(int(numbers.max(initial=-1)) + 1 for numbers, _, _ in of_rank)
            for of_rank in zip(*arrays.values(), strict=True)
        ]
        firsts, total = bounds_of(np.array(lengths))[:-1], sum(lengths)
        indptr, sources, weights = {}, {}, {}
        for relation, by_rank in arrays.items():
            numbers, versions, factors = zip(*by_rank, strict=True)
            if any(of_rank.size for of_rank in numbers):
                moved = [of_rank + first for of_rank, first in zip(numbers, firsts, strict=True)]
                indptr[relation] = bounds_of(np.bincount(np.concatenate(moved), minlength=total))
                sources[relation] = np.concatenate(versions).astype(np.int64)
                weights[relation] = np.concatenate(factors)
        return cls(lengths, indptr, sources, weights)

    def pattern(self, relation: Relation, rows: Ids, num_src: int) -> Weighted:
        """Return the edges from the own rows of a relation's sources, [edges], to its sums."""
        edges = Edges.from_arrays(self.indptr[relation], rows, num_src)
        return edges, torch.from_numpy(self.weights[relation])


def bounds_of(sizes: NDArray[np.integer[Any]]) -> Ids:
    """Return [n + 1] int64: where each of n consecutive stretches begins, and the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def _split_words(words: Words, dtypes: Sequence[np.dtype[Any]]) -> list[NDArray[Any]]:
    """Split words into consecutive arrays of one length and of several dtypes."""
    sizes = [dtype.itemsize // words.itemsize for dtype in dtypes]
    bounds = bounds_of(np.array(sizes) * (words.size // sum(sizes))).tolist()
    return [
        words[start:stop].view(dtype)
        for (start, stop), dtype in zip(pairwise(bounds), dtypes, strict=True)
    ]


@kernel
def _mark_sources(places: Ids, owners: NDArray[np.int16], wanted: Ranks, marked: Ranks) -> None:
    """Mark the sources, [sources], of the edges from some ranks."""
    for edge in range(places.size):
        if wanted[owners[edge]]:
            marked[places[edge]] = True
