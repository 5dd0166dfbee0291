"""The micrograph of one root: original ids, R_micro and the tree."""

import numpy as np
import pytest

from hopper.errors import RequestError
from hopper.graph import GraphDirectory, Relation, build_topology
from hopper.micrograph.locality import measure_locality
from hopper.micrograph.micrograph import Micrograph
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionBook, partition_graph

CITES = Relation("paper", "links", "paper")
WRITES = Relation("author", "links", "paper")
BOOK = PartitionBook(2, {"paper": [0, 2, 5], "author": [0, 1, 3]})
PAPERS = np.array([103, 100, 102, 104, 101])  # original id of every global id
AUTHORS = np.array([51, 50, 52])


@pytest.fixture
def micrograph() -> Micrograph:
    """Root 102 (on server 1) reads papers 103, 100 and author 51 (server 0), these read 104."""
    cites = build_topology(np.array([0, 1, 3, 3]), np.array([2, 2, 0, 1]), 5, 5)
    writes = build_topology(np.array([0]), np.array([2]), 3, 5)
    sampler = NeighborSampler(
        {CITES: cites, WRITES: writes}, {"paper": PAPERS, "author": AUTHORS}, "paper", [-1, -1], 0
    )
    return Micrograph(sampler, 2, 0, 0)


def test_nodes_and_edges_have_original_ids(micrograph):
    assert micrograph.root == 102
    assert micrograph.nodes["paper"].tolist() == [102, 103, 100, 104]
    assert micrograph.nodes["author"].tolist() == [51]
    first, second = micrograph.edges()
    assert first[WRITES].tolist() == [[51, 102, 0]]
    assert first[CITES].tolist() == [[103, 102, 0], [100, 102, 1]]
    assert second[WRITES].tolist() == [[51, 102, 0]]
    assert second[CITES].tolist() == [[103, 102, 0], [100, 102, 1], [104, 103, 0], [104, 100, 0]]


def test_colocated_share(micrograph):
    assert {t: homes.tolist() for t, homes in micrograph.homes(BOOK).items()} == {
        "paper": [1, 0, 0, 1],
        "author": [0],
    }
    # Of five vertices, 104 lives with the root, which itself counts only among the five.
    assert micrograph.colocated_share(BOOK) == 1 / 5
    assert (
        micrograph.colocated_share(PartitionBook(1, {"paper": [0, 5], "author": [0, 3]})) == 4 / 5
    )


def test_text(micrograph):
    assert micrograph.text(BOOK).splitlines() == [
        "paper 102 @1",
        "├── hop 0 links: author 51 @0",
        "├── hop 0 links: paper 103 @0",
        "│   └── hop 1 links: paper 104 @1",
        "├── hop 0 links: paper 100 @0",
        "│   └── hop 1 links: paper 104 @1 *",
        "├── hop 1 links: author 51 @0 *",
        "├── hop 1 links: paper 103 @0 *",
        "└── hop 1 links: paper 100 @0 *",
    ]
    assert len(micrograph.text().splitlines()) == 1 + micrograph.subgraph.num_edges
    assert micrograph.text().splitlines()[3] == "│   └── hop 1 links: paper 104"


def test_a_root_alone():
    sampler = NeighborSampler(
        {CITES: build_topology(np.empty(0, np.int64), np.empty(0, np.int64), 3, 3)},
        {"paper": np.arange(3)},
        "paper",
        [2, 2],
        0,
    )
    micrograph, book = Micrograph(sampler, 1, 0, 0), PartitionBook(1, {"paper": [0, 3]})
    assert micrograph.text() == "paper 1"
    assert micrograph.colocated_share(book) == 0.0
    assert [hop[CITES].shape for hop in micrograph.edges()] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("root", [-1, 5])
def test_no_such_root(micrograph, root):
    sampler = NeighborSampler({}, {"paper": PAPERS}, "paper", [1], 0)
    message = rf"expected a global id of 'paper' in \[0, 5\), given {root}"
    with pytest.raises(RequestError, match=message):
        Micrograph(sampler, root, 0, 0)


def test_agrees_with_r_micro(tmp_path):
    """The mean of ``colocated_share`` over all roots is what a partition reports."""
    generator, nodes = np.random.default_rng(2), 40
    src = generator.integers(0, nodes, 160)
    ends = np.stack([src, (src + generator.integers(1, 9, src.size)) % nodes])
    ring = GraphDirectory.from_arrays(
        tmp_path / "ring", {CITES: ends}, labels={"paper": np.zeros(nodes, np.int64)}
    )
    graph = partition_graph(ring, tmp_path / "parts", 3, "random", 1)
    topologies, ids = {CITES: graph.topology(CITES)}, {"paper": graph.original_ids("paper")}
    sampler = NeighborSampler(topologies, ids, "paper", [3, 2], 5)
    shares = [Micrograph(sampler, root, 0, 0).colocated_share(graph.book) for root in range(nodes)]
    measured = measure_locality(graph, [3, 2], nodes, batch_size=nodes, seed=5)
    assert 0 < measured.micrograph < 1
    assert np.mean(shares) == pytest.approx(measured.micrograph)
