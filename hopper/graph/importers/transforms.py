"""Change a graph while it is imported: its targets, directions of edges, and components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError, RequestError
from hopper.graph.importers.tables import GraphTables
from hopper.graph.schema import Labels, Relation, find_relations

ALL: Final = "all"
"""The word for every relation as a target."""


def set_link_targets(tables: GraphTables, words: Sequence[str]) -> None:
    """Make some relations the targets; note that splits of other targets are left out."""
    relations = sorted(tables.edges)
    given = [relations] if list(words) == [ALL] else [find_relations(w, relations) for w in words]
    targets = tuple(relation for matches in given for relation in matches)
    one_each = list(words) == [ALL] or all(len(matches) == 1 for matches in given)
    if not targets or not one_each or len(set(targets)) < len(targets):
        raise RequestError(
            f"--target: expected different relations, each one of {', '.join(map(str, relations))}"
            f" by its triple or by a name that only one has; given {', '.join(words)}"
        )
    if tables.targets != targets and tables.join_splits():
        tables.notes.append(
            f"splits of {', '.join(map(str, tables.targets))} left out: edges of "
            f"{', '.join(map(str, targets))} are predicted"
        )
    if tables.targets != targets:
        for table in tables.all.values():
            table.splits = None
    tables.targets = targets


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
    """Keep only the largest weakly connected component, over the edges of all relations.

    Of components of equal size, the one with the first node stays. Nodes and edges keep their order
    and get new numbers.
    """
    kept = _find_largest(tables)
    removed = sum(int(mask.size - np.count_nonzero(mask)) for mask in kept.values())
    number = {name: np.cumsum(mask) - 1 for name, mask in kept.items()}
    for relation, table in tables.edges.items():
        # Both ends of an edge are in one component.
        edges = tables.edges[relation] = table.filter(kept[relation.src][table.src])
        edges.src, edges.dst = number[relation.src][edges.src], number[relation.dst][edges.dst]
    for name, table in tables.nodes.items():
        tables.nodes[name] = table.filter(kept[name])
    tables.notes.append(f"{removed} nodes outside the largest connected component left out")


def _find_largest(tables: GraphTables) -> dict[str, NDArray[np.bool_]]:
    """Mark the nodes of the largest component, [count] bool by node type."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = list(tables.nodes)
    bounds = np.cumsum([0, *(table.count for table in tables.nodes.values())])
    first = dict(zip(names, bounds[:-1].tolist(), strict=True))
    src, dst = (
        np.concatenate([np.empty(0, np.int64), *ends])
        for ends in (
            [table.src.astype(np.int64) + first[r.src] for r, table in tables.edges.items()],
            [table.dst.astype(np.int64) + first[r.dst] for r, table in tables.edges.items()],
        )
    )
    total = int(bounds[-1])
    edges = coo_array((np.ones(src.size, np.int8), (src, dst)), shape=(total, total))
    _, component = connected_components(edges, directed=False)
    inside = component == np.argmax(np.bincount(component, minlength=1))
    return dict(zip(names, np.split(inside, bounds[1:-1]), strict=True))


def align_classes(tables: GraphTables) -> None:
    """Give all target relations whose labels are classes the same classes."""
    labelled = [(r, t) for r in tables.target_relations if (t := tables.edges[r]).labels]
    if len(labelled) < 2:
        return
    kinds = {table.labels[0].kind for _, table in labelled if table.labels}
    if not any("" in table.classes for _, table in labelled):
        if kinds == {"class"}:
            classes = max(table.labels[0].classes for _, table in labelled if table.labels)
            for _, table in labelled:
                table.labels = table.labels and (Labels("class", classes), table.labels[1])
        return
    for relation, table in labelled:
        if "" not in table.classes:
            raise GraphError(
                f"labels of {relation}: expected texts, as in other relations that are predicted"
            )
    names = sorted({name for _, table in labelled for name in table.classes[""]})
    for _, table in labelled:
        assert table.labels is not None
        numbers = np.append(np.searchsorted(names, table.classes[""]), -1)
        values = numbers[table.labels[1]].astype(np.int64)
        table.labels = (Labels("class", max(1, len(names))), values)
        table.classes[""] = names
