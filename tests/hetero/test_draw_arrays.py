"""Weights and times in a division by relation: a server has what draws read of its lists."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.layout import draw_arrays, topology_file
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes
from hopper.hetero.write_partition import partition_by_relation
from hopper.partition import PartitionedGraph, partition_graph

WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")
EMPLOYS = Relation("place", "employs", "author")
COUNTS = {"author": 300, "paper": 80, "place": 9}
EDGES = {WRITES: 500, CITES: 60, EMPLOYS: 150}
ARRAYS = {
    WRITES: ["cumulative_weights", "times", "by_time"],
    CITES: ["times", "by_time"],
    EMPLOYS: [],
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Edges of one relation have weights and times, papers times; some papers are in no split."""
    generator = np.random.default_rng(2)
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("drawn") / "graph",
        {
            tuple(relation): np.stack(
                [
                    generator.integers(0, COUNTS[node_type], count)
                    for node_type in (relation.src, relation.dst)
                ]
            )
            for relation, count in EDGES.items()
        },
        {"author": generator.random((300, 64))},
        {"paper": generator.integers(0, 3, 80)},
        {"train": np.arange(10, 40), "val": np.arange(50, 60)},
        edge_weights={tuple(WRITES): np.exp(generator.normal(0, 2, 500))},
        counts=COUNTS,
        times={"paper": generator.integers(0, 9, 80), tuple(WRITES): generator.integers(0, 9, 500)},
        target="paper",
    )


@pytest.fixture(scope="module")
def undivided(graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    """The graph on one server, where nodes keep their ids."""
    return partition_graph(graph, tmp_path_factory.mktemp("whole") / "parts", 1, "random")


def check_lists(
    stored: Topology, undivided: Topology, relation: Relation, nodes: np.ndarray
) -> None:
    """Check that ``nodes`` have all of their in-edges, and other destinations none."""
    counts = np.zeros(undivided.in_degrees.size, np.int64)
    counts[nodes] = undivided.in_degrees[nodes]
    assert np.array_equal(np.diff(stored.indptr), counts)
    edges = np.flatnonzero(np.repeat(counts > 0, np.diff(undivided.indptr)))
    for name in ("cumulative_weights", "times", "by_time"):
        actual, expected = getattr(stored, name), getattr(undivided, name)
        assert (actual is not None) == (expected is not None) == (name in ARRAYS[relation])
        assert actual is None or np.array_equal(actual, expected[edges])


def test_a_division_by_relation_stores_the_arrays_of_a_division_by_node(
    graph: GraphDirectory, undivided: PartitionedGraph, tmp_path: Path
) -> None:
    parts = partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    checked = set()
    for server, partition in enumerate(parts.partitions):
        for relation in sorted(partition.relations):
            topology = parts.topology(relation, server)
            all_nodes = np.arange(topology.in_degrees.size)
            check_lists(topology, undivided.topology(relation), relation, all_nodes)
            checked.add((server, relation))
    assert len(checked) > len(EDGES)
    assert np.array_equal(parts.times("paper"), graph.times("paper"))
    description = json.loads((parts.path / "partition.json").read_text())
    for server, share in enumerate(description["per_server"]):
        files = list((parts.path / f"server-{server}" / "topology").rglob("*.npy"))
        assert sum(path.stat().st_size for path in files) == share["topology_bytes"]
    file = topology_file(parts.path / "server-0", WRITES, "cumulative_weights")
    np.save(file, np.load(file)[1:])
    with pytest.raises(GraphError, match=r"cumulative_weights of author/\S+: expected shape"):
        parts.topology(WRITES, 0)


def test_parts_of_a_cut_relation_store_full_lists_with_gaps(
    graph: GraphDirectory, undivided: PartitionedGraph, tmp_path: Path
) -> None:
    tree = make_metatree(make_metagraph(graph.schema), "paper", 2)
    memory = max(sum(part_bytes(graph, part)) for part in cut(graph, tree, WRITES, 2))
    parts = partition_by_relation(graph, tmp_path / "parts", 4, 2, server_memory=memory)
    roots = np.concatenate([graph.split("train"), graph.split("val")])
    for relation in (WRITES, CITES):
        servers = [
            s for s, partition in enumerate(parts.partitions) if partition.roots == (relation,)
        ]
        assert len(servers) == 2
        lists, undivided_topology = [], undivided.topology(relation)
        for server in servers:
            part, stored = parts.root_topology(relation, server), parts.root_lists(relation, server)
            check_lists(stored, undivided_topology, relation, roots)
            assert stored.has_gaps
            assert stored.positions is None
            assert np.array_equal(stored.indices[stored.indices >= 0], part.indices)
            lists.append(stored.indices)
            for inner_relation in sorted(parts.partitions[server].relations):
                topology = parts.topology(inner_relation, server)
                expanded = np.flatnonzero(np.diff(topology.indptr))
                check_lists(topology, undivided.topology(inner_relation), inner_relation, expanded)
        # Every edge is in one part, at its place in the undivided list.
        assert np.array_equal(
            sum((indices >= 0).astype(int) for indices in lists), lists[0] * 0 + 1
        )
        edges = np.flatnonzero(
            np.repeat(np.isin(np.arange(80), roots), undivided_topology.in_degrees)
        )
        assert np.array_equal(np.maximum(*lists), undivided_topology.indices[edges])
        # One process that reads all parts gets the undivided lists.
        merged = parts.topology(relation)
        nodes = np.flatnonzero(np.diff(merged.indptr))
        assert set(roots[undivided_topology.in_degrees[roots] > 0]) <= set(nodes)
        check_lists(merged, undivided_topology, relation, nodes)
    description = json.loads((parts.path / "partition.json").read_text())
    for server, share in enumerate(description["per_server"]):
        files = list((parts.path / f"server-{server}").rglob("*.npy"))
        described_bytes = share["feature_bytes"] + share["topology_bytes"]
        assert sum(path.stat().st_size for path in files) == described_bytes + 128 * len(files)
    assert {relation: list(draw_arrays(graph.schema, relation)) for relation in EDGES} == ARRAYS
