"""A server's nodes dealt to its ranks by locality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.balance import training_roots
from hopper.partition.placement import Placement

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
