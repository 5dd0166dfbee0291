"""Let messages flow both ways: symmetrise relations, or add reverse relations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.importers.tables import ArrayFeatures, GraphTables, target_relations
from hopper.graph.schema import Relation


@dataclass(frozen=True)
class Symmetrized:
    """A symmetrised edge list.

    The distinct edges of the input come first, in the order of their first occurrence. The reverse
    edges that were missing follow.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    origin: NDArray[np.int64]
    """[edges], the index of the input edge that each edge is or reverses"""
    added: int
    duplicates: int


def symmetrize(src: NDArray[Any], dst: NDArray[Any], count: int) -> Symmetrized | None:
    """Add the reverse of every edge and remove duplicates.

    Parameters
    ----------
    src, dst: [edges] ids in [0, count), of one node type.

    Returns
    -------
    The new edge list, or None if the input is symmetric: it has as many edges (v, u) as (u, v) for
    every pair.
    """
    source, target = src.astype(np.int64), dst.astype(np.int64)
    keys, reverse = source * count + target, target * count + source
    if np.array_equal(np.sort(keys), np.sort(reverse)):
        return None
    distinct, first = np.unique(keys, return_index=True)
    originals = np.sort(first)
    index = np.minimum(np.searchsorted(distinct, reverse[originals]), distinct.size - 1)
    one_way = originals[distinct[index] != reverse[originals]]
    return Symmetrized(
        src=np.concatenate((source[originals], target[one_way])),
        dst=np.concatenate((target[originals], source[one_way])),
        origin=np.concatenate((originals, one_way)),
        added=one_way.size,
        duplicates=keys.size - originals.size,
    )


def symmetrize_tables(tables: GraphTables) -> None:
    """Symmetrise every relation within one node type, and note the changes.

    A reverse edge gets the features, the weight, the time and the label of the edge it reverses.

    Raises
    ------
    RequestError: the splits are ids of edges of such a relation.
    """
    for relation, (src, dst) in tables.edges.items():
        if relation.src != relation.dst:
            continue
        result = symmetrize(src, dst, tables.counts[relation.src])
        if result is None:
            tables.notes.append(f"{relation}: already symmetric, left as it is")
            continue
        if relation in target_relations(tables) and tables.splits:
            raise RequestError(
                f"--symmetrize: the splits are edge ids of {relation}, which would change"
            )
        tables.edges[relation] = (result.src, result.dst)
        if relation in tables.edge_features:
            rows = np.concatenate([chunk for _, chunk in tables.edge_features[relation].chunks()])
            tables.edge_features[relation] = ArrayFeatures(rows[result.origin])
        if relation in tables.weights:
            tables.weights[relation] = tables.weights[relation][result.origin]
        if relation in tables.times:
            tables.times[relation] = tables.times[relation][result.origin]
        if relation in tables.labels:
            labels, values = tables.labels[relation]
            tables.labels[relation] = (labels, values[result.origin])
        tables.notes.append(
            f"{relation}: {result.added} reverse edges added, "
            f"{result.duplicates} duplicates removed, {result.src.size} edges in all"
        )


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
