"""Micrographs, and R_micro and R_sub against their definition."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hopper.errors import ConfigError, RequestError
from hopper.graph import GraphDirectory, Relation, build_topology
from hopper.micrograph.locality import measure_locality
from hopper.micrograph.micrograph import Micrograph
from hopper.micrograph.route import permute
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionBook, PartitionedGraph, partition_graph

CITES = Relation("paper", "links", "paper")
WRITES = Relation("author", "links", "paper")
WRITTEN = Relation("paper", "links", "author")


def _divide_library(
    folder: Path, servers: int, train: Sequence[int] = (), target: str | Relation = "paper"
) -> PartitionedGraph:
    """Two node types, three relations of one name."""
    generator = np.random.default_rng(11)
    counts = {"author": 20, "paper": 50}
    edges = {
        relation: [generator.integers(0, counts[end], count) for end in relation[::2]]
        for relation, count in ((WRITES, 70), (WRITTEN, 70), (CITES, 120))
    }
    splits = {"train": np.array(train)} if train else {}
    library = GraphDirectory.from_arrays(
        folder / "library", edges, splits=splits, counts=counts, target=target
    )
    return partition_graph(library, folder / "parts", servers, "random")


def _neighbourhood(
    graph: PartitionedGraph, roots: Sequence[int], hops: int
) -> set[tuple[str, int]]:
    """Return all (type, global id) within some hops against the edges, without sampling."""
    reached = {("paper", int(root)) for root in roots}
    for _ in range(hops):
        sources = set()
        for relation in graph.schema.relations:
            edges = graph.topology(relation)
            for node_type, node in reached:
                if node_type == relation.dst:
                    row = edges.indices[edges.indptr[node] : edges.indptr[node + 1]]
                    sources |= {(relation.src, int(source)) for source in row}
        reached |= sources
    return reached


def _share(graph: PartitionedGraph, nodes: set[tuple[str, int]], roots: set[int], of: int) -> float:
    home = graph.book.home("paper", np.array([of]))
    others = nodes - {("paper", root) for root in roots}
    return sum(graph.book.home(t, np.array([n])) == home for t, n in others) / len(nodes)


@pytest.mark.parametrize("hops", [1, 2])
def test_both_measures_follow_their_definition(tmp_path, hops):
    train = list(range(0, 50, 2))
    graph = _divide_library(tmp_path, 3, train)
    measured = measure_locality(graph, [-1] * hops, roots=9, batch_size=4, seed=6)
    roots = graph.global_ids("paper")[np.array(train)[permute(6, 0, 25, np.arange(9))]].tolist()
    micro = [_share(graph, _neighbourhood(graph, [r], hops), {r}, r) for r in roots]
    sub = [
        _share(graph, _neighbourhood(graph, batch, hops), set(batch), root)
        for batch in (roots[:4], roots[4:8], roots[8:])
        for root in batch
    ]
    assert measured.micrograph == pytest.approx(np.mean(micro))
    assert measured.subgraph == pytest.approx(np.mean(sub))
    shares = {name: round(getattr(measured, name), 6) for name in ("micrograph", "subgraph")}
    request = {"fanouts": [-1] * hops, "roots": 9, "batch_size": 4, "seed": 6}
    assert measured.as_json() == request | shares


def test_an_edge_target_takes_destinations_as_roots(tmp_path):
    graph = _divide_library(tmp_path, 2, [3, 4, 5], CITES)
    edges = graph.topology(CITES)
    target_edges = np.flatnonzero(np.isin(edges.edge_ids, [3, 4, 5]))
    roots = np.unique(np.searchsorted(edges.indptr, target_edges, side="right") - 1)
    measured = measure_locality(graph, [-1], roots=100)
    assert measured.roots == roots.size
    micro = [_share(graph, _neighbourhood(graph, [r], 1), {r}, r) for r in roots]
    assert measured.micrograph == pytest.approx(np.mean(micro))


def test_any_node_is_a_root_without_a_split_and_unusable_requests_are_refused(tmp_path):
    graph = _divide_library(tmp_path, 2)
    assert measure_locality(graph, [2], roots=1000).roots == 50
    with pytest.raises(RequestError, match="at least 1 root and a batch of at least 1, given 0"):
        measure_locality(graph, [2], roots=0)
    with pytest.raises(ConfigError, match="fanouts"):
        measure_locality(graph, [0])


# The micrograph of one root: original ids, R_micro and the tree

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
    homes = {name: of.tolist() for name, of in micrograph.homes(BOOK).items()}
    assert homes == {"paper": [1, 0, 0, 1], "author": [0]}
    # Of five vertices, 104 lives with the root, which itself counts only among the five.
    assert micrograph.colocated_share(BOOK) == 1 / 5
    one_server = PartitionBook(1, {"paper": [0, 5], "author": [0, 3]})
    assert micrograph.colocated_share(one_server) == 4 / 5


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
        {CITES: build_topology(*np.empty((2, 0), np.int64), 3, 3)},
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
