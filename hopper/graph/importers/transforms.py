"""Change a graph while it is imported: its targets, directions of edges, and components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.tables import GraphTables, join_ends
from hopper.graph.schema import Labels, Relation, find_relations

ALL: Final = "all"
"""The word for every relation as a target."""


def set_link_targets(tables: GraphTables, words: Sequence[str]) -> None:
    """Make some relations the targets; note that splits of other targets are left out."""
    relations = sorted(tables.edges)
    given = [find_relations(word, relations) for word in words]
    if list(words) == [ALL]:
        given = [[relation] for relation in relations]
    targets = tuple(relation for matches in given for relation in matches)
    is_clear = all(len(matches) == 1 for matches in given) and len(set(targets)) == len(targets)
    if not targets or not is_clear:
        raise RequestError(
            f"--target: expected different relations, each one of {', '.join(map(str, relations))}"
            f" by its triple or by a name that only one has; given {', '.join(words)}"
        )
    if tables.targets != targets:
        if tables.join_splits():
            tables.notes.append(
                f"splits of {', '.join(map(str, tables.targets))} left out: edges of "
                f"{', '.join(map(str, targets))} are predicted"
            )
        for table in tables.all.values():
            table.splits = None
    tables.targets = targets


def find_one_way(
    src: NDArray[Any], dst: NDArray[Any], count: int, times: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Find the edges without a counterpart: an edge (v, u) of its own for each edge (u, v).

    Of parallel edges, the first ones have counterparts. Where edges have times, a counterpart has
    the same time. With the reverses of the edges that are returned, ascending, there are as many
    edges (v, u) as (u, v) for every pair.
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


def symmetrize(tables: GraphTables) -> None:
    """Add the reverses of one-way edges to every relation within one node type, and note them.

    The given edges come first. A reverse edge gets all that the edge has which it reverses.
    """
    for relation, table in tables.edges.items():
        if relation.src != relation.dst:
            continue
        nodes = tables.nodes[relation.src].count
        one_way = find_one_way(table.src, table.dst, nodes, table.times)
        if not one_way.size:
            tables.notes.append(f"{relation}: already symmetric, left as it is")
            continue
        if relation in tables.targets and table.splits:
            raise RequestError(
                f"--symmetrize: the splits name edges of {relation}, and would leave out the "
                "reverses"
            )
        both = tables.edges[relation] = table.extend(one_way)
        added = slice(table.count, None)
        both.src[added], both.dst[added] = table.dst[one_way], table.src[one_way]
        tables.notes.append(
            f"{relation}: {one_way.size} reverse edges added, {both.count} edges in all"
        )


def add_reverse_relations(tables: GraphTables, *, skip_same_type: bool = False) -> None:
    """Give every relation ``rel`` its reverse, ``rev_rel``, with the same edge ids."""
    relations = dict(tables.edges)
    for relation, table in relations.items():
        if skip_same_type and relation.src == relation.dst:
            continue
        reverse = Relation(relation.dst, f"rev_{relation.rel}", relation.src)
        if reverse in tables.edges:
            raise RequestError(f"--add-reverse: {reverse} exists already")
        tables.edges[reverse] = replace(
            table, src=table.dst, dst=table.src, labels=None, classes={}, splits=None
        )
    tables.notes.append(f"{len(tables.edges) - len(relations)} reverse relations added")


def keep_largest_component(tables: GraphTables) -> None:
    """Keep only the largest weakly connected component, over the edges of all relations; of equally
    large ones that with the first node. Nodes and edges keep their order and get new numbers."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    src, dst, bounds = join_ends(tables, tables.edges, tables.nodes)
    edges = coo_array((np.ones(src.size, np.int8), (src, dst)), shape=(bounds[-1], bounds[-1]))
    _, component = connected_components(edges, directed=False)
    inside = component == np.argmax(np.bincount(component, minlength=1))
    kept = dict(zip(tables.nodes, np.split(inside, bounds[1:-1]), strict=True))
    number = {name: np.cumsum(mask) - 1 for name, mask in kept.items()}
    for relation, table in tables.edges.items():
        # Both ends of an edge are in one component.
        inner = tables.edges[relation] = table.filter(kept[relation.src][table.src])
        inner.src, inner.dst = number[relation.src][inner.src], number[relation.dst][inner.dst]
    for name, table in tables.nodes.items():
        tables.nodes[name] = table.filter(kept[name])
    removed = inside.size - np.count_nonzero(inside)
    tables.notes.append(f"{removed} nodes outside the largest connected component left out")


def align_classes(tables: GraphTables) -> None:
    """Give all target relations whose labels are classes the same classes."""
    labels, names = dict[Relation, tuple[Labels, NDArray[Any]]](), dict[Relation, list[str]]()
    for relation in tables.target_relations:
        table = tables.edges[relation]
        if table.labels is not None:
            labels[relation] = table.labels
            if "" in table.classes:
                names[relation] = table.classes[""]
    if len(labels) < 2 or {kind.kind for kind, _ in labels.values()} != {"class"}:
        return
    if names and len(names) < len(labels):
        without = next(relation for relation in labels if relation not in names)
        raise GraphError(
            f"labels of {without}: expected texts, as in other relations that are predicted"
        )
    joined = sorted({name for of_relation in names.values() for name in of_relation})
    classes = max(len(joined), *(kind.classes for kind, _ in labels.values()))
    for relation, (_, values) in labels.items():
        table = tables.edges[relation]
        if names:
            numbers = np.append(np.searchsorted(joined, names[relation]), -1)
            values, table.classes[""] = numbers[values].astype(np.int64), joined
        table.labels = Labels("class", classes), values
