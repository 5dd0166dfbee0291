"""Streaming finds communities, keeps its balance, and holds no graph in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.build_topology import build_topology
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.topology import Topology
from hopper.micrograph.locality import measure_locality
from hopper.partition import neighbor_stream, partition_graph
from hopper.partition.balance import balance_classes
from hopper.partition.memory import estimate_memory
from hopper.partition.neighbor_stream import NeighborStream
from hopper.partition.stacked_ids import NodeArrays, type_starts
from hopper.partition.streaming import assign_stream, number_of_blocks
from hopper.partition.training import training_roots
from hopper.phases import Phases

ARRAYS = NodeArrays(Path())

MakeGraph = Callable[..., GraphDirectory]
RELATION = Relation("node", "edge", "node")


@dataclass
class InMemory:
    schema: GraphSchema
    topologies: dict[Relation, Topology]

    def topology(self, relation: Relation) -> Topology:
        return self.topologies[relation]


def _homogeneous(nodes: int, src: NDArray[np.int64], dst: NDArray[np.int64]) -> InMemory:
    schema = GraphSchema("graph", {"node": NodeType(nodes)}, {RELATION: EdgeType(src.size)}, "node")
    return InMemory(schema, {RELATION: build_topology(src, dst, nodes, nodes)})


def _planted(
    generator: np.random.Generator, nodes: int, edges: int, parts: int, share_inside: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Make edges of which a share stays in its community; communities interleave by id."""
    src = generator.integers(0, nodes, edges)
    inside = parts * generator.integers(0, nodes // parts, edges) + src % parts
    return src, np.where(
        generator.random(edges) < share_inside, inside, generator.integers(0, nodes, edges)
    )


@pytest.mark.parametrize("communities", [4, 32])
def test_planted_communities_are_found(make_graph: MakeGraph, communities: int) -> None:
    nodes = 4000
    src, dst = _planted(np.random.default_rng(1), nodes, 40_000, communities, 0.8)
    graph = make_graph("planted", nodes, src, dst, range(0, nodes, 3))
    stream, random = (
        partition_graph(graph, graph.path.parent / method, 4, method)
        for method in ("stream", "random")
    )
    # Planted: 15 % of the edges.
    assert stream.description["edge_cut"] < 0.2 < 0.7 < random.description["edge_cut"]
    assert stream.description["balance"]["nodes"] <= 1.051
    assert stream.description["balance"]["train"] <= 1.051
    stream_locality, random_locality = (
        measure_locality(division, (3, 3), 300) for division in (stream, random)
    )
    assert stream_locality.micrograph > random_locality.micrograph + 0.3
    assert stream_locality.micrograph > stream_locality.subgraph + 0.3
    assert stream.description["backend"] == "hopper"
    assert stream.description["seed_used"] is True


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 400),
    edges=st.integers(0, 2000),
    servers=st.integers(1, 9),
    trained=st.floats(0, 1),
    skew=st.floats(1, 4),
    seed=st.integers(0, 2**31),
)
def test_every_class_is_within_five_per_cent_or_one_node(
    nodes: int, edges: int, servers: int, trained: float, skew: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    src, dst = (nodes * generator.random((2, edges)) ** skew).astype(np.int64)
    graph = _homogeneous(nodes, src, dst)
    roots = (generator.random(nodes) < trained).astype(np.int64)
    homes = assign_stream(graph, servers, seed, roots, Phases(), ARRAYS)
    assert homes.dtype == np.int32
    assert homes.min() >= 0
    assert homes.max() < servers
    for in_class in (roots > 0, roots == 0):
        shares = np.bincount(homes[in_class], minlength=servers)
        assert shares.max() <= max(-(-shares.sum() // servers), int(1.05 * shares.mean()))


def test_the_same_seed_gives_the_same_partition_on_any_number_of_threads(
    make_graph: MakeGraph,
) -> None:
    generator = np.random.default_rng(5)
    src, dst = _planted(generator, 3000, 20_000, 5, 0.7)
    graph = make_graph("planted", 3000, src, dst, range(0, 3000, 4))
    code = (
        "import sys, numba\n"
        "from hopper.graph.directory import GraphDirectory\n"
        "from hopper.partition import partition_graph\n"
        "graph = GraphDirectory.open(sys.argv[1])\n"
        "for name, threads, seed in (('a', 1, 3), ('b', 2, 3), ('c', 1, 4)):\n"
        "    numba.set_num_threads(threads)\n"
        "    partition_graph(graph, sys.argv[2] + name, 5, 'stream', seed)\n"
    )
    out = graph.path.parent / "divided-"
    command = [sys.executable, "-c", code, str(graph.path), str(out)]
    subprocess.run(command, check=True, timeout=300, env=_two_threads())
    maps = [
        np.load(f"{out}{name}/maps/node/original_ids.npy", allow_pickle=False) for name in "abc"
    ]
    np.testing.assert_array_equal(maps[0], maps[1])
    assert (maps[0] != maps[2]).any()


def test_small_chunks_keep_the_balance_within_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    src, dst = _planted(np.random.default_rng(2), 1000, 8000, 4, 0.9)
    monkeypatch.setattr(neighbor_stream, "EDGES_AT_ONCE", 7)
    graph = _homogeneous(1000, src, dst)
    chunks = list(NeighborStream(graph).chunks())
    assert sum(chunk.neighbors.size for chunk in chunks) == src.size
    assert max(chunk.neighbors.size for chunk in chunks if chunk.indptr.size > 2) <= 7
    homes = assign_stream(graph, 4, 0, np.zeros(1000, np.int64), Phases(), ARRAYS)
    assert np.bincount(homes, minlength=4).max() <= 262
    assert (homes[src] != homes[dst]).mean() < 0.15


def test_chunks_are_the_in_neighbours_of_all_relations(shared_library: GraphDirectory) -> None:
    schema = shared_library.schema
    topologies = {relation: shared_library.topology(relation) for relation in schema.relations}
    starts = type_starts(schema)
    expected: dict[int, list[int]] = {node: [] for node in range(58)}
    for relation, edges in topologies.items():
        for v in range(edges.indptr.size - 1):
            sources = edges.indices[edges.indptr[v] : edges.indptr[v + 1]]
            expected[starts[relation.dst] + v] += (starts[relation.src] + sources).tolist()
    stream = NeighborStream(shared_library)
    neighbors = {
        chunk.first + row: chunk.neighbors[chunk.indptr[row] : chunk.indptr[row + 1]].tolist()
        for chunk in stream.chunks()
        for row in range(chunk.indptr.size - 1)
    }
    assert {v: sorted(ids) for v, ids in neighbors.items()} == {
        v: sorted(ids) for v, ids in expected.items()
    }
    assert stream.have_neighbors().tolist() == [bool(expected[v]) for v in range(58)]


def test_all_types_are_balanced(shared_library: GraphDirectory) -> None:
    schema, roots = shared_library.schema, training_roots(shared_library)
    homes, classes = (
        assign_stream(shared_library, 3, 1, roots, Phases(), ARRAYS),
        balance_classes(schema, roots),
    )
    for group in np.unique(classes):
        shares = np.bincount(homes[classes == group], minlength=3)
        assert shares.max() <= max(-(-shares.sum() // 3), int(1.05 * shares.mean()))


def test_nodes_without_in_edges_live_with_their_readers() -> None:
    """Authors have no in-edges; each is read by papers of one community."""
    papers, authors, communities = 800, 1600, 4
    generator = np.random.default_rng(4)
    cites_src, cites_dst = _planted(generator, papers, 12_000, communities, 0.95)
    writer = np.repeat(np.arange(authors), 3)
    paper = communities * generator.integers(0, papers // communities, writer.size)
    paper += writer % communities
    cites, writes = Relation("paper", "cites", "paper"), Relation("author", "writes", "paper")
    schema = GraphSchema(
        "papers",
        {"author": NodeType(authors), "paper": NodeType(papers)},
        {writes: EdgeType(writer.size), cites: EdgeType(cites_src.size)},
        "paper",
    )
    topologies = {
        writes: build_topology(writer, paper, authors, papers),
        cites: build_topology(cites_src, cites_dst, papers, papers),
    }
    graph = InMemory(schema, topologies)
    homes = assign_stream(graph, 4, 0, np.zeros(papers, np.int64), Phases(), ARRAYS)
    is_remote = homes[:authors][writer] != homes[authors:][paper]
    assert is_remote.mean() < 0.1


def test_isolated_nodes_are_spread_evenly(make_graph: MakeGraph) -> None:
    graph = make_graph("dust", 100, [], [], range(10))
    divided = partition_graph(graph, graph.path.parent / "out", 4, "stream")
    assert max(share["nodes"] for share in divided.description["per_server"]) <= 26
    star = make_graph("lonely", 60, list(range(20)), [0] * 20, [])
    divided = partition_graph(star, star.path.parent / "two", 2, "stream")
    assert divided.description["balance"]["nodes"] <= 1.05


def test_one_server_takes_all_and_too_many_are_refused(make_graph: MakeGraph) -> None:
    graph = make_graph("ring", 6, list(range(6)), [1, 2, 3, 4, 5, 0], [])
    out = graph.path.parent
    one_server = partition_graph(graph, out / "one", 1, "stream").description
    assert (one_server["edge_cut"], one_server["seed_used"]) == (0, False)
    six_servers = partition_graph(graph, out / "six", 6, "stream").description
    assert [share["nodes"] for share in six_servers["per_server"]] == [1] * 6
    with pytest.raises(RequestError, match="has 6 nodes, too few for 7 servers; use at most 6"):
        partition_graph(graph, out / "seven", 7, "stream")


@pytest.mark.parametrize(
    ("nodes", "servers", "blocks"),
    [(1, 1, 1), (10, 2, 10), (1000, 4, 62), (1000, 50, 400), (10**8, 4, 1024)],
)
def test_number_of_blocks(nodes: int, servers: int, blocks: int) -> None:
    assert number_of_blocks(nodes, servers) == blocks


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_stays_below_the_estimate(make_graph: MakeGraph) -> None:
    """Six times the edges need six times the disk, and about the same memory."""
    nodes, generator = 200_000, np.random.default_rng(0)
    code = (
        "import pathlib, re, sys\n"
        "from hopper.graph.directory import GraphDirectory\n"
        "from hopper.partition import partition_graph\n"
        "graph = GraphDirectory.open(sys.argv[1], check='shapes')\n"
        "partition_graph(graph, sys.argv[2], 4, 'stream')\n"
        # Not getrusage: its peak is inherited from the process that started this one.
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
    )
    peaks = []
    for edges in (1_000_000, 6_000_000):
        src, dst = _planted(generator, nodes, edges, 100, 0.8)
        graph = make_graph(f"g{edges}", nodes, src, dst, range(0, nodes, 2))
        estimate = estimate_memory(graph, 4, "stream").peak
        command = [sys.executable, "-c", code, str(graph.path), str(graph.path) + "-4"]
        run = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=300, env=_two_threads()
        )
        peaks.append(int(run.stdout) * 1024)
        assert peaks[-1] < estimate
    topology_growth = 5_000_000 * 16
    assert peaks[1] - peaks[0] < topology_growth / 2


def _two_threads() -> dict[str, str]:
    return {**os.environ, "NUMBA_NUM_THREADS": "2"}
