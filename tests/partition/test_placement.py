"""Where nodes are: homes on servers, and owners among ranks, in turn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import GraphError
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement

PAPERS = {"paper": [0, 2, 5]}


def test_homes_step_over_servers_without_nodes():
    book = PartitionBook(4, {"paper": [0, 2, 2, 5, 5], "venue": [0, 0, 0, 0, 0]})
    assert book.home("paper", np.arange(5)).tolist() == [0, 0, 2, 2, 2]
    assert [book.range("paper", server) for server in range(4)] == [(0, 2), (2, 2), (2, 5), (5, 5)]
    assert book.total("paper") == 5
    assert book.home("venue", np.empty(0, np.int64)).size == 0
    assert book.home("paper", np.arange(5)).dtype == np.int64


@pytest.mark.parametrize(
    ("node_type", "node", "text"),
    [
        ("paper", -1, r"global id -1 of node type 'paper'.*\[0, 5\)"),
        ("paper", 5, r"global id 5 of node type 'paper'.*\[0, 5\)"),
        ("author", 0, "unknown node type 'author', expected one of: paper"),
    ],
)
def test_what_does_not_exist_is_named(node_type, node, text):
    book = PartitionBook(2, PAPERS)
    for find in (book.home, Placement(book, 2).rank_of, Placement(book, 2).place_of):
        with pytest.raises(GraphError, match=text):
            find(node_type, np.array([0, node]))
    with pytest.raises(GraphError, match="server 2 of 2 does not exist"):
        book.range("paper", 2)


@pytest.mark.parametrize("offsets", [[0, 2], [1, 2, 3], [0, 3, 2], [[0, 1, 2]]])
def test_unusable_offsets_are_refused(offsets):
    with pytest.raises(GraphError, match=r"field 'offsets\.paper'"):
        PartitionBook(2, {"paper": offsets})


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    counts = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    offsets, ranks = [0, *np.cumsum(counts).tolist()], draw(st.integers(1, 4))
    return Placement(PartitionBook(len(counts), {"a": offsets}), ranks)


@settings(deadline=None, max_examples=60)
@given(placements(), st.integers(0, 99))
def test_all_of_a_placement_follows_one_rule(placement, seed):
    book, ranks = placement.book, placement.ranks_per_server
    nodes = np.arange(book.total("a"))
    owners = placement.rank_of("a", nodes)
    assert (owners // ranks == book.home("a", nodes)).all()
    shares = [placement.owned("a", rank) for rank in range(placement.world)]
    for rank, share in enumerate(shares):
        assert share.tolist() == np.flatnonzero(owners == rank).tolist()
        assert placement.place_of("a", share).tolist() == list(range(share.size))
    sizes = np.array([share.size for share in shares]).reshape(-1, ranks)
    assert (np.ptp(sizes, axis=1) <= 1).all()
    # The owner of a node does not depend on the others, which are found again.
    half = np.sort(np.random.default_rng(seed).permutation(nodes)[: nodes.size // 2])
    assert (placement.rank_of("a", half) == owners[half]).all()
    dealt = placement.deal("a", half)
    for rank, part in enumerate(dealt):
        assert part.tolist() == sorted(part.tolist())
        assert (owners[part] == rank).all()
    assert len(dealt) == placement.world
    assert np.sort(np.concatenate(dealt)).tolist() == half.tolist()


def test_tables_have_servers_of_their_own():
    two_servers = Placement(PartitionBook(2, {"a": [0, 4, 8]}), 2)
    tables = two_servers.of_tables({"a under b": np.array([0, 0, 8])})
    assert tables.rank_of("a under b", np.arange(8)).tolist() == [2, 3] * 4
    assert tables.place_of("a under b", np.arange(8)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert tables.owned("a under b", 3).tolist() == [1, 3, 5, 7]
    with pytest.raises(GraphError, match="tables of learnable rows: unknown node type 'a'"):
        tables.rank_of("a", np.arange(2))
