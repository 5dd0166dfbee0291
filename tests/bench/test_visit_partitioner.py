"""Moving nodes by visits: fewer rows are remote, and the balance stays."""

import numpy as np
import pytest

from benchmarks.visit_partitioner import BATCH, RootReads, VisitPartitioner, move_nodes
from hopper.errors import RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.hetero.presample import FIRST_EPOCH
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.stacked_ids import type_slices

PAPERS, AUTHORS, SERVERS = 2400, 800, 3
BY_VISITS = "benchmarks.visit_partitioner:VisitPartitioner"
CITES, WROTE = Relation("paper", "cites", "paper"), Relation("author", "wrote", "paper")


@pytest.fixture(scope="module")
def skewed(tmp_path_factory) -> GraphDirectory:
    """A few papers are trained, and read citations of their own of three subjects.

    The many other papers cite anything. Their edges count in an edge cut, but no training root
    reads them.
    """
    generator = np.random.default_rng(7)
    train, half = np.arange(0, PAPERS // 2, 4), PAPERS // 2
    cited, untrained = np.repeat(train, 6), generator.integers(half, PAPERS, 15_000)
    same_subject = 3 * generator.integers(0, half // 3, cited.size) + cited % 3
    src = np.concatenate([same_subject, generator.integers(0, PAPERS, untrained.size)])
    written = np.repeat(np.arange(PAPERS), 3)
    writers = 3 * generator.integers(0, AUTHORS // 3, written.size) + written % 3
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("visits") / "skewed",
        {CITES: (src, np.concatenate([cited, untrained])), WROTE: (writers, written)},
        splits={"train": train},
        counts={"paper": PAPERS, "author": AUTHORS},
        target="paper",
    )


def draw(graph: GraphDirectory, fanouts: tuple[int, ...], seed: int, epoch: int) -> list[dict]:
    """Return what every root reads in an epoch. No draw depends on the division."""
    train, schema = np.asarray(graph.split("train")), graph.schema
    assert train.size <= BATCH  # so that all are roots of iteration 0
    sampler = NeighborSampler(
        {relation: graph.topology(relation) for relation in schema.relations},
        {name: np.arange(kind.count) for name, kind in schema.node_types.items()},
        *("paper", fanouts, seed),
    )
    return [sampler.sample(np.array([root]), FIRST_EPOCH + epoch, 0).nodes for root in train]


def count_remote(reads: list[dict], divided: PartitionedGraph) -> float:
    """Return the share of rows that roots read from other servers, root by root."""
    types = divided.schema.node_types
    homes = {name: divided.book.home(name, divided.global_ids(name)) for name in types}
    rows = remote = 0
    for nodes in reads:
        for name, ids in nodes.items():
            rows += ids.size
            remote += int((homes[name][ids] != homes["paper"][nodes["paper"][0]]).sum())
    return remote / rows


def test_fewer_rows_of_other_servers_are_read(skewed, tmp_path):
    method = "metis"
    options = {"method": method, "fanouts": [4, 4], "epochs": 1, "backend": "pymetis"}
    kinds = [(method, {}, 3), *((BY_VISITS, options, seed) for seed in (3, 3, 4))]
    plain, moved, again, other = (
        partition_graph(
            *(skewed, tmp_path / str(number), SERVERS, how, seed),
            method_options=keywords,
            backend="pymetis",
        )
        for number, (how, keywords, seed) in enumerate(kinds)
    )
    reads = draw(skewed, (4, 4), 3, epoch=1)
    assert count_remote(reads, moved) < 0.9 * count_remote(reads, plain)
    before, after = (
        parts.description["shares"]["servers"]["largest_over_mean"] for parts in (plain, moved)
    )
    assert after["splits"]["train"] <= max(before["splits"]["train"], 1.05)
    assert after["edges"] <= max(before["edges"], 1.05)
    np.testing.assert_array_equal(moved.original_ids("paper"), again.original_ids("paper"))
    assert (moved.original_ids("paper") != other.original_ids("paper")).any()


def test_pulls_equal_those_counted_micrograph_by_micrograph(skewed):
    reads = RootReads(skewed, (2, 3), 1, seed=5)
    homes = np.random.default_rng(0).integers(0, SERVERS, PAPERS + AUTHORS).astype(np.int32)
    pull, _ = reads.run(homes, SERVERS)
    expected, ids_of = np.zeros_like(pull), type_slices(skewed.schema)
    for nodes in draw(skewed, (2, 3), 5, epoch=0):
        papers = ids_of["paper"].start + nodes["paper"]
        root, ids = (
            papers[0],
            np.concatenate([papers[1:], ids_of["author"].start + nodes["author"]]),
        )
        expected[ids, homes[root]] += 1
        np.add.at(expected[root], homes[ids], 1)
    np.testing.assert_array_equal(pull, expected)
    assert 0 < reads.visits().max() <= 1


def test_moves_respect_room_and_take_the_largest_gains_first():
    homes = np.array([0] * 20 + [1] * 20, np.int32)
    pull = np.zeros((40, 2), np.int32)
    pull[:5, 1] = [1, 2, 3, 4, 5]
    pull[20:23, 0] = 9
    moved = homes.copy()
    # Room for 21 nodes a server: three leave server 1, so that four of five find room there.
    assert move_nodes(moved, pull, np.ones((40, 1), np.int64)) == 7
    assert moved[:5].tolist() == [0, 1, 1, 1, 1]
    assert moved[20:23].tolist() == [0, 0, 0]


def test_no_epoch_to_count_is_refused(skewed):
    with pytest.raises(RequestError, match="at least one epoch; given 0 epochs of graph 'graph'"):
        VisitPartitioner(epochs=0).assign(skewed, 2, 0)
