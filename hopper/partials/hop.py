"""One hop as a rank has drawn it, and the form in which it asks other ranks for rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.partials.fold import count_pairs, mark_readers, mark_sources, number_sums
from hopper.partials.frontiers import Ids, Sources, Wanted
from hopper.partials.wire import RowKind, Sums, Wires

_NUMBER_BYTES: Final = 4
"""Bytes of the number, or the size, of a sum on the network."""

Ranks = NDArray[np.bool_]


class Hop:
    """The edges of a hop, and for each rank the form of its rows that takes the fewest bytes.

    Parameters
    ----------
    relations: the relations that were drawn, in canonical order.
    destinations: by type, the number of destinations.
    drawn: by relation, offsets, versions of sources and positions.
    sources: by type, the distinct sources of the edges of all relations from it, these edges in
        the order of ``relations``.
    wires: how the rows of the layer may travel.
    rank: the rank whose hop this is.
    world: number of ranks.
    version_dtype: dtype of versions on the network.

    Attributes
    ----------
    projected: by type of sources, [ranks], whether a rank sends the projected rows of its
        relations.
    folded: by type of destinations, [ranks], whether a rank sends partial sums for them.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        destinations: Mapping[str, int],
        drawn: Mapping[Relation, tuple[Ids, Ids, Ids]],
        sources: Mapping[str, Sources],
        wires: Wires,
        rank: int,
        world: int,
        version_dtype: np.dtype[Any],
    ) -> None:
        self.relations, self.destinations = relations, destinations
        self.drawn, self.sources, self.wires = drawn, sources, wires
        self.rank, self._others = rank, np.arange(world) != rank
        self.version_dtype, self._version_bytes = version_dtype, version_dtype.itemsize
        self._parts: dict[Relation, slice] = {}
        next_edge = dict.fromkeys(sources, 0)
        for relation in relations:
            first = next_edge[relation.src]
            next_edge[relation.src] = first + drawn[relation][1].size
            self._parts[relation] = slice(first, next_edge[relation.src])
        self.projected: dict[str, Ranks] = {}
        row_bytes = {name: self._choose_rows(name) for name in sources}
        self.reached: dict[str, Ranks] = {}
        """By type, [destinations, ranks]: whether a destination has an edge from a rank."""
        self.edges: dict[Relation, Ids] = {}
        """By relation that may be added up, [ranks]: the number of edges from each rank."""
        self.sums: dict[str, Ids] = {}
        """By type of destinations, [ranks]: how many partial sums each rank could send."""
        self.folded = self._choose_sums(row_bytes)

    def encode_versions(self, versions: Ids) -> NDArray[np.int32]:
        """Return the words in which a request names versions."""
        return versions.astype(self.version_dtype).view(np.int32)

    def into(self, node_type: str) -> list[Relation]:
        """Return the relations that end in a type."""
        return [relation for relation in self.relations if relation.dst == node_type]

    def readers(self, node_type: str) -> list[Relation]:
        """Return the relations that begin in a type."""
        return [relation for relation in self.relations if relation.src == node_type]

    def reads_once(self, node_type: str) -> bool:
        """Return whether exactly one relation begins in a type."""
        return len(self.readers(node_type)) == 1

    def places(self, relation: Relation) -> Ids:
        """Return [edges]: the index of each edge's source among the sources of its type."""
        return self.sources[relation.src].places[self._parts[relation]]

    def owners(self, relation: Relation) -> NDArray[np.int16]:
        """Return [edges]: the rank that owns each edge's source."""
        return self.sources[relation.src].owners[self._parts[relation]]

    @cached_property
    def numbers(self) -> dict[str, NDArray[np.int32]]:
        """Return the number of each partial sum: by type of destinations, [destinations, ranks]."""
        return {name: number_sums(self.reached[name], ranks) for name, ranks in self.folded.items()}

    def ends_of_sums(self, node_type: str) -> Ids:
        """Return [sums]: the destination of each sum, in the order in which sums arrive."""
        _ranks, ends = np.nonzero(self.numbers[node_type].T >= 0)
        return ends

    def wanted(self, kind: RowKind) -> Wanted:
        """Return the rows of a kind that this rank asks others for."""
        if isinstance(kind, Relation):
            read_by, ranks = [kind], self.projected[kind.src]
        else:
            read_by = self.readers(kind)
            ranks = self._others & ~self.projected[kind]
        sources = self.sources[read_by[0].src]
        # Ranks that send partial sums for a relation's destinations send no rows for it.
        ranks_by_relation = [
            ranks & ~self.folded.get(relation.dst, np.False_) for relation in read_by
        ]
        is_same = all((asked == ranks_by_relation[0]).all() for asked in ranks_by_relation)
        if is_same and (isinstance(kind, str) or sources.places.size == self.places(kind).size):
            return Wanted.of(sources, ranks_by_relation[0], None)
        marked = np.zeros(sources.versions.size, np.bool_)
        for relation, asked in zip(read_by, ranks_by_relation, strict=True):
            mark_sources(self.places(relation), self.owners(relation), asked, marked)
        return Wanted.of(sources, np.logical_or.reduce(ranks_by_relation), marked)

    def _choose_rows(self, name: str) -> Ids:
        """Choose, rank by rank, whether a type's rows come projected.

        Returns
        -------
        [ranks]: the bytes of the type's rows from each rank, in the chosen form.
        """
        forms = self.wires.forms
        read_by = self.readers(name)
        projected_bytes = np.zeros(self._others.size, np.int64)
        for relation in read_by:
            if relation in forms:
                size = self._version_bytes + forms[relation].row_bytes
                projected_bytes += self._count_sources(relation) * size
        if name not in forms:
            self.projected[name] = self._others
            return projected_bytes
        row_bytes = self.sources[name].counts() * (self._version_bytes + forms[name].row_bytes)
        if any(relation not in forms for relation in read_by):
            self.projected[name] = np.zeros_like(self._others)
            return row_bytes
        self.projected[name] = (projected_bytes < row_bytes) & self._others
        return np.minimum(projected_bytes, row_bytes)

    def _count_sources(self, relation: Relation) -> Ids:
        """Return [ranks]: how many distinct sources of a relation each rank owns."""
        sources = self.sources[relation.src]
        if self.reads_once(relation.src):
            return sources.counts()
        marked = np.zeros(sources.versions.size, np.bool_)
        all_ranks = np.ones_like(self._others)
        mark_sources(self.places(relation), self.owners(relation), all_ranks, marked)
        return np.diff(np.concatenate(([0], np.cumsum(marked)))[sources.bounds])

    def _choose_sums(self, row_bytes: Mapping[str, Ids]) -> dict[str, Ranks]:
        """Choose, rank by rank, where partial sums take fewer bytes than rows.

        The bytes of the requests count. With several types of destinations, sums replace rows for
        the types that gain by themselves, or for all types if that takes the fewest bytes.

        Parameters
        ----------
        row_bytes: by type of sources, [ranks], the bytes of its rows.

        Returns
        -------
        By type of destinations, [ranks]: whether a rank sends partial sums.
        """
        kinds = [kind for kind in self.wires.forms if isinstance(kind, Sums)]
        costs = {kind.node_type: self._count_sums(kind) for kind in kinds}
        if not costs:
            return {}
        total_row_bytes = np.sum(list(row_bytes.values()), 0)
        if len(costs) == 1:
            ((name, cost),) = costs.items()
            return {name: (cost < total_row_bytes) & self._others}
        saved = self._count_saved(list(costs))
        gains_alone = {name: cost < saved[name] for name, cost in costs.items()}
        gain = sum(np.maximum(saved[name] - cost, 0) for name, cost in costs.items())
        for_all_types = np.sum(list(costs.values()), 0) < total_row_bytes - gain
        return {name: (ranks | for_all_types) & self._others for name, ranks in gains_alone.items()}

    def _count_sums(self, kind: Sums) -> Ids:
        """Return [ranks]: the bytes of each rank's partial sums for a type, and of the request for
        them.

        It also fills ``reached``, ``sums`` and ``edges`` for the type.
        """
        name, world = kind.node_type, self._others.size
        self.reached[name] = np.zeros((self.destinations[name], world), np.bool_)
        self.sums[name] = np.zeros(world, np.int64)
        for relation in self.into(name):
            self.edges[relation] = count_pairs(
                self.drawn[relation][0], self.owners(relation), self.reached[name], self.sums[name]
            )
        cost = self.sums[name] * self.wires.forms[kind].row_bytes
        for relation in self.into(name):
            ends = np.minimum(self.sums[name], self.edges[relation])
            cost += ends * _NUMBER_BYTES
            cost += self.edges[relation] * (self._version_bytes + self.wires.item_bytes)
        return cost

    def _count_saved(self, types: Sequence[str]) -> dict[str, Ids]:
        """Count the bytes of the rows that no other type reads: by type of destinations,
        [ranks]."""
        forms = self.wires.forms
        saved = {name: np.zeros(self._others.size, np.int64) for name in types}
        for name, sources in self.sources.items():
            read_by = self.readers(name)
            for relation in read_by if self.projected[name].any() else []:
                rows = self._count_sources(relation) * self.projected[name]
                saved[relation.dst] += rows * (self._version_bytes + forms[relation].row_bytes)
            if name not in forms:
                continue
            readers = np.full(sources.versions.size, -1, np.int16)
            for relation in read_by:
                mark_readers(self.places(relation), types.index(relation.dst), readers)
            for reader, destination_type in enumerate(types):
                read_by_it_alone = np.concatenate(([0], np.cumsum(readers == reader)))
                rows = np.diff(read_by_it_alone[sources.bounds]) * ~self.projected[name]
                saved[destination_type] += rows * (self._version_bytes + forms[name].row_bytes)
        return saved
