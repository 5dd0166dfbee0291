"""Let messages flow both ways: symmetrise relations, or add reverse relations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.importers.tables import ArrayFeatures, GraphTables, target_relations
from hopper.graph.schema import Relation


def find_one_way(
    src: NDArray[Any], dst: NDArray[Any], count: int, times: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Find the edges without a counterpart: an edge (v, u) of its own for each edge (u, v).

    Of parallel edges, the first ones have counterparts. Where edges have times, a counterpart has
    the same time.

    Parameters
    ----------
    src, dst: [edges] ids in [0, count), of one node type.

    Returns
    -------
    Ascending indices of edges. With their reverses added, the relation has as many edges (v, u) as
    (u, v) for every pair.
    """
    keys = src.astype(np.int64) * count + dst
    reverse = dst.astype(np.int64) * count + src
    if times is not None:
        _, moment = np.unique(times, return_inverse=True)
        _, pair = np.unique(np.minimum(keys, reverse), return_inverse=True)
        swaps = (keys > reverse, reverse > keys)
        keys, reverse = ((2 * pair + swapped) * moment.size + moment for swapped in swaps)
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    occurrence = np.empty_like(order)
    occurrence[order] = np.arange(order.size) - np.searchsorted(ascending, ascending)
    counterparts = np.searchsorted(ascending, reverse, "right")
    counterparts -= np.searchsorted(ascending, reverse)
    return np.flatnonzero(occurrence >= counterparts)


def symmetrize_tables(tables: GraphTables) -> None:
    """Add the reverses of one-way edges to every relation within one node type, and note them.

    The given edges come first. A reverse edge gets the features, the weight, the time and the label
    of the edge that it reverses.

    Raises
    ------
    RequestError: the splits are ids of edges of such a relation.
    """
    for relation, (src, dst) in tables.edges.items():
        if relation.src != relation.dst:
            continue
        times = tables.times.get(relation)
        one_way = find_one_way(src, dst, tables.counts[relation.src], times)
        if not one_way.size:
            tables.notes.append(f"{relation}: already symmetric, left as it is")
            continue
        if relation in target_relations(tables) and tables.splits:
            raise RequestError(
                f"--symmetrize: the splits name edges of {relation}, and would leave out the "
                "reverses"
            )
        tables.edges[relation] = (
            np.concatenate((src, dst[one_way])),
            np.concatenate((dst, src[one_way])),
        )
        if relation in tables.edge_features:
            rows = np.concatenate([chunk for _, chunk in tables.edge_features[relation].chunks()])
            tables.edge_features[relation] = ArrayFeatures(_extend(rows, one_way))
        if relation in tables.weights:
            tables.weights[relation] = _extend(tables.weights[relation], one_way)
        if times is not None:
            tables.times[relation] = _extend(times, one_way)
        if relation in tables.labels:
            labels, values = tables.labels[relation]
            tables.labels[relation] = (labels, _extend(values, one_way))
        tables.notes.append(
            f"{relation}: {one_way.size} reverse edges added, {src.size + one_way.size} edges in "
            "all"
        )


def _extend(values: NDArray[Any], one_way: NDArray[np.int64]) -> NDArray[Any]:
    """Append to what edges have what the reverses of some get."""
    return np.concatenate((values, values[one_way]))


def add_reverse_relations(tables: GraphTables, *, skip_same_type: bool = False) -> None:
    """Give every relation ``rel`` its reverse, ``rev_rel``, with the same edge ids.

    Parameters
    ----------
    skip_same_type: skip relations within one node type, because they have been symmetrised.

    Raises
    ------
    RequestError: a reverse relation exists already.
    """
    relations = list(tables.edges)
    for relation in relations:
        if skip_same_type and relation.src == relation.dst:
            continue
        reverse = Relation(relation.dst, f"rev_{relation.rel}", relation.src)
        if reverse in tables.edges:
            raise RequestError(f"--add-reverse: {reverse} exists already")
        src, dst = tables.edges[relation]
        tables.edges[reverse] = (dst, src)
        if relation in tables.edge_features:
            tables.edge_features[reverse] = tables.edge_features[relation]
        if relation in tables.columns:
            tables.columns[reverse] = tables.columns[relation]
        if relation in tables.weights:
            tables.weights[reverse] = tables.weights[relation]
        if relation in tables.times:
            tables.times[reverse] = tables.times[relation]
    tables.notes.append(f"{len(tables.edges) - len(relations)} reverse relations added")
