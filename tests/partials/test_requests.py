"""What ranks ask each other for: every sum over a destination's edges stays as it was."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.graph.schema import Relation
from hopper.micrograph.frontiers import HashTable
from hopper.micrograph.subgraph import HopEdges
from hopper.partials import LayerTransfer, RowLayout, Sums
from hopper.partials.requests import AskedSums, HopRequests, sort_sources

RANKS, NODES = 3, 12
RELATIONS = Relation("author", "writes", "paper"), Relation("author", "likes", "paper")
Drawn = dict[Relation, HopEdges]


@st.composite
def edges(draw: st.DrawFn, destinations: int) -> HopEdges:
    sizes = [draw(st.integers(0, 6)) for _ in range(destinations)]
    ids = draw(st.lists(st.integers(0, NODES - 1), min_size=sum(sizes), max_size=sum(sizes)))
    indptr = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    return HopEdges(indptr, np.array(ids, np.int64), np.empty(0, np.int64))


@st.composite
def hops(draw: st.DrawFn) -> Drawn:
    """Draw one or two relations into up to eight destinations."""
    count = draw(st.integers(0, 8))
    return {relation: draw(edges(count)) for relation in RELATIONS[: draw(st.integers(1, 2))]}


def owners_of(versions: np.ndarray) -> np.ndarray:
    return (versions % RANKS).astype(np.int16)


def ask(drawn: Drawn, sum_bytes: int, row_bytes: int = 64, merged: bool = False) -> HopRequests:
    """Make rank 0's requests for rows of authors, or for sums of them."""
    layouts = {
        "author": RowLayout((1,), row_bytes, True),
        Sums("paper"): RowLayout((1,), sum_bytes, True),
    }
    return request_hop(drawn, layouts, merged)


def request_hop(drawn: Drawn, layouts: Any, merged: bool = False) -> HopRequests:
    transfer = LayerTransfer(layouts, frozenset(), frozenset(), merged, 4)
    of_edges = np.concatenate([hop.indices for hop in drawn.values()])
    sources = {"author": sort_sources(of_edges, HashTable(), RANKS, owners_of)}
    sizes = {relation.dst: hop.indptr.size - 1 for relation, hop in drawn.items()}
    sizes["author"] = 0
    return HopRequests(drawn, sizes, sources, transfer, 0, RANKS, np.dtype(np.int32))


def add(indptr: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.array([values[start:stop].sum() for start, stop in pairwise(indptr)])


@settings(deadline=None, max_examples=100)
@given(hops(), st.sampled_from([1, 80, 100_000]), st.booleans())
def test_every_destination_keeps_its_sum(drawn, sum_bytes, merged):
    hop = ask(drawn, sum_bytes, merged=merged)
    versions = hop.sources["author"].versions
    rows = np.random.default_rng(0).normal(size=(2, NODES))
    weights = {relation: 1.0 + np.arange(edges.indices.size) for relation, edges in drawn.items()}
    folded = {relation: hop.fold(relation, weights[relation]) for relation in drawn}
    lengths = hop.count_sums("paper")
    assert lengths[0] == 0
    # Every owner decodes its requests, and adds up.
    sums = []
    for rank in range(RANKS):
        requests = {relation: [folded[relation].requests[rank]] for relation in drawn}
        asked = AskedSums.read(requests, np.dtype(np.float64), np.dtype(np.int32))
        assert asked.lengths == [lengths[rank]]
        of_rank = np.zeros(lengths[rank])
        for number, relation in enumerate(drawn):
            if relation in asked.sources:
                assert (owners_of(asked.sources[relation]) == rank).all()
                values = rows[number][asked.sources[relation]] * asked.weights[relation]
                of_rank += add(asked.indptr[relation], values)
        sums.append(of_rank)
    received, computed = np.concatenate(sums), 0.0
    for number, relation in enumerate(drawn):
        left = folded[relation]
        assert left.sums == (0 if merged or number else received.size)
        columns = np.concatenate((rows[number][versions], received[: left.sums]))
        computed += add(left.left.indptr, columns[left.left.indices] * left.weights)
        kept = left.left.indices[left.left.indices < versions.size]
        assert not hop.folded["paper"][owners_of(versions[kept])].any()
    if merged:
        np.add.at(computed, hop.ends_of_sums("paper"), received)
    expected = sum(
        add(edges.indptr, rows[number][edges.indices] * weights[relation])
        for number, (relation, edges) in enumerate(drawn.items())
    )
    np.testing.assert_allclose(computed, expected, rtol=1e-12, atol=1e-12)
    # Rows that are still read of others, and no more, are asked for.
    wanted = hop.wanted("author")
    read = [versions[f.left.indices[f.left.indices < versions.size]] for f in folded.values()]
    remote = np.unique(np.concatenate(read))
    assert set(wanted.versions) == set(remote[owners_of(remote) > 0])
    asked = np.bincount(owners_of(wanted.versions), minlength=RANKS)
    assert np.diff(wanted.bounds).tolist() == asked.tolist()


@pytest.mark.parametrize(
    ("row_bytes", "sums_from"),
    # Rank 1: three rows or one sum of three edges. Rank 2: one row or two sums of one edge each.
    [(8, []), (100, [1]), (10_000, [1])],
)
def test_each_rank_answers_in_the_fewest_bytes(row_bytes, sums_from):
    edges = HopEdges(np.array([0, 4, 6]), np.array([1, 4, 7, 2, 2, 0]), np.empty(0, np.int64))
    hop = ask({RELATIONS[0]: edges}, sum_bytes=row_bytes, row_bytes=row_bytes)
    assert np.flatnonzero(hop.folded["paper"]).tolist() == sums_from


def test_sums_for_all_types_save_rows_that_several_types_read():
    edges = HopEdges(np.array([0, 3]), np.array([1, 4, 7]), np.empty(0, np.int64))
    layout = RowLayout((16,), 128, True)
    hop = request_hop(
        {RELATIONS[0]: edges, Relation("author", "in", "club"): edges},
        {"author": layout, Sums("club"): layout, Sums("paper"): layout},
    )
    # One type alone would save no row: two sums replace three rows.
    folded = {name: np.flatnonzero(ranks).tolist() for name, ranks in hop.folded.items()}
    assert folded == {"club": [1], "paper": [1]}
    assert hop.wanted("author").versions.size == 0
