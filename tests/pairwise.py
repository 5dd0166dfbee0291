"""Few combinations instead of all: every two values of different kinds meet in one of them.

A defect that takes three particular values at once can be missed; one that takes two can not. Where
a test runs fewer combinations than there are, it is these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any


def pairwise(*kinds: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each kind in which every two of them meet, the same ones every
    time; of two kinds all there are."""
    values = [list(kind) for kind in kinds]
    order = sorted(range(len(values)), key=lambda kind: -len(values[kind]))
    # Pairs that have not met yet, as (kind, place of its value) twice.
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(range(len(values)), 2)
        for i, j in itertools.product(range(len(values[a])), range(len(values[b])))
    }
    found = []
    while missing:
        chosen: dict[int, int] = dict(min(missing))
        for kind in order:
            if kind not in chosen:
                gains = [_gain(missing, chosen, kind, i) for i in range(len(values[kind]))]
                chosen[kind] = gains.index(max(gains))
        places = [chosen[kind] for kind in range(len(values))]
        missing -= set(itertools.combinations(enumerate(places), 2))
        found.append(tuple(own[place] for own, place in zip(values, places, strict=True)))
    return found


def _gain(
    missing: set[tuple[tuple[int, int], tuple[int, int]]],
    chosen: dict[int, int],
    kind: int,
    place: int,
) -> int:
    """How many pairs would meet that have not."""
    own = (kind, place)
    pairs: Sequence[Any] = [sorted((own, other)) for other in chosen.items()]
    return sum(tuple(pair) in missing for pair in pairs)
