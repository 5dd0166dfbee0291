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
    """Some rows of a table, in their order there."""

    table: FeatureTable
    kept: NDArray[np.bool_]
    """[rows of the table]"""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that are kept, and columns."""
        return int(np.count_nonzero(self.kept)), self.table.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the chunks."""
        return self.table.dtype

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """The kept part of each of the table's chunks."""
        written = 0
        for start, rows in self.table.chunks():
            part = rows[self.kept[start : start + rows.shape[0]]]
            yield written, part
            written += part.shape[0]


def keep_largest_component(tables: GraphTables) -> None:
    """Leave only the largest component of the graph whose edges are those of all relations.

    Directions of edges do not matter (weakly connected); of components of equal size the one with
    the first node stays. Nodes and edges keep their order and are numbered anew.

    Raises
    ------
    GraphError: an edge names a node that there is not.
    """
    kept = _largest(tables)
    removed = sum(int(mask.size - np.count_nonzero(mask)) for mask in kept.values())
    ids = {name: np.cumsum(mask) - 1 for name, mask in kept.items()}
    kept_edges: dict[Relation, NDArray[np.bool_]] = {}
    for relation, (src, dst) in tables.edges.items():
        # Both ends of an edge are in one component.
        chosen = kept_edges[relation] = kept[relation.src][src]
        tables.edges[relation] = (
            ids[relation.src][src[chosen]],
            ids[relation.dst][dst[chosen]],
        )
    for name, mask in kept.items():
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
            tables.names[name] = [each for each, stays in names if stays]
    for relation, edge_table in tables.edge_features.items():
        tables.edge_features[relation] = SelectedRows(edge_table, kept_edges[relation])
    for relation, chosen in kept_edges.items():
        if relation in tables.weights:
            tables.weights[relation] = tables.weights[relation][chosen]
        if relation in tables.times:
            tables.times[relation] = tables.times[relation][chosen]
        if relation in tables.labels:
            labels, values = tables.labels[relation]
            tables.labels[relation] = (labels, values[chosen])
    target = tables.target
    mask = (
        kept[target]
        if isinstance(target, str)
        else np.concatenate([kept_edges[each] for each in target_relations(tables)])
    )
    tables.splits = {
        name: (np.cumsum(mask) - 1)[split[mask[split]]] for name, split in tables.splits.items()
    }
    tables.notes.append(f"{removed} nodes outside the largest connected component left out")


def _largest(tables: GraphTables) -> dict[str, NDArray[np.bool_]]:
    """Per type: [count] bool, the nodes of the largest component."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = list(tables.counts)
    bounds = np.cumsum([0, *(tables.counts[name] for name in names)])
    first = dict(zip(names, bounds[:-1].tolist(), strict=True))
    ends = tuple(
        np.concatenate(
            [_global(tables, r, end, each[end], first) for r, each in tables.edges.items()]
        )
        for end in (0, 1)
    )
    total = int(bounds[-1])
    edges = coo_array((np.ones(ends[0].size, np.int8), ends), shape=(total, total))
    _, component = connected_components(edges, directed=False)
    inside = component == np.argmax(np.bincount(component, minlength=1))
    return dict(zip(names, np.split(inside, bounds[1:-1]), strict=True))


def _global(
    tables: GraphTables, relation: Relation, end: int, ids: NDArray[Any], first: dict[str, int]
) -> NDArray[np.int64]:
    """Ids of one end of a relation's edges, counted over all types."""
    node_type = relation.dst if end else relation.src
    count = tables.counts[node_type]
    if ids.size and not 0 <= ids.min() <= ids.max() < count:
        raise GraphError(
            f"{relation}: expected ids of {node_type} in [0, {count}), given {ids.min()} to "
            f"{ids.max()}"
        )
    return ids.astype(np.int64) + first[node_type]
