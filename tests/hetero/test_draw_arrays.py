"""Weights and times where relations are divided: every server has what draws read of its lists."""

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
    WRITES: ["weight_sums", "alias_table", "times", "by_time"],
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
            tuple(each): np.stack(
                [generator.integers(0, COUNTS[end], count) for end in (each.src, each.dst)]
            )
            for each, count in EDGES.items()
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
def whole(graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    """Divided by node for one server, where ids stay."""
    return partition_graph(graph, tmp_path_factory.mktemp("whole") / "parts", 1, "random")


def check_lists(own: Topology, whole: Topology, relation: Relation, nodes: np.ndarray) -> None:
    """Of some destinations lists are whole, those of all others empty."""
    counts = np.zeros(whole.in_degrees.size, np.int64)
    counts[nodes] = whole.in_degrees[nodes]
    assert np.array_equal(np.diff(own.indptr), counts)
    edges = np.flatnonzero(np.repeat(counts > 0, np.diff(whole.indptr)))
    for name in ("weight_sums", "times", "by_time"):
        found, wanted = getattr(own, name), getattr(whole, name)
        assert (found is not None) == (wanted is not None) == (name in ARRAYS[relation])
        assert found is None or np.array_equal(found, wanted[edges])


def test_whole_relations_have_what_a_division_by_node_has(
    graph: GraphDirectory, whole: PartitionedGraph, tmp_path: Path
) -> None:
    parts = partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    met = set()
    for server, held in enumerate(parts.holdings):
        for relation in sorted(held.relations):
            own = parts.topology(relation, server)
            every = np.arange(own.in_degrees.size)
            check_lists(own, whole.topology(relation), relation, every)
            met.add((server, relation))
    assert len(met) > len(EDGES)
    assert np.array_equal(parts.times("paper"), graph.times("paper"))
    told = json.loads((parts.path / "partition.json").read_text())
    for server, share in enumerate(told["per_server"]):
        files = list((parts.path / f"server-{server}" / "topology").rglob("*.npy"))
        assert sum(each.stat().st_size for each in files) == share["topology_bytes"]
    file = topology_file(parts.path / "server-0", WRITES, "weight_sums")
    np.save(file, np.load(file)[1:])
    with pytest.raises(GraphError, match=r"weight_sums of author/writes/paper: expected shape"):
        parts.topology(WRITES, 0)


def test_parts_have_whole_lists_with_gaps(
    graph: GraphDirectory, whole: PartitionedGraph, tmp_path: Path
) -> None:
    tree = make_metatree(make_metagraph(graph.schema), "paper", 2)
    memory = max(sum(part_bytes(graph, each)) for each in cut(graph, tree, WRITES, 2))
    parts = partition_by_relation(graph, tmp_path / "parts", 4, 2, server_memory=memory)
    roots = np.concatenate([graph.split("train"), graph.split("val")])
    for relation in (WRITES, CITES):
        servers = [s for s, held in enumerate(parts.holdings) if held.roots == (relation,)]
        assert len(servers) == 2
        lists, of_whole = [], whole.topology(relation)
        for server in servers:
            part, own = parts.root_topology(relation, server), parts.root_lists(relation, server)
            check_lists(own, of_whole, relation, roots)
            assert own.has_gaps
            assert own.positions is None
            assert np.array_equal(own.indices[own.indices >= 0], part.indices)
            lists.append(own.indices)
            for below in sorted(parts.holdings[server].relations):
                topology = parts.topology(below, server)
                expanded = np.flatnonzero(np.diff(topology.indptr))
                check_lists(topology, whole.topology(below), below, expanded)
        # Every edge is in one part, where it is in the whole.
        assert np.array_equal(sum((each >= 0).astype(int) for each in lists), lists[0] * 0 + 1)
        edges = np.flatnonzero(np.repeat(np.isin(np.arange(80), roots), of_whole.in_degrees))
        assert np.array_equal(np.maximum(*lists), of_whole.indices[edges])
        # Put together for one process they are those of the whole.
        together = parts.topology(relation)
        nodes = np.flatnonzero(np.diff(together.indptr))
        assert set(roots[of_whole.in_degrees[roots] > 0]) <= set(nodes)
        check_lists(together, of_whole, relation, nodes)
    told = json.loads((parts.path / "partition.json").read_text())
    for server, share in enumerate(told["per_server"]):
        files = list((parts.path / f"server-{server}").rglob("*.npy"))
        described = share["feature_bytes"] + share["topology_bytes"]
        assert sum(each.stat().st_size for each in files) == described + 128 * len(files)
    assert {each: list(draw_arrays(graph.schema, each)) for each in EDGES} == ARRAYS
