"""Links and labelled edges of a split, named by their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.graph.topology import Ids


@dataclass(frozen=True)
class Links:
    """Edges of target relations, named by original ids."""

    ids: Ids
    """[n] int64, ascending, as in splits; they count the edges of earlier target relations too"""
    relations: Ids
    """[n] int64, index of each edge's relation among the target relations"""
    src: Ids
    dst: Ids
    """[n] int64, original ids of both ends"""
    labels: NDArray[Any] | None = None
    """[n] or [n, classes], as stored; None unless labels of edges are predicted"""
    times: Ids | None = None
    """[n] int64; None unless the edges of all target relations have times"""

    @property
    def count(self) -> int:
        """Number of edges."""
        return int(self.ids.size)


def select_ends(
    links: Any, targets: Sequence[Relation], node_type: str, places: Ids | None = None
) -> Ids:
    """Return [m] int64: ids of the ends of one node type, relation by relation, sources first; only
    of the links at ``places``, [k] int64, if that is given.

    ``links`` have ``relations``, ``src`` and ``dst`` as :class:`Links`, maybe in global ids.
    """
    places = np.arange(links.relations.size) if places is None else places
    ends = [np.empty(0, np.int64)]
    for number, relation in enumerate(targets):
        of_relation = places[links.relations[places] == number]
        for end_type, ids in ((relation.src, links.src), (relation.dst, links.dst)):
            if end_type == node_type:
                ends.append(ids[of_relation])
    return np.concatenate(ends)
