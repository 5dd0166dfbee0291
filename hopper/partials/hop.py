"""One hop as a rank has drawn it, and in which form it wants what other ranks own of it."""

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
"""of the number or size of a sum on the wire"""

Ranks = NDArray[np.bool_]


class Hop:
    """The edges of a hop, and what is wanted of whom, in the fewest bytes.

    Parameters
    ----------
    relations: those that were drawn, in canonical order.
    destinations: how many there are of each type.
    drawn: by relation, offsets, versions of sources and positions.
    found: by type, the distinct sources of all of its relations, in the order of these.
    wires: of the layer.
    rank, world: whose hop it is, and how many ranks there are.
    version_dtype: of versions on the wire.

    Attributes
    ----------
    projected: by type of sources, [ranks], from whom its relations' projected rows come.
    folded: by type of destinations, [ranks], from whom their partial sums come.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        destinations: Mapping[str, int],
        drawn: Mapping[Relation, tuple[Ids, Ids, Ids]],
        found: Mapping[str, Sources],
        wires: Wires,
        rank: int,
        world: int,
        version_dtype: np.dtype[Any],
    ) -> None:
        self.relations, self.destinations = relations, destinations
        self.drawn, self.found, self.wires = drawn, found, wires
        self.rank, self._others = rank, np.arange(world) != rank
        self.version_dtype, self._version_bytes = version_dtype, version_dtype.itemsize
        self._parts: dict[Relation, slice] = {}
        at = dict.fromkeys(found, 0)
        for each in relations:
            first = at[each.src]
            at[each.src] = first + drawn[each][1].size
            self._parts[each] = slice(first, at[each.src])
        self.projected: dict[str, Ranks] = {}
        as_rows = {name: self._choose_rows(name) for name in found}
        self.reached: dict[str, Ranks] = {}
        """by type of destinations, [destinations, ranks], which have an edge from which rank"""
        self.edges: dict[Relation, Ids] = {}
        """by relation that is added up, [ranks] edges from each rank"""
        self.sums: dict[str, Ids] = {}
        """by type of destinations, [ranks] partial sums that each rank could send"""
        self.folded = self._choose_sums(as_rows)

    def as_words(self, versions: Ids) -> NDArray[np.int32]:
        """As they are told to other ranks."""
        return versions.astype(self.version_dtype).view(np.int32)

    def into(self, node_type: str) -> list[Relation]:
        """The relations that end in a type."""
        return [each for each in self.relations if each.dst == node_type]

    def readers(self, node_type: str) -> list[Relation]:
        """The relations from a type."""
        return [each for each in self.relations if each.src == node_type]

    def reads_once(self, node_type: str) -> bool:
        """Whether there is one relation from a type."""
        return len(self.readers(node_type)) == 1

    def places(self, relation: Relation) -> Ids:
        """[edges]: each edge's place among the sources of its type."""
        return self.found[relation.src].places[self._parts[relation]]

    def owners(self, relation: Relation) -> NDArray[np.int16]:
        """[edges]: the rank that owns each edge's source."""
        return self.found[relation.src].owners[self._parts[relation]]

    @cached_property
    def numbers(self) -> dict[str, NDArray[np.int32]]:
        """By type of destinations, [destinations, ranks]: see :func:`number_sums`."""
        return {name: number_sums(self.reached[name], own) for name, own in self.folded.items()}

    def ends_of_sums(self, node_type: str) -> Ids:
        """[sums], in the order in which they come: the destination of each."""
        _ranks, ends = np.nonzero(self.numbers[node_type].T >= 0)
        return ends

    def wanted(self, kind: RowKind) -> Wanted:
        """The rows of a kind that this rank asks others for."""
        if isinstance(kind, Relation):
            read_by, ranks = [kind], self.projected[kind.src]
        else:
            read_by = self.readers(kind)
            ranks = self._others & ~self.projected[kind]
        found = self.found[read_by[0].src]
        apart = [ranks & ~self.folded.get(each.dst, np.False_) for each in read_by]
        is_same = all((each == apart[0]).all() for each in apart)
        if is_same and (isinstance(kind, str) or found.places.size == self.places(kind).size):
            return Wanted.of(found, apart[0], None)
        marked = np.zeros(found.versions.size, np.bool_)
        for each, own in zip(read_by, apart, strict=True):
            mark_sources(self.places(each), self.owners(each), own, marked)
        return Wanted.of(found, np.logical_or.reduce(apart), marked)

    def _choose_rows(self, name: str) -> Ids:
        """[ranks]: the bytes of a type's rows from each, in the form that takes fewer."""
        forms = self.wires.forms
        read_by = self.readers(name)
        as_projected = np.zeros(self._others.size, np.int64)
        for each in read_by:
            if each in forms:
                size = self._version_bytes + forms[each].row_bytes
                as_projected += self._count_sources(each) * size
        if name not in forms:
            self.projected[name] = self._others
            return as_projected
        as_rows = self.found[name].counts() * (self._version_bytes + forms[name].row_bytes)
        if any(each not in forms for each in read_by):
            self.projected[name] = np.zeros_like(self._others)
            return as_rows
        self.projected[name] = (as_projected < as_rows) & self._others
        return np.minimum(as_projected, as_rows)

    def _count_sources(self, relation: Relation) -> Ids:
        """[ranks]: the distinct sources of one of the relations from a type."""
        found = self.found[relation.src]
        if self.reads_once(relation.src):
            return found.counts()
        marked = np.zeros(found.versions.size, np.bool_)
        everyone = np.ones_like(self._others)
        mark_sources(self.places(relation), self.owners(relation), everyone, marked)
        return np.diff(np.concatenate(([0], np.cumsum(marked)))[found.bounds])

    def _choose_sums(self, as_rows: Mapping[str, Ids]) -> dict[str, Ranks]:
        """By type of destinations, from whom partial sums take fewer bytes than rows, asking for
        them included: for some types, or for all."""
        kinds = [kind for kind in self.wires.forms if isinstance(kind, Sums)]
        costs = {kind.node_type: self._count_sums(kind) for kind in kinds}
        if not costs:
            return {}
        rows = np.sum(list(as_rows.values()), 0)
        if len(costs) == 1:
            ((name, cost),) = costs.items()
            return {name: (cost < rows) & self._others}
        saved = self._count_saved(list(costs))
        some = {name: cost < saved[name] for name, cost in costs.items()}
        gain = sum(np.maximum(saved[name] - cost, 0) for name, cost in costs.items())
        every = np.sum(list(costs.values()), 0) < rows - gain
        return {name: (own | every) & self._others for name, own in some.items()}

    def _count_sums(self, kind: Sums) -> Ids:
        """[ranks]: the bytes of a type's partial sums from each."""
        name, world = kind.node_type, self._others.size
        self.reached[name] = np.zeros((self.destinations[name], world), np.bool_)
        self.sums[name] = np.zeros(world, np.int64)
        for each in self.into(name):
            self.edges[each] = count_pairs(
                self.drawn[each][0], self.owners(each), self.reached[name], self.sums[name]
            )
        cost = self.sums[name] * self.wires.forms[kind].row_bytes
        for each in self.into(name):
            ends = np.minimum(self.sums[name], self.edges[each])
            cost += ends * _NUMBER_BYTES
            cost += self.edges[each] * (self._version_bytes + self.wires.item_bytes)
        return cost

    def _count_saved(self, types: Sequence[str]) -> dict[str, Ids]:
        """By type of destinations, [ranks]: the bytes of the rows that it alone reads."""
        forms = self.wires.forms
        saved = {each: np.zeros(self._others.size, np.int64) for each in types}
        for name, found in self.found.items():
            read_by = self.readers(name)
            for each in read_by if self.projected[name].any() else []:
                rows = self._count_sources(each) * self.projected[name]
                saved[each.dst] += rows * (self._version_bytes + forms[each].row_bytes)
            if name not in forms:
                continue
            readers = np.full(found.versions.size, -1, np.int16)
            for each in read_by:
                mark_readers(self.places(each), types.index(each.dst), readers)
            for reader, reached in enumerate(types):
                alone = np.concatenate(([0], np.cumsum(readers == reader)))[found.bounds]
                rows = np.diff(alone) * ~self.projected[name]
                saved[reached] += rows * (self._version_bytes + forms[name].row_bytes)
        return saved
