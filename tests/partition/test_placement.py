"""Where nodes are: homes on servers, and owners among ranks, in turn or by locality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import GraphError
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionBook, PartitionedGraph, partition_graph
from hopper.partition.balance import training_roots
from hopper.partition.placement import Placement

PAPERS = {"paper": [0, 2, 5]}


def test_homes_step_over_servers_without_nodes() -> None:
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
def test_what_does_not_exist_is_named(node_type: str, node: int, text: str) -> None:
    book = PartitionBook(2, PAPERS)
    for find in (book.home, Placement(book, 2).rank_of, Placement(book, 2).place_of):
        with pytest.raises(GraphError, match=text):
            find(node_type, np.array([0, node]))
    with pytest.raises(GraphError, match="server 2 of 2 does not exist"):
        book.range("paper", 2)


@pytest.mark.parametrize("offsets", [[0, 2], [1, 2, 3], [0, 3, 2], [[0, 1, 2]]])
def test_unusable_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(GraphError, match=r"field 'offsets\.paper'"):
        PartitionBook(2, {"paper": offsets})


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    counts = draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    offsets, ranks = [0, *np.cumsum(counts).tolist()], draw(st.integers(1, 4))
    owners, ranks_of = st.lists(st.integers(0, ranks - 1), min_size=offsets[-1]), None
    if draw(st.booleans()):
        ranks_of = {"a": np.array(draw(owners)[: offsets[-1]], np.uint16)}
    return Placement(PartitionBook(len(counts), {"a": offsets}), ranks, ranks_of)


@settings(deadline=None, max_examples=60)
@given(placements(), st.integers(0, 99))
def test_all_of_a_placement_follows_one_rule(placement: Placement, seed: int) -> None:
    book, ranks = placement.book, placement.ranks_per_server
    nodes = np.arange(book.total("a"))
    owners = placement.rank_of("a", nodes)
    assert (owners // ranks == book.home("a", nodes)).all()
    shares = [placement.owned("a", rank) for rank in range(placement.world)]
    for rank, share in enumerate(shares):
        assert share.tolist() == np.flatnonzero(owners == rank).tolist()
        assert placement.place_of("a", share).tolist() == list(range(share.size))
    if placement.dealing == "in turn":
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


def test_tables_have_servers_of_their_own_and_are_dealt_in_turn() -> None:
    ranks_of = {"a": np.array([1, 1, 0, 1], np.uint16)}
    placement = Placement(PartitionBook(1, {"a": [0, 4]}), 2, ranks_of)
    assert placement.rank_of("a", np.arange(4)).tolist() == [1, 1, 0, 1]
    tables = placement.of_tables({"a under b": np.array([0, 4])})
    assert tables.rank_of("a under b", np.arange(4)).tolist() == [0, 1, 0, 1]
    assert tables.place_of("a under b", np.arange(4)).tolist() == [0, 0, 1, 1]
    assert tables.owned("a under b", 1).tolist() == [1, 3]
    two_servers = Placement(PartitionBook(2, {"a": [0, 4, 8]}), 2)
    tables = two_servers.of_tables({"a under b": np.array([0, 0, 8])})
    assert tables.rank_of("a under b", np.arange(8)).tolist() == [2, 3] * 4
    with pytest.raises(GraphError, match="tables of learnable rows: unknown node type 'a'"):
        tables.rank_of("a", np.arange(2))


BACKEND = "pymetis"


@pytest.fixture(scope="module", params=["metis", "stream"])
def two_levels(
    request: pytest.FixtureRequest,
    community_graph: GraphDirectory,
    tmp_path_factory: pytest.TempPathFactory,
) -> PartitionedGraph:
    """Six communities over two servers and two ranks each."""
    out, how = tmp_path_factory.mktemp("two-levels") / "parts", request.param
    return partition_graph(community_graph, out, 2, how, backend=BACKEND, ranks_per_server=2)


def owners_of(graph: PartitionedGraph) -> np.ndarray:
    """Return the rank of each node of the target type, by global id."""
    target = graph.schema.target_type()
    return graph.placement(2).rank_of(target, np.arange(graph.book.total(target)))


def count_between_ranks(graph: PartitionedGraph, placement: Placement) -> int:
    """Count the edges whose ends are on different ranks of one server."""
    count = 0
    for relation in graph.relations:
        edges = graph.topology(relation)
        rows = np.repeat(np.arange(edges.indptr.size - 1), np.diff(edges.indptr))
        owners = placement.rank_of(relation.dst, rows)
        sources = placement.rank_of(relation.src, edges.indices)
        count += int(((owners != sources) & (owners // 2 == sources // 2)).sum())
    return count


def test_ranks_follow_locality_and_servers_are_the_same(
    community_graph: GraphDirectory, two_levels: PartitionedGraph, tmp_path: Path
) -> None:
    method = two_levels.description["method"]
    one_level = partition_graph(community_graph, tmp_path / "once", 2, method, backend=BACKEND)
    for name in two_levels.schema.node_types:
        np.testing.assert_array_equal(two_levels.global_ids(name), one_level.global_ids(name))
    by_locality, in_turn = two_levels.placement(2), one_level.placement(2)
    assert (by_locality.dealing, in_turn.dealing) == ("by locality", "in turn")
    # Another number of ranks is dealt in turn.
    assert {two_levels.placement(ranks).dealing for ranks in (1, 3)} == {"in turn"}
    between = count_between_ranks(two_levels, by_locality)
    assert between < 0.7 * count_between_ranks(one_level, in_turn)


def test_training_nodes_and_nodes_are_balanced_over_a_servers_ranks(
    two_levels: PartitionedGraph,
) -> None:
    owners, target = owners_of(two_levels), two_levels.schema.target_type()
    roots = training_roots(two_levels)[two_levels.original_ids(target)]
    for weights in (roots, np.ones_like(roots)):
        shares = np.bincount(owners, weights=weights, minlength=4).reshape(2, 2)
        assert (shares.max(axis=1) <= 1.15 * shares.mean(axis=1) + 1).all()


def test_described_shares_equal_the_placement_and_add_up(two_levels: PartitionedGraph) -> None:
    owners, target = owners_of(two_levels), two_levels.schema.target_type()
    of_servers, of_ranks = (two_levels.description["shares"][key] for key in ("servers", "ranks"))
    assert of_ranks["nodes"][target] == np.bincount(owners, minlength=4).tolist()
    for split, counts in of_ranks["splits"].items():
        split_owners = owners[two_levels.global_ids(target)[two_levels.split(split)]]
        assert counts == np.bincount(split_owners, minlength=4).tolist()
    edges = np.zeros(4, np.int64)
    for relation in two_levels.relations:
        np.add.at(edges, owners, np.diff(two_levels.topology(relation).indptr))
    assert of_ranks["edges"] == edges.tolist()
    for server_shares, rank_shares in (
        (of_servers["edges"], of_ranks["edges"]),
        *zip(of_servers["splits"].values(), of_ranks["splits"].values(), strict=True),
    ):
        assert server_shares == np.array(rank_shares).reshape(2, 2).sum(axis=1).tolist()
    assert of_ranks["largest_over_mean"]["edges"] == pytest.approx(edges.max() / edges.mean(), 1e-5)


def test_typed_graphs_with_empty_types(library: GraphDirectory) -> None:
    how = {"backend": BACKEND, "ranks_per_server": 3, "topology": "partitioned"}
    graph = partition_graph(library, library.path.parent / "levels", 2, **how)
    placement = graph.placement(3)
    for name, kind in graph.schema.node_types.items():
        nodes_by_rank = [placement.owned(name, rank) for rank in range(placement.world)]
        assert np.sort(np.concatenate(nodes_by_rank)).tolist() == list(range(kind.count))
