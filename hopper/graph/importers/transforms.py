"""Change a graph while it is imported: its targets, directions of edges and splits.

Splits are drawn as a pure function of seed and ids, or by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import SYNTHESIS, absorb_each, key_of
from hopper.errors import GraphError, RequestError
from hopper.graph.check_values import is_labelled
from hopper.graph.importers.tables import GraphTables
from hopper.graph.schema import Labels, Relation, find_relations

ALL: Final = "all"
"""The word for every relation as a target."""
_NODES, _LINKS = (int.from_bytes(name, "little") for name in (b"split", b"links"))
_NAMES: Final = ("train", "val", "test")

Splits = dict[str, NDArray[np.int64]]
"""Ascending ids by split."""


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


@dataclass(frozen=True)
class RandomSplit:
    """Numbers of training and validation nodes to draw; the other labelled nodes are for testing.

    Integers are nodes per class, as in the protocol of Shchur et al., "Pitfalls of Graph Neural
    Network Evaluation", section 4 (20 and 30). Fractions are shares of all labelled nodes. By time,
    the earliest nodes are for training and the latest for testing, and nodes of the same time stay
    together.
    """

    train: int | float
    val: int | float
    by_time: bool = False

    @classmethod
    def parse(cls, text: str) -> RandomSplit:
        """Parse ``random:20:30`` (nodes per class), ``random:0.6:0.2`` (fractions) or
        ``time:0.6:0.2``."""
        try:
            kind, first, second = text.split(":")
            train, val = (float(x) if "." in x else int(x) for x in (first, second))
        except ValueError:
            kind, train, val = "", 0, 0
        fractions = isinstance(train, float) and isinstance(val, float) and train + val <= 1
        counts = isinstance(train, int) and isinstance(val, int)
        is_known = (kind == "random" and (fractions or counts)) or (kind == "time" and fractions)
        if not is_known or train <= 0 or val < 0:
            raise RequestError(
                "--split: expected random:TRAIN:VAL, nodes per class (random:20:30) or fractions "
                "of the labelled nodes (random:0.6:0.2), or fractions in order of time "
                f"(time:0.6:0.2), given {text!r}"
            )
        return cls(train, val, by_time=kind == "time")


def draw_splits(tables: GraphTables, split: RandomSplit, seed: int) -> None:
    """Divide the labelled nodes or edges of the targets among ``train``, ``val`` and ``test``."""
    targets = tables.target_tables
    given = tables.join_splits()
    if given:
        raise RequestError(f"--split: the source has its own splits, {sorted(given)}")
    labels = [table.labels for table in targets if table.labels is not None]
    if not tables.target_relations and not labels:
        raise RequestError("--split: expected a target node type with labels")
    has_label = np.ones(sum(table.count for table in targets), np.bool_)
    if len(labels) == len(targets):
        has_label = np.concatenate([is_labelled(*of_table) for of_table in labels])
    if split.by_time:
        for target, table in zip(tables.targets, targets, strict=True):
            if table.times is None:
                raise RequestError(
                    f"--split: expected times of {target}, by which to split; it has none"
                )
        times = np.concatenate([table.times for table in targets if table.times is not None])
        ids = np.flatnonzero(has_label)
        order = ids[np.argsort(times[ids], kind="stable")]
        # What has the same time stays together.
        drawn = _divide(split, order, np.diff(times[order]) != 0)
    elif tables.target_relations:
        drawn = {n: ids[has_label[ids]] for n, ids in _draw_links(split, tables, seed).items()}
    else:
        drawn = draw_split(split, *labels[0], seed)
    tables.divide_splits(drawn)
    sizes = ", ".join(f"{ids.size} {name}" for name, ids in drawn.items())
    how = "by time" if split.by_time else f"drawn with seed {seed}"
    tables.notes.append(f"split {how}: {sizes}")


def draw_split(split: RandomSplit, labels: Labels, values: NDArray[Any], seed: int) -> Splits:
    """Divide labelled nodes, in the order of (variate of the node, node), so that the split depends
    on seed, labels and ids alone."""
    ids = np.flatnonzero(is_labelled(labels, values)).astype(np.int64)
    keys = absorb_each(np.uint64(key_of(SYNTHESIS, _NODES, seed)), ids)
    order = ids[np.lexsort((ids, keys))]
    if isinstance(split.train, float):
        return _divide(split, order, np.ones(max(0, order.size - 1), np.bool_))
    if labels.kind != "class":
        raise RequestError(
            f"--split: nodes per class need class labels, given {labels.kind} labels; "
            "ask for fractions (random:0.6:0.2)"
        )
    train, val = int(split.train), int(split.val)
    parts = []
    for label in range(labels.classes):
        nodes = order[values[order] == label]
        if nodes.size < train + val:
            raise RequestError(
                f"--split: class {label}: expected at least {train} + {val} nodes, "
                f"given {nodes.size}"
            )
        parts.append(np.split(nodes, [train, train + val]))
    return _name_parts([np.concatenate(of_split) for of_split in zip(*parts, strict=True)])


def _draw_links(split: RandomSplit, tables: GraphTables, seed: int) -> Splits:
    """Divide the edges of the target relations in the order of (variate of the pair, pair). All
    between two nodes, in any direction and relation, share a split: one would reveal another."""
    if not isinstance(split.train, float):
        raise RequestError(
            "--split: edges have no classes, given a number of each; ask for fractions "
            "(random:0.85:0.05)"
        )
    # Nodes of each type are numbered after those of the types before it.
    counts = {name: tables.nodes[name].count for name in sorted(tables.nodes)}
    first = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    edges = [(of, tables.edges[of]) for of in tables.target_relations]
    src = np.concatenate([table.src.astype(np.int64) + first[of.src] for of, table in edges])
    dst = np.concatenate([table.dst.astype(np.int64) + first[of.dst] for of, table in edges])
    pairs = np.stack((np.minimum(src, dst), np.maximum(src, dst)))
    low, high = (absorb_each(np.uint64(key_of(SYNTHESIS, _LINKS, seed)), ids) for ids in pairs)
    keys = absorb_each(np.uint64(0), (low ^ (high * np.uint64(3))).view(np.int64))
    order = np.lexsort((pairs[1], pairs[0], keys))
    return _divide(split, order, np.any(np.diff(pairs[:, order], axis=1), axis=0))


def _divide(split: RandomSplit, order: NDArray[np.int64], ends: NDArray[np.bool_]) -> Splits:
    """Divide ids in an order by fractions, only behind those [n - 1] where a group ends."""
    bounds = np.concatenate(([0], np.flatnonzero(ends) + 1, [order.size]))
    shares = (split.train, split.train + split.val)
    cuts = np.searchsorted(bounds, [round(share * order.size) for share in shares])
    return _name_parts(np.split(order, bounds[cuts]))


def _name_parts(parts: list[NDArray[Any]]) -> Splits:
    """Name the parts ``train``, ``val`` and ``test``, and sort each."""
    return {n: np.sort(ids).astype(np.int64) for n, ids in zip(_NAMES, parts, strict=True)}
