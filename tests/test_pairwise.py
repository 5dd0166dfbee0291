"""The choice of combinations that tests run."""

from __future__ import annotations

import itertools

import pytest
from pairwise import pairwise


@pytest.mark.parametrize("sizes", [(3, 2), (9, 2, 2), (6, 4, 3), (5, 5, 4, 2), (2, 2, 2, 2, 2)])
def test_every_two_values_meet(sizes: tuple[int, ...]) -> None:
    kinds = [
        [f"{name}{i}" for i in range(size)] for name, size in zip("abcde", sizes, strict=False)
    ]
    found = pairwise(*kinds)
    assert len(set(found)) == len(found)
    assert all(each in kind for row in found for each, kind in zip(row, kinds, strict=True))
    met = {pair for row in found for pair in itertools.combinations(row, 2)}
    wanted = {pair for two in itertools.combinations(kinds, 2) for pair in itertools.product(*two)}
    assert wanted <= met
    largest = sorted(sizes)[-2:]
    assert largest[0] * largest[1] <= len(found) <= 2 * largest[0] * largest[1]
    assert pairwise(*kinds) == found
