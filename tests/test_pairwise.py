"""The combinations of values that tests run."""

import itertools

import pytest
from pairwise import pairwise


@pytest.mark.parametrize("sizes", [(3, 2), (9, 2, 2), (6, 4, 3), (5, 5, 4, 2), (2, 2, 2, 2, 2)])
def test_every_two_values_meet(sizes):
    kinds = [
        [f"{name}{i}" for i in range(size)] for name, size in zip("abcde", sizes, strict=False)
    ]
    combinations = pairwise(*kinds)
    assert len(set(combinations)) == len(combinations)
    assert all(
        value in kind for row in combinations for value, kind in zip(row, kinds, strict=True)
    )
    pairs = {
        pair for combination in combinations for pair in itertools.combinations(combination, 2)
    }
    wanted_pairs = {
        pair
        for two_kinds in itertools.combinations(kinds, 2)
        for pair in itertools.product(*two_kinds)
    }
    assert wanted_pairs <= pairs
    largest = sorted(sizes)[-2:]
    assert largest[0] * largest[1] <= len(combinations) <= 2 * largest[0] * largest[1]
    assert pairwise(*kinds) == combinations
