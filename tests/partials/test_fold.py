"""Folding edges into partial sums leaves every destination's sum as it was."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.partials.fold import Folded, count_pairs, fold_edges, number_sums

RANKS = 3
Edges = tuple[np.ndarray, np.ndarray]


@st.composite
def relation(draw: st.DrawFn, destinations: int) -> Edges:
    """Draw indptr and source ids of the destinations' edges."""
    sizes = [draw(st.integers(0, 6)) for _ in range(destinations)]
    ids = draw(st.lists(st.integers(0, 11), min_size=sum(sizes), max_size=sum(sizes)))
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))), np.array(ids, np.int64)


@st.composite
def hops(draw: st.DrawFn) -> tuple[list[Edges], np.ndarray]:
    """Draw one or two relations into up to eight destinations, and whose edges to fold."""
    count = draw(st.integers(0, 8))
    relations = draw(st.lists(relation(count), min_size=1, max_size=2))
    folded = draw(st.lists(st.booleans(), min_size=RANKS, max_size=RANKS))
    return relations, np.array(folded)


@settings(deadline=None, max_examples=100)
@given(hops())
def test_every_destination_keeps_its_sum(hop: tuple[list[Edges], np.ndarray]) -> None:
    relations, folded = hop
    destinations = relations[0][0].size - 1
    rows = np.random.default_rng(0).normal(size=(len(relations), 12))
    reached, sums = np.zeros((destinations, RANKS), np.bool_), np.zeros(RANKS, np.int64)
    edges = [count_pairs(indptr, owners_of(ids), reached, sums) for indptr, ids in relations]
    assert sums.tolist() == reached.sum(0).tolist()
    numbers, total = number_sums(reached, folded), int(sums[folded].sum())
    assert sorted(numbers[numbers >= 0]) == list(range(total))
    expected, computed = np.zeros(destinations), np.zeros(destinations)
    partial, columns_of_sums = np.zeros(total), []
    for place, (indptr, ids) in enumerate(relations):
        assert edges[place].tolist() == np.bincount(owners_of(ids), minlength=RANKS).tolist()
        weights = 1.0 + np.arange(ids.size)
        np.add.at(expected, np.repeat(np.arange(destinations), np.diff(indptr)),
                  weights * rows[place][ids])  # fmt: skip
        first = 12 if place == 0 else -1
        own_edges = np.where(folded, edges[place], 0)
        left = Folded(
            *fold_edges(
                *(indptr, ids, ids, owners_of(ids), weights, folded, numbers, own_edges),
                *(first, total, np.empty(int(own_edges.sum()), np.int32)),
            )
        )
        # What the owners add up, rank after rank.
        assert left.sizes.tolist() == np.bincount(left.numbers, minlength=total).tolist()
        by_rank = np.split(left.numbers, np.cumsum(own_edges)[:-1])
        assert all((np.diff(numbers_of_rank) >= 0).all() for numbers_of_rank in by_rank)
        np.add.at(partial, left.numbers, left.sum_weights * rows[place][left.sources])
        for row, (start, stop) in enumerate(pairwise(left.indptr)):
            is_row = left.columns[start:stop] < 12
            assert (np.diff(is_row.astype(int)) <= 0).all()
            assert not folded[owners_of(left.columns[start:stop][is_row])].any()
            columns_of_sums += [(row, column - 12) for column in left.columns[start:stop][~is_row]]
            row_sum = (
                left.weights[start:stop][is_row] @ rows[place][left.columns[start:stop][is_row]]
            )
            computed[row] += row_sum
            assert (left.weights[start:stop][~is_row] == 1).all()
    assert sorted(number for _, number in columns_of_sums) == list(range(total))
    for row, number in columns_of_sums:
        computed[row] += partial[number]
    np.testing.assert_allclose(computed, expected, rtol=1e-12, atol=1e-12)


def owners_of(sources: np.ndarray) -> np.ndarray:
    return (sources % RANKS).astype(np.int16)
