"""Keep a graph's largest connected component."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.tables import FeatureTable, GraphTables, target_relations
from hopper.graph.schema import Relation


@dataclass(frozen=True)
class SelectedRows:
    """Some rows of a table, in the table's order."""

    table: FeatureTable
    kept: NDArray[np.bool_]
    """[rows of the table], whether each row is kept"""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of kept rows, and of columns."""
        return int(np.count_nonzero(self.kept)), self.table.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the chunks."""
        return self.table.dtype

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Iterate over the kept rows of each of the table's chunks."""
        first = 0
        for start, rows in self.table.chunks():
            kept_rows = rows[self.kept[start : start + rows.shape[0]]]
            yield first, kept_rows
            first += kept_rows.shape[0]


def keep_largest_component(tables: GraphTables) -> None:
    """Keep only the largest weakly connected component, over the edges of all relations.

    Of components of equal size, the one with the first node stays. Nodes and edges keep their order
    and get new numbers.

    Raises
    ------
    GraphError: an edge names a node that does not exist.
    """
    kept_nodes = _find_largest(tables)
    removed = sum(int(mask.size - np.count_nonzero(mask)) for mask in kept_nodes.values())
    ids = {name: np.cumsum(mask) - 1 for name, mask in kept_nodes.items()}
    kept_edges: dict[Relation, NDArray[np.bool_]] = {}
    for relation, (src, dst) in tables.edges.items():
        # Both ends of an edge are in one component.
        mask = kept_edges[relation] = kept_nodes[relation.src][src]
        tables.edges[relation] = (ids[relation.src][src[mask]], ids[relation.dst][dst[mask]])
    for name, mask in kept_nodes.items():
        tables.counts[name] = int(np.count_nonzero(mask))
        if name in tables.features:
            tables.features[name] = SelectedRows(tables.features[name], mask)
        if name in tables.times:
            tables.times[name] = tables.times[name][mask]
        if name in tables.labels:
            labels, values = tables.labels[name]
            tables.labels[name] = (labels, values[mask])
        if name in tables.names:
            names = zip(tables.names[name], mask, strict=True)
            tables.names[name] = [node_name for node_name, is_kept in names if is_kept]
    for relation, edge_table in tables.edge_features.items():
        tables.edge_features[relation] = SelectedRows(edge_table, kept_edges[relation])
    for relation, mask in kept_edges.items():
        if relation in tables.weights:
            tables.weights[relation] = tables.weights[relation][mask]
        if relation in tables.times:
            tables.times[relation] = tables.times[relation][mask]
        if relation in tables.labels:
            labels, values = tables.labels[relation]
            tables.labels[relation] = (labels, values[mask])
    target = tables.target
    mask = (
        kept_nodes[target]
        if isinstance(target, str)
        else np.concatenate([kept_edges[relation] for relation in target_relations(tables)])
    )
    tables.splits = {
        name: (np.cumsum(mask) - 1)[split[mask[split]]] for name, split in tables.splits.items()
    }
    tables.notes.append(f"{removed} nodes outside the largest connected component left out")


def _find_largest(tables: GraphTables) -> dict[str, NDArray[np.bool_]]:
    """Mark the nodes of the largest component, [count] bool by node type."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = list(tables.counts)
    bounds = np.cumsum([0, *(tables.counts[name] for name in names)])
    first = dict(zip(names, bounds[:-1].tolist(), strict=True))
    ends = tuple(
        np.concatenate(
            [_shift_ids(tables, r, end, pair[end], first) for r, pair in tables.edges.items()]
        )
        for end in (0, 1)
    )
    total = int(bounds[-1])
    edges = coo_array((np.ones(ends[0].size, np.int8), ends), shape=(total, total))
    _, component = connected_components(edges, directed=False)
    inside = component == np.argmax(np.bincount(component, minlength=1))
    return dict(zip(names, np.split(inside, bounds[1:-1]), strict=True))


def _shift_ids(
    tables: GraphTables, relation: Relation, end: int, ids: NDArray[Any], first: dict[str, int]
) -> NDArray[np.int64]:
    """Number the ends of a relation's edges over the nodes of all types."""
    node_type = relation.dst if end else relation.src
    count = tables.counts[node_type]
    if ids.size and not 0 <= ids.min() <= ids.max() < count:
        raise GraphError(
            f"{relation}: expected ids of {node_type} in [0, {count}), given {ids.min()} to "
            f"{ids.max()}"
        )
    return ids.astype(np.int64) + first[node_type]
