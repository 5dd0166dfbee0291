"""Few combinations of values instead of all, such that every two values meet in one of them.

Tests that run these combinations find every defect that needs two particular values. They can miss
one that needs three.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any


def pairwise(*kinds: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of one value of each kind, such that every two values of different kinds meet.

    The result is always the same. With two kinds it holds all combinations.
    """
    values = [list(kind) for kind in kinds]
    order = sorted(range(len(values)), key=lambda kind: -len(values[kind]))
    # Pairs of values that have not met yet; a value is (kind, its index).
    missing = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(range(len(values)), 2)
        for i, j in itertools.product(range(len(values[a])), range(len(values[b])))
    }
    combinations = []
    while missing:
        chosen: dict[int, int] = dict(min(missing))
        for kind in order:
            if kind not in chosen:
                gains = [_gain(missing, chosen, kind, i) for i in range(len(values[kind]))]
                chosen[kind] = gains.index(max(gains))
        indices = [chosen[kind] for kind in range(len(values))]
        missing -= set(itertools.combinations(enumerate(indices), 2))
        combinations.append(
            tuple(kind_values[index] for kind_values, index in zip(values, indices, strict=True))
        )
    return combinations


def _gain(
    missing: set[tuple[tuple[int, int], tuple[int, int]]],
    chosen: dict[int, int],
    kind: int,
    index: int,
) -> int:
    """How many missing pairs a value would add to the chosen ones."""
    value = (kind, index)
    pairs: Sequence[Any] = [sorted((value, chosen_value)) for chosen_value in chosen.items()]
    return sum(tuple(pair) in missing for pair in pairs)
