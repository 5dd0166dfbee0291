"""Links: edges that are predicted, by their ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import GraphSchema, Relation
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
    """

    ids: Ids
    relations: Ids
    src: Ids
    dst: Ids

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.ids.size)


def link_offsets(schema: GraphSchema) -> Ids:
    """[target relations + 1] int64: where the ids of each relation's edges begin."""
    counts = [schema.relations[each].count for each in schema.target_relations]
    return np.cumsum([0, *counts])


def find_links(schema: GraphSchema, topology: Callable[[Relation], Topology], ids: Ids) -> Links:
    """The ends of links.

    Parameters
    ----------
    topology: the in-edges of a relation, in original ids. ids: [n] int64, ascending.
    """
    offsets = link_offsets(schema)
    relations = np.searchsorted(offsets, ids, side="right") - 1
    src, dst = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    for number, relation in enumerate(schema.target_relations):
        first, stop = np.searchsorted(ids, offsets[number : number + 2]).tolist()
        if first == stop:
            continue
        edges = topology(relation)
        places = np.full(schema.relations[relation].count, -1, np.int64)
        places[ids[first:stop] - offsets[number]] = np.arange(first, stop)
        arrays = map(np.asarray, (edges.indptr, edges.indices, edges.edge_ids))
        _find_ends(*arrays, places, src, dst)
    return Links(ids, relations, src, dst)


@numba.njit(cache=True, nogil=True)
def _find_ends(indptr: Ids, indices: Ids, edge_ids: Ids, places: Ids, src: Ids, dst: Ids) -> None:
    for node in range(indptr.size - 1):
        for edge in range(indptr[node], indptr[node + 1]):
            place = places[edge_ids[edge]]
            if place >= 0:
                src[place], dst[place] = indices[edge], node
