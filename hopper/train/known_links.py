"""Links that are known, which scores leave out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import GraphSchema
from hopper.tasks import LinkTable, Side
from hopper.tasks.target_edges import TargetEdges

Ids = NDArray[np.int64]


class KnownLinks:
    """All links of all splits, and all edges that messages travel along, by one of their ends.

    Parameters
    ----------
    edges: of the target relations. table: a split's links.
    """

    def __init__(
        self, schema: GraphSchema, edges: TargetEdges, table: Callable[[str], LinkTable]
    ) -> None:
        self._schema, self._edges, self._table = schema, edges, table
        self._found: dict[tuple[str, int, Side], tuple[Ids, Ids]] = {}

    def of(self, split: str, number: int, side: Side) -> tuple[Ids, Ids]:
        """Links of a relation with a split's known ends: [nodes + 1] int64 bounds by known end, and
        [links] int64 other ends, in global ids; all whose other end this rank owns. The first time
        every rank has to call it.

        Parameters
        ----------
        number: of the target relation. side: the end that is not known.
        """
        key = split, number, side
        if key not in self._found:
            self._found[key] = self._find(*key)
        return self._found[key]

    def _find(self, split: str, number: int, side: Side) -> tuple[Ids, Ids]:
        relation = self._schema.target_relations[number]
        known_type = relation.src if side == "tail" else relation.dst
        is_asked = np.zeros(self._schema.node_types[known_type].count, np.bool_)
        asked = self._table(split).of_relation(number)
        is_asked[asked.src if side == "tail" else asked.dst] = True
        _, src, dst = self._edges.known_of(relation, side, is_asked)
        links = [self._table(each).of_relation(number) for each in self._schema.splits]
        src, dst = (
            np.concatenate([src, *(each.src for each in links)]),
            np.concatenate([dst, *(each.dst for each in links)]),
        )
        by, others = (src, dst) if side == "tail" else (dst, src)
        by, others = by[is_asked[by]], others[is_asked[by]]
        order = np.argsort(by, kind="stable")
        counts = np.bincount(by, minlength=is_asked.size)
        return np.concatenate(([0], np.cumsum(counts))), others[order]
