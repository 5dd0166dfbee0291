"""Edges as what is predicted: which relations', and which edge is in which split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import SYNTHESIS, absorb_each, key_of
from hopper.errors import RequestError
from hopper.graph.importers.random_split import RandomSplit
from hopper.graph.importers.tables import GraphTables, target_relations
from hopper.graph.schema import Relation, relations_called

_STREAM: Final = int.from_bytes(b"links", "little")
ALL: Final = "all"


def set_link_targets(tables: GraphTables, words: Sequence[str]) -> None:
    """Let edges of some relations be what is predicted, and note what is dropped for it.

    Raises
    ------
    RequestError: a word names no relation, or several.
    """
    known = sorted(tables.edges)
    chosen = known if list(words) == [ALL] else [_find(word, known) for word in words]
    if not chosen or len(set(chosen)) < len(chosen):
        raise RequestError(
            f"--target: expected different relations of {', '.join(map(str, known))}; given "
            f"{', '.join(words)}"
        )
    if tables.splits and target_relations(tables) != tuple(chosen):
        tables.notes.append(
            f"splits of {tables.target} left out: edges of {', '.join(map(str, chosen))} are "
            "predicted"
        )
        tables.splits = {}
    tables.target, tables.also = chosen[0], tuple(chosen[1:])


def draw_link_split(
    split: RandomSplit, tables: GraphTables, seed: int
) -> dict[str, NDArray[np.int64]]:
    """Draw ``train``, ``val`` and ``test`` of all edges of the target relations.

    Edges between the same two nodes are in the same split, in whichever direction and of whichever
    of the relations they are: one would tell the other. Pairs are taken in the order of (variate
    of the pair, pair), so the split depends on nothing but seed and edges.

    Raises
    ------
    RequestError: numbers per class are asked for; edges have none.
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
        own = [
            ids.astype(np.int64) + firsts[types[name]]
            for name, ids in ((relation.src, src), (relation.dst, dst))
        ]
        ends.append(np.stack((np.minimum(*own), np.maximum(*own))))
    pairs = np.concatenate(ends, axis=1)
    low, high = (absorb_each(np.uint64(key_of(SYNTHESIS, _STREAM, seed)), each) for each in pairs)
    keys = absorb_each(np.uint64(0), (low ^ (high * np.uint64(3))).view(np.int64))
    order = np.lexsort((pairs[1], pairs[0], keys))
    # Where a new pair begins.
    begins = np.flatnonzero(np.any(np.diff(pairs[:, order], axis=1), axis=0)) + 1
    bounds = np.concatenate(([0], begins, [order.size]))
    wanted = [round(part * order.size) for part in (split.train, split.train + split.val)]
    parts = np.split(order, bounds[np.searchsorted(bounds, wanted)])
    names = ("train", "val", "test")
    return {name: np.sort(part).astype(np.int64) for name, part in zip(names, parts, strict=True)}


def _find(word: str, known: Sequence[Relation]) -> Relation:
    found = relations_called(word, known)
    if len(found) != 1:
        raise RequestError(
            f"--target: expected one of {', '.join(map(str, known))}, by its triple or by a name "
            f"that only one has; given {word!r}"
        )
    return found[0]
