"""Choice of the own rows that are made before the rest, because other ranks wait for them."""

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
    """Own rows, renumbered where some of them are made first.

    Attributes
    ----------
    splits: by type, which rows are made first; absent for types that stay whole.
    rows: by kind, the rows to send. Of a split type they are numbered among the awaited rows,
        except where input rows travel.
    added: by relation, the rows that partial sums are made of, numbered in the same way.
    sizes: by type, how many rows they are numbered among.
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
    """Split the own rows of the types in ``wires.made_first``.

    A type stays whole if no rank waits for any of its rows, or if ranks wait for all of them.

    Parameters
    ----------
    sizes: by type, the number of own rows.
    rows, added: the fields of :class:`AwaitedFirst`, numbered among all own rows.
    """
    result = AwaitedFirst({}, dict(rows), dict(added), dict(sizes))
    for name in sorted(wires.made_first):
        kinds = [kind for kind in rows if source_type(kind) == name and kind not in wires.raw]
        relations = [relation for relation in added if relation.src == name]
        is_awaited = np.zeros(sizes[name], np.bool_)
        for places in (*map(rows.__getitem__, kinds), *map(added.__getitem__, relations)):
            is_awaited[places] = True
        awaited, rest = np.flatnonzero(is_awaited), np.flatnonzero(~is_awaited)
        if not awaited.size or not rest.size:
            continue
        index_among_awaited = np.cumsum(is_awaited) - 1
        result.splits[name] = Split(torch.from_numpy(awaited), torch.from_numpy(rest))
        result.rows.update({kind: index_among_awaited[rows[kind]] for kind in kinds})
        result.added.update(
            {relation: index_among_awaited[added[relation]] for relation in relations}
        )
        result.sizes[name] = awaited.size
    return result
