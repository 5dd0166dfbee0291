"""Which rank owns which node: every function of a placement must follow one rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import GraphError
from hopper.partition import PartitionBook
from hopper.partition.id_index import Index
from hopper.partition.placement import ByLocality, Dealing, Placement, RoundRobin

without_deadline = settings(deadline=None, max_examples=60)


@st.composite
def placements(draw: st.DrawFn, *, even: bool = False) -> Placement:
    counts = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    offsets, ranks = [0, *np.cumsum(counts).tolist()], draw(st.integers(1, 4))
    book = PartitionBook(len(counts), {"a": offsets})
    dealings: list[Dealing] = [RoundRobin()]
    if not even:
        rank = st.integers(0, ranks - 1)
        ranks_of_nodes = draw(st.lists(rank, min_size=offsets[-1], max_size=offsets[-1]))
        dealings.append(ByLocality(book, {"a": np.array(ranks_of_nodes, np.uint16)}))
    return Placement(book, ranks, draw(st.sampled_from(dealings)))


@without_deadline
@given(placements())
def test_every_node_has_one_rank_on_its_server(placement: Placement) -> None:
    all_nodes = np.arange(placement.book.total("a"))
    owners = placement.rank_of("a", all_nodes)
    assert (owners // placement.ranks_per_server == placement.book.home("a", all_nodes)).all()
    for rank in range(placement.world):
        own_nodes = placement.owned("a", rank)
        assert own_nodes.tolist() == np.flatnonzero(owners == rank).tolist()
        assert placement.place_of("a", own_nodes).tolist() == list(range(own_nodes.size))


@without_deadline
@given(placements(even=True))
def test_shares_of_a_server_are_even(placement: Placement) -> None:
    shares = [placement.owned("a", rank).size for rank in range(placement.world)]
    for server in range(placement.book.servers):
        first = server * placement.ranks_per_server
        server_shares = shares[first : first + placement.ranks_per_server]
        assert max(server_shares) - min(server_shares) <= 1


@without_deadline
@given(placements(), st.integers(0, 99))
def test_the_owner_of_a_node_does_not_depend_on_the_others(placement: Placement, seed: int) -> None:
    all_nodes = np.arange(placement.book.total("a"))
    half = np.random.default_rng(seed).permutation(all_nodes)[: all_nodes.size // 2]
    assert (placement.rank_of("a", half) == placement.rank_of("a", all_nodes)[half]).all()


@without_deadline
@given(placements(), st.integers(0, 99))
def test_nodes_are_dealt_to_their_owners_and_found_again(placement: Placement, seed: int) -> None:
    all_nodes = np.arange(placement.book.total("a"))
    half = np.sort(np.random.default_rng(seed).permutation(all_nodes)[: all_nodes.size // 2])
    dealt = placement.deal("a", half)
    assert sorted(dealt.nodes.tolist()) == half.tolist()
    assert dealt.counts == [part.size for part in dealt.parts()]
    for rank, part in enumerate(dealt.parts()):
        assert part.tolist() == dealt.of(rank).tolist() == sorted(part.tolist())
        assert (placement.rank_of("a", part) == rank).all()
    assert (dealt.nodes[Index(dealt.nodes).find(half)] == half).all()


def test_tables_may_have_other_servers() -> None:
    placement = Placement(PartitionBook(2, {"a": [0, 4, 8]}), 2)
    tables = placement.of_tables({"a under b": np.array([0, 0, 8])})
    assert tables.rank_of("a under b", np.arange(8)).tolist() == [2, 3] * 4
    with pytest.raises(GraphError, match="tables of learnable rows: unknown node type 'a'"):
        tables.rank_of("a", np.arange(2))


def test_tables_of_no_nodes_are_dealt_in_turn() -> None:
    book = PartitionBook(1, {"a": [0, 4]})
    dealing = ByLocality(book, {"a": np.array([1, 1, 0, 1], np.uint16)})
    placement = Placement(book, 2, dealing)
    assert placement.rank_of("a", np.arange(4)).tolist() == [1, 1, 0, 1]
    tables = placement.of_tables({"a under b": np.array([0, 4])})
    assert tables.rank_of("a under b", np.arange(4)).tolist() == [0, 1, 0, 1]
    assert tables.place_of("a under b", np.arange(4)).tolist() == [0, 0, 1, 1]
    assert tables.owned("a under b", 1).tolist() == [1, 3]
