"""Edges that are predicted, they or their labels, by their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.schema import GraphSchema, Labelled, Relation
from hopper.graph.topology import Topology

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Links:
    """Edges of target relations, named by original ids.

    Attributes
    ----------
    ids: [n] int64, ascending, as splits have them: the id of an edge and, in front of it, the
        numbers of edges of the target relations before its own.
    relations: [n] int64, which of the target relations each is of.
    src, dst: [n] int64, original ids of both ends.
    labels: [n] or [n, classes], as stored, where they are what is predicted.
    times: [n] int64, where edges of all target relations have any.
    """

    ids: Ids
    relations: Ids
    src: Ids
    dst: Ids
    labels: NDArray[Any] | None = None
    times: Ids | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.ids.size)


class Ends(Protocol):
    """Links by their ends, whichever ids these have."""

    @property
    def relations(self) -> Ids:
        """[n] int64, which of the target relations each is of."""

    @property
    def src(self) -> Ids:
        """[n] int64."""

    @property
    def dst(self) -> Ids:
        """[n] int64."""


def ends_of(
    links: Ends, targets: Sequence[Relation], node_type: str, places: Ids | None = None
) -> Ids:
    """[m] int64: the ends of a type, relation by relation, sources first.

    Parameters
    ----------
    targets: the target relations, by number.
    places: of which links, in that order; None = of all.
    """
    places = np.arange(links.relations.size) if places is None else places
    found = [np.empty(0, np.int64)]
    for number, relation in enumerate(targets):
        own = places[links.relations[places] == number]
        for end, ids in ((relation.src, links.src), (relation.dst, links.dst)):
            if end == node_type:
                found.append(ids[own])
    return np.concatenate(found)


def link_offsets(schema: GraphSchema) -> Ids:
    """[target relations + 1] int64: where the ids of each relation's edges begin."""
    counts = [schema.relations[each].count for each in schema.target_relations]
    return np.cumsum([0, *counts])


def find_links(
    schema: GraphSchema,
    topology: Callable[[Relation], Topology],
    labels: Callable[[Labelled], NDArray[Any]],
    times: Callable[[Labelled], Ids],
    ids: Ids,
) -> Links:
    """The ends of links, their labels, and their times.

    Parameters
    ----------
    topology: the in-edges of a relation, in original ids. labels, times: of a relation's edges.
    ids: [n] int64, ascending.
    """
    offsets = link_offsets(schema)
    relations = np.searchsorted(offsets, ids, side="right") - 1
    src, dst = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    found: list[NDArray[Any]] = []
    found_times = np.empty(ids.size, np.int64) if schema.links_are_timed else None
    for number, relation in enumerate(schema.target_relations):
        first, stop = np.searchsorted(ids, offsets[number : number + 2]).tolist()
        own = ids[first:stop] - offsets[number]
        if schema.predicted == "edge":
            found.append(labels(relation)[own])
        if found_times is not None:
            found_times[first:stop] = times(relation)[own]
        if first == stop:
            continue
        edges = topology(relation)
        places = np.full(schema.relations[relation].count, -1, np.int64)
        places[own] = np.arange(first, stop)
        indptr, indices, edge_ids = map(np.asarray, (edges.indptr, edges.indices, edges.edge_ids))
        _find_ends(indptr, indices, edge_ids, places, src, dst)
    found_labels = np.concatenate(found) if found else None
    return Links(ids, relations, src, dst, found_labels, found_times)


@kernel
def _find_ends(indptr: Ids, indices: Ids, edge_ids: Ids, places: Ids, src: Ids, dst: Ids) -> None:
    for node in range(indptr.size - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            place = places[edge_ids[edge]]
            if place >= 0:
                src[place], dst[place] = indices[edge], node
