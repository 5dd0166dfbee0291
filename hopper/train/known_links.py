"""Known links, which filtered scores leave out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import GraphSchema
from hopper.tasks import LinkTable, Side
from hopper.tasks.target_edges import TargetEdges

Ids = NDArray[np.int64]


class KnownLinks:
    """Finds known links by one of their ends: the links of all splits, and all message edges.

    Parameters
    ----------
    edges: the edges of the target relations.
    table: returns a split's links.
    """

    def __init__(
        self, schema: GraphSchema, edges: TargetEdges, table: Callable[[str], LinkTable]
    ) -> None:
        self._schema, self._edges, self._table = schema, edges, table
        self._links: dict[tuple[str, int, Side], tuple[Ids, Ids]] = {}

    def of(self, split: str, number: int, side: Side) -> tuple[Ids, Ids]:
        """Return the known links of a relation that share an end with the split's links.

        Of these, a rank gets the links whose other end it owns. Every rank must make the first call
        for the same arguments.

        Parameters
        ----------
        number: the number of the target relation.
        side: the end that candidates replace; the other end is the known one.

        Returns
        -------
        bounds: [nodes + 1] int64, where the links of each known end begin.
        others: [links] int64, the global ids of the other ends.
        """
        key = split, number, side
        if key not in self._links:
            self._links[key] = self._find(*key)
        return self._links[key]

    def _find(self, split: str, number: int, side: Side) -> tuple[Ids, Ids]:
        relation = self._schema.target_relations[number]
        known_type = relation.src if side == "tail" else relation.dst
        is_asked = np.zeros(self._schema.node_types[known_type].count, np.bool_)
        asked = self._table(split).of_relation(number)
        is_asked[asked.src if side == "tail" else asked.dst] = True
        _, src, dst = self._edges.find_known(relation, side, is_asked)
        tables = [self._table(name).of_relation(number) for name in self._schema.splits]
        src, dst = (
            np.concatenate([src, *(table.src for table in tables)]),
            np.concatenate([dst, *(table.dst for table in tables)]),
        )
        known, others = (src, dst) if side == "tail" else (dst, src)
        known, others = known[is_asked[known]], others[is_asked[known]]
        order = np.argsort(known, kind="stable")
        counts = np.bincount(known, minlength=is_asked.size)
        return np.concatenate(([0], np.cumsum(counts))), others[order]
