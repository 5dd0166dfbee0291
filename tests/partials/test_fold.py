"""Folding edges into partial sums leaves every destination's sum as it was."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.partials.fold import count_pairs, fold_edges

RANKS = 3


@st.composite
def hops(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """indptr, source ids and owners of up to eight destinations' edges, and whom to fold."""
    sizes = draw(st.lists(st.integers(0, 6), max_size=8))
    indptr = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    ids = draw(st.lists(st.integers(0, 11), min_size=sum(sizes), max_size=sum(sizes)))
    sources = np.array(ids, np.int64)
    folded = np.array(draw(st.lists(st.booleans(), min_size=RANKS, max_size=RANKS)))
    return indptr, sources, (sources % RANKS).astype(np.int16), folded


@settings(deadline=None, max_examples=100)
@given(hops())
def test_every_destination_keeps_its_sum(hop: tuple[np.ndarray, ...]) -> None:
    indptr, sources, owners, folded = hop
    edges, sums = count_pairs(indptr, owners, RANKS)
    assert edges.tolist() == np.bincount(owners, minlength=RANKS).tolist()
    weights = 1.0 + np.arange(sources.size)
    rows = np.random.default_rng(0).normal(size=12)
    new_indptr, columns, new_weights, sizes, sum_sources, sum_weights = fold_edges(
        indptr, sources, sources, owners, weights, folded, edges, sums
    )
    assert sizes.size == sums[folded].sum()
    assert sum_sources.size == sizes.sum() == edges[folded].sum()
    # What the owners would add up, rank after rank.
    bounds = np.concatenate(([0], np.cumsum(sizes)))
    partial = [float(sum_weights[a:b] @ rows[sum_sources[a:b]]) for a, b in pairwise(bounds)]
    partial_rank = np.repeat(np.flatnonzero(folded), sums[folded])
    for a, b in pairwise(bounds):
        assert len(set(owners_of(sum_sources[a:b]))) == 1
    used = []
    for row in range(indptr.size - 1):
        expected = (
            weights[indptr[row] : indptr[row + 1]] @ rows[sources[indptr[row] : indptr[row + 1]]]
        )
        found, ranks = 0.0, []
        for edge in range(new_indptr[row], new_indptr[row + 1]):
            column = columns[edge]
            if column < 0:
                assert new_weights[edge] == 1
                used.append(-1 - column)
                ranks.append(partial_rank[-1 - column])
            else:
                assert not folded[owners_of(column)]
            found += new_weights[edge] * (partial[-1 - column] if column < 0 else rows[column])
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert ranks == sorted(set(ranks))
    assert sorted(used) == list(range(sizes.size))


def owners_of(sources: np.ndarray) -> np.ndarray:
    return sources % RANKS
