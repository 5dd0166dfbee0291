"""Where edges are predicted, training reads no edges of validation and test."""

import numpy as np
import pytest

from hopper.graph import GraphDirectory, Relation, Topology
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.balance import training_roots
from hopper.partition.checksums import check_structure
from hopper.partition.message_edges import count_untrained

pytestmark = pytest.mark.filterwarnings("ignore:split drawn", "ignore:columns with numbers far")

BUYS = Relation("user", "buys", "item")
BOUGHT, VIEWED = Relation("item", "bought_by", "user"), Relation("item", "viewed_by", "user")
Pairs = list[tuple[int, int]]


def pairs_of(topology: Topology, src: np.ndarray, dst: np.ndarray) -> Pairs:
    """Return the edges of a topology, whose sources and destinations have these ids."""
    ends = src[topology.indices].tolist(), dst[topology.list_destinations()].tolist()
    return sorted(zip(*ends, strict=True))


def stored_pairs(graph: PartitionedGraph, relation: Relation) -> Pairs:
    """Return the edges that are stored, in original ids."""
    ids = graph.original_ids(relation.src), graph.original_ids(relation.dst)
    return pairs_of(graph.topology(relation), *ids)


def link_pairs(graph: GraphDirectory | PartitionedGraph, *splits: str) -> Pairs:
    links = [graph.links(split) for split in splits]
    return [p for x in links for p in zip(x.src.tolist(), x.dst.tolist(), strict=True)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> GraphDirectory:
    """Users buy items; a second relation is the reverse of that, and a third is unlike both."""
    generator = np.random.default_rng(3)
    edges = np.stack([generator.integers(0, 40, 300), generator.integers(0, 25, 300)])
    views = np.stack([generator.integers(0, 25, 300), generator.integers(0, 40, 300)])
    order = generator.permutation(300)
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("shop") / "graph",
        {BUYS: edges, BOUGHT: edges[::-1, order], VIEWED: views},
        features={"user": generator.random((40, 3)), "item": generator.random((25, 3))},
        edge_features={BUYS: np.arange(300.0)},
        target=BUYS,
        options=ImportOptions(split=RandomSplit(0.7, 0.1), seed=1),
    )


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_held_out_edges_are_not_stored(shop, topology, tmp_path):
    parts = partition_graph(shop, tmp_path / "parts", 2, "random", topology=topology)
    check_structure(tmp_path / "parts", [0, 1])
    held_out, trained = set(link_pairs(shop, "val", "test")), set(link_pairs(shop, "train"))
    all_pairs = pairs_of(shop.topology(BUYS), np.arange(40), np.arange(25))
    expected = [pair for pair in all_pairs if pair not in held_out]
    assert stored_pairs(parts, BUYS) == expected
    assert stored_pairs(parts, BOUGHT) == sorted((v, u) for u, v in expected)
    assert len(stored_pairs(parts, VIEWED)) == 300
    assert parts.reverse_relations(BUYS) == [BOUGHT]
    assert parts.schema.relations[BUYS].count == len(expected)
    assert count_untrained(parts, BUYS) == sum(pair not in trained for pair in expected)
    # Links of all splits are there, and features of the edges that are stored stay theirs.
    for split in shop.schema.splits:
        for name in ("ids", "relations", "src", "dst"):
            links = getattr(parts.links(split), name)
            np.testing.assert_array_equal(links, getattr(shop.links(split), name))
    for server in range(2):
        rows, edges = parts.features(str(BUYS), server), parts.topology(BUYS, server)
        assert rows is not None
        stored = parts.stored("item", server)
        own_rows = edges.rows(np.array([stored.first, stored.stop]))
        first, last = edges.indptr[own_rows]
        np.testing.assert_array_equal(rows[:, 0], edges.edge_ids[first:last])
    degrees = np.bincount([v for _, v in expected], minlength=25)[parts.original_ids("item")]
    np.testing.assert_array_equal(parts.topology(BUYS).in_degrees, degrees)


def test_training_roots_are_where_links_end(shop):
    links = shop.links("train")
    np.testing.assert_array_equal(training_roots(shop), np.bincount(links.dst, minlength=25))


def test_a_symmetric_relation_is_its_own_reverse(tmp_path):
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
    # Both directions of a pair are in the same split.
    trained = set(map(frozenset, link_pairs(parts, "train")))
    assert not trained & set(map(frozenset, link_pairs(parts, "val", "test")))
    assert set(map(frozenset, stored_pairs(parts, relation))) == trained
