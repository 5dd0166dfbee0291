"""Which own rows are made before the rest, because other ranks wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from hopper.graph.schema import Relation
from hopper.partials.frontiers import Ids
from hopper.partials.plan import Split
from hopper.partials.wire import RowKind, Wires, source_type


class AwaitedFirst(NamedTuple):
    """Own rows as they are numbered where some are made first.

    splits: by type that is split. rows, added: by kind and by relation, the rows that go out and
    those that sums are made of; of a type that is split they count among the awaited ones, unless
    input rows go out. sizes: by type, how many rows they count among.
    """

    splits: dict[str, Split]
    rows: dict[RowKind, Ids]
    added: dict[Relation, Ids]
    sizes: dict[str, int]


def make_awaited_first(
    wires: Wires,
    sizes: Mapping[str, int],
    rows: Mapping[RowKind, Ids],
    added: Mapping[Relation, Ids],
) -> AwaitedFirst:
    """Split the own rows of the types that wires name for it.

    A type stays whole where nobody waits for any of its rows, or somebody for each.

    Parameters
    ----------
    sizes: by type, the number of own rows.
    rows, added: as of :class:`AwaitedFirst`, all among own rows.
    """
    found = AwaitedFirst({}, dict(rows), dict(added), dict(sizes))
    for name in sorted(wires.made_first):
        kinds = [kind for kind in rows if source_type(kind) == name and kind not in wires.raw]
        relations = [each for each in added if each.src == name]
        is_awaited = np.zeros(sizes[name], np.bool_)
        for places in (*map(rows.__getitem__, kinds), *map(added.__getitem__, relations)):
            is_awaited[places] = True
        awaited, rest = np.flatnonzero(is_awaited), np.flatnonzero(~is_awaited)
        if not awaited.size or not rest.size:
            continue
        number = np.cumsum(is_awaited) - 1
        found.splits[name] = Split(torch.from_numpy(awaited), torch.from_numpy(rest))
        found.rows.update({kind: number[rows[kind]] for kind in kinds})
        found.added.update({each: number[added[each]] for each in relations})
        found.sizes[name] = awaited.size
    return found
