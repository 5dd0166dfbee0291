"""Where edges are predicted, training reads no edges of validation and test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.checksums import check_structure
from hopper.partition.training import training_roots

pytestmark = pytest.mark.filterwarnings(
    "ignore:split drawn", "ignore:columns with numbers far from 1"
)

BUYS = ("user", "buys", "item")


def stored_pairs(graph: PartitionedGraph, relation: Relation) -> list[tuple[int, int]]:
    """Return the edges that are stored, in original ids."""
    topology = graph.topology(relation)
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    ends = (
        graph.original_ids(relation.src)[topology.indices],
        graph.original_ids(relation.dst)[dst],
    )
    return sorted(zip(*(ids.tolist() for ids in ends), strict=True))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Users buy items; a second relation is the reverse of that, and a third is unlike both."""
    generator = np.random.default_rng(3)
    edges = np.stack([generator.integers(0, 40, 300), generator.integers(0, 25, 300)])
    views = np.stack([generator.integers(0, 25, 300), generator.integers(0, 40, 300)])
    order = generator.permutation(300)
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("shop") / "graph",
        {
            BUYS: edges,
            ("item", "bought_by", "user"): edges[::-1, order],
            ("item", "viewed_by", "user"): views,
        },
        features={"user": generator.random((40, 3)), "item": generator.random((25, 3))},
        edge_features={BUYS: np.arange(300.0)},
        target=BUYS,
        options=ImportOptions(split=RandomSplit(0.7, 0.1), seed=1),
    )


@pytest.mark.parametrize("topology", ["replicated", "partitioned", "halo:1"])
def test_held_out_edges_are_not_stored(shop: GraphDirectory, topology: str, tmp_path: Path) -> None:
    parts = partition_graph(shop, tmp_path / "parts", 2, "random", topology=topology)
    check_structure(tmp_path / "parts", [0, 1])
    buys, bought, viewed = (
        Relation(*BUYS),
        Relation("item", "bought_by", "user"),
        Relation("item", "viewed_by", "user"),
    )
    held_out = {
        pair
        for split in ("val", "test")
        for links in [shop.links(split)]
        for pair in zip(links.src.tolist(), links.dst.tolist(), strict=True)
    }
    topology_of_buys = shop.topology(buys)
    dst = np.repeat(np.arange(25), np.diff(topology_of_buys.indptr))
    all_pairs = list(zip(topology_of_buys.indices.tolist(), dst.tolist(), strict=True))
    expected = sorted(pair for pair in all_pairs if pair not in held_out)
    assert stored_pairs(parts, buys) == expected
    assert stored_pairs(parts, bought) == sorted((v, u) for u, v in expected)
    assert len(stored_pairs(parts, viewed)) == 300
    assert parts.reverse_relations(buys) == [bought]
    assert parts.schema.relations[buys].count == len(expected)
    # Links of all splits are there, and features of the edges that are stored stay theirs.
    for split in shop.schema.splits:
        links, expected_links = parts.links(split), shop.links(split)
        for name in ("ids", "relations", "src", "dst"):
            np.testing.assert_array_equal(getattr(links, name), getattr(expected_links, name))
    for server in range(2):
        rows = parts.edge_features(buys, server)
        assert rows is not None
        buys_topology = parts.topology(buys, server)
        stored = parts.stored("item", server)
        own_rows = buys_topology.rows(np.array([stored.first, stored.stop]))
        first, last = buys_topology.indptr[own_rows]
        np.testing.assert_array_equal(rows[:, 0], buys_topology.edge_ids[first:last])
    degrees = np.bincount([v for _, v in expected], minlength=25)
    np.testing.assert_array_equal(
        parts.topology(buys).in_degrees, degrees[parts.original_ids("item")]
    )


def test_training_roots_are_where_links_end(shop: GraphDirectory) -> None:
    links = shop.links("train")
    np.testing.assert_array_equal(training_roots(shop), np.bincount(links.dst, minlength=25))


def test_a_symmetric_relation_is_its_own_reverse(tmp_path: Path) -> None:
    pairs = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [0, 4], [1, 3]]).T
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        np.concatenate([pairs, pairs[::-1]], axis=1),
        features=np.ones((5, 2)),
        target=("node", "edge", "node"),
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )
    parts = partition_graph(graph, tmp_path / "parts", 1)
    (relation,) = graph.schema.target_relations
    assert parts.reverse_relations(relation) == [relation]
    links = {name: parts.links(name) for name in ("train", "val", "test")}
    pairs_by_split = {
        name: {
            frozenset(pair)
            for pair in zip(split_links.src.tolist(), split_links.dst.tolist(), strict=True)
        }
        for name, split_links in links.items()
    }
    # Both directions of a pair are in the same split.
    assert not pairs_by_split["train"] & (pairs_by_split["val"] | pairs_by_split["test"])
    assert {frozenset(pair) for pair in stored_pairs(parts, relation)} == pairs_by_split["train"]
