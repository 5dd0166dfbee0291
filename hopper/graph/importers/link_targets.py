"""Choose the relations whose links are predicted, and divide their edges among splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import SYNTHESIS, absorb_each, key_of
from hopper.errors import RequestError
from hopper.graph.importers.random_split import RandomSplit
from hopper.graph.importers.tables import GraphTables, target_relations
from hopper.graph.schema import Relation, find_relations

_STREAM: Final = int.from_bytes(b"links", "little")
ALL: Final = "all"


def set_link_targets(tables: GraphTables, words: Sequence[str]) -> None:
    """Make some relations the target; drop the splits of another target, and note it.

    Raises
    ------
    RequestError: a word names no relation, or several.
    """
    relations = sorted(tables.edges)
    targets = relations if list(words) == [ALL] else [_find(word, relations) for word in words]
    if not targets or len(set(targets)) < len(targets):
        raise RequestError(
            f"--target: expected different relations of {', '.join(map(str, relations))}; given "
            f"{', '.join(words)}"
        )
    if tables.splits and target_relations(tables) != tuple(targets):
        tables.notes.append(
            f"splits of {tables.target} left out: edges of {', '.join(map(str, targets))} are "
            "predicted"
        )
        tables.splits = {}
    tables.target, tables.also = targets[0], tuple(targets[1:])


def draw_link_split(
    split: RandomSplit, tables: GraphTables, seed: int
) -> dict[str, NDArray[np.int64]]:
    """Divide the edges of the target relations among ``train``, ``val`` and ``test`` at random.

    All edges between the same two nodes are in the same split, whatever their direction and
    relation, because one would reveal the other. Pairs are taken in the order of (variate of the
    pair, pair), so the split depends on seed and edges alone.

    Raises
    ------
    RequestError: numbers per class are asked for, but edges have no classes.
    """
    if not isinstance(split.train, float):
        raise RequestError(
            "--split: edges have no classes, given a number of each; ask for fractions "
            "(random:0.85:0.05)"
        )
    types = {name: number for number, name in enumerate(sorted(tables.counts))}
    firsts = np.cumsum([0, *(tables.counts[name] for name in types)])
    ends = []
    for relation in target_relations(tables):
        src, dst = tables.edges[relation]
        numbers = [
            ids.astype(np.int64) + firsts[types[name]]
            for name, ids in ((relation.src, src), (relation.dst, dst))
        ]
        ends.append(np.stack((np.minimum(*numbers), np.maximum(*numbers))))
    pairs = np.concatenate(ends, axis=1)
    low, high = (absorb_each(np.uint64(key_of(SYNTHESIS, _STREAM, seed)), ids) for ids in pairs)
    keys = absorb_each(np.uint64(0), (low ^ (high * np.uint64(3))).view(np.int64))
    order = np.lexsort((pairs[1], pairs[0], keys))
    first_of_pair = np.flatnonzero(np.any(np.diff(pairs[:, order], axis=1), axis=0)) + 1
    bounds = np.concatenate(([0], first_of_pair, [order.size]))
    ideal = [round(share * order.size) for share in (split.train, split.train + split.val)]
    splits = np.split(order, bounds[np.searchsorted(bounds, ideal)])
    names = ("train", "val", "test")
    return {name: np.sort(ids).astype(np.int64) for name, ids in zip(names, splits, strict=True)}


def _find(word: str, relations: Sequence[Relation]) -> Relation:
    matches = find_relations(word, relations)
    if len(matches) != 1:
        raise RequestError(
            f"--target: expected one of {', '.join(map(str, relations))}, by its triple or by a "
            f"name that only one has; given {word!r}"
        )
    return matches[0]
