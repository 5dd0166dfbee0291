"""Sub-metatrees that are cut: what every part has, and what it takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cache_server.draws.counter import draw_key
from cache_server.draws.neighbor_lists import NeighborLists
from cache_server.draws.spec import SamplingSpec
from cache_server.kernel import read_only
from hopper.cli import main
from hopper.errors import RequestError
from hopper.features import LocalRows
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.layout import edge_features_file
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes
from hopper.hetero.write_partition import partition_by_relation
from hopper.micrograph.frontier_kernels import draw_hop_of_part
from hopper.partition import PartitionedGraph

WRITES = Relation("author", "writes", "paper")
WORKS = Relation("institution", "employs", "author")
CITES = Relation("paper", "cites", "paper")
COUNTS = {"author": 300, "institution": 40, "paper": 200}
EDGES = {WRITES: 900, WORKS: 500, CITES: 50}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    generator = np.random.default_rng(4)
    schema = GraphSchema(
        name="papers",
        node_types={
            "author": NodeType(300, 64, "float32"),
            "institution": NodeType(40),
            "paper": NodeType(200, 3, "float16"),
        },
        relations={
            relation: EdgeType(count, 2, "float32") if relation == WRITES else EdgeType(count)
            for relation, count in EDGES.items()
        },
        target="paper",
        labels={"paper": Labels("class", 4)},
        splits={"train": 60, "test": 40},
    )
    out = tmp_path_factory.mktemp("papers") / "graph"
    with GraphWriter(out, schema) as writer:
        for relation, count in EDGES.items():
            src = generator.integers(0, COUNTS[relation.src], count)
            # Parallel edges are ordinary, as is a hub.
            src[: count // 10] = 0
            dst = generator.integers(0, COUNTS[relation.dst], count)
            dst[: count // 4] = 7
            writer.topology(relation, src, dst)
        for name in ("author", "paper"):
            rows = writer.features(name)
            rows[:] = generator.standard_normal(rows.shape)
        writer.edge_features(WRITES)[:] = generator.standard_normal((900, 2))
        writer.labels("paper", generator.integers(0, 4, 200))
        writer.split("train", np.arange(60))
        writer.split("test", np.arange(100, 140))
    return GraphDirectory.open(out)


def memory_for(graph: GraphDirectory, parts: int) -> int:
    """Return the memory of a server with which WRITES is cut into ``parts`` parts."""
    tree = make_metatree(make_metagraph(graph.schema), "paper", 2)
    return max(sum(part_bytes(graph, part)) for part in cut(graph, tree, WRITES, parts))


@pytest.fixture(scope="module")
def divided(graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    """WRITES in three parts; CITES reads WRITES too, below the roots, and is cut in two."""
    out = tmp_path_factory.mktemp("cut") / "parts"
    return partition_by_relation(graph, out, 5, 2, server_memory=memory_for(graph, 3))


def test_every_edge_into_a_root_is_in_one_part(
    graph: GraphDirectory, divided: PartitionedGraph
) -> None:
    roots = np.concatenate([graph.split("train"), graph.split("test")])
    for relation in (WRITES, CITES):
        undivided = graph.topology(relation)
        servers = [
            s for s, partition in enumerate(divided.partitions) if partition.roots == (relation,)
        ]
        assert [divided.partitions[s].part for s in servers] == [
            (place, len(servers)) for place in range(len(servers))
        ]
        assert len(servers) > 1
        edge_places, sources = [], []
        for server in servers:
            topology = divided.root_topology(relation, server)
            assert topology.positions is not None
            assert np.array_equal(topology.in_degrees, undivided.in_degrees)
            rows = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
            places = undivided.indptr[rows] + topology.positions
            assert np.array_equal(undivided.indices[places], topology.indices)
            assert np.array_equal(undivided.edge_ids[places], topology.edge_ids)
            edge_places.append(places)
            sources.append(np.unique(topology.indices))
        expected = [
            np.arange(*undivided.indptr[root : root + 2]) for root in sorted(roots.tolist())
        ]
        assert np.array_equal(np.sort(np.concatenate(edge_places)), np.concatenate(expected))
        # All edges of a source are in one part: loads differ by two sources' edges at most.
        assert sum(ids.size for ids in sources) == np.unique(np.concatenate(sources)).size
        largest_source = np.bincount(undivided.indices).max()
        sizes = [places.size for places in edge_places]
        assert max(sizes) - min(sizes) <= 2 * largest_source


def test_a_server_stores_the_rows_that_its_hops_reach(
    graph: GraphDirectory, divided: PartitionedGraph
) -> None:
    roots = np.concatenate([graph.split("train"), graph.split("test")])
    for server, partition in enumerate(divided.partitions):
        stored, rows = divided.stored("paper", server), LocalRows(divided, server)
        assert stored.contains(roots).all()
        for name in partition.node_types:
            stored_rows = divided.stored(name, server)
            assert stored_rows.ids is not None
            assert stored_rows.count == partition.stored[name] == stored_rows.ids.size
            if graph.schema.node_types[name].feature_dim:
                server_features = rows.gather("features", name, np.asarray(stored_rows.ids))
                assert np.array_equal(server_features, graph.features(name)[stored_rows.ids])
        assert np.array_equal(
            rows.gather("labels", "paper", roots)[:, 0], graph.labels("paper")[roots]
        )
        # What is expanded has all of its in-neighbours, and their rows are here.
        expanded = np.unique(divided.root_topology(partition.roots[0], server).indices)
        source = partition.roots[0].src
        assert divided.stored(source, server).contains(expanded).all()
        for relation in partition.relations:
            topology, undivided = divided.topology(relation, server), graph.topology(relation)
            if relation.dst != source:
                assert topology.indices.size == 0
                continue
            for node in expanded.tolist():
                server_edges = slice(*topology.indptr[node : node + 2])
                edges = slice(*undivided.indptr[node : node + 2])
                assert np.array_equal(topology.indices[server_edges], undivided.indices[edges])
            assert divided.stored(relation.src, server).contains(topology.indices).all()
        missing = np.setdiff1d(np.arange(COUNTS["author"]), divided.stored("author", server).ids)
        with pytest.raises(Exception, match=f"is not stored on server {server}"):
            rows.gather("features", "author", missing[:1])


def test_edge_features_follow_the_edges(graph: GraphDirectory, divided: PartitionedGraph) -> None:
    server = next(
        s for s, partition in enumerate(divided.partitions) if partition.roots == (CITES,)
    )
    topology = divided.topology(WRITES, server)
    stored = divided.edge_features(WRITES, server)
    assert stored is not None
    assert topology.edge_ids.size > 0
    assert np.array_equal(stored, graph.edge_features(WRITES)[topology.edge_ids])
    server = next(
        s for s, partition in enumerate(divided.partitions) if partition.roots == (WRITES,)
    )
    roots = divided.path / f"server-{server}" / "roots"
    topology = divided.root_topology(WRITES, server)
    assert np.array_equal(
        np.load(edge_features_file(roots, WRITES)), graph.edge_features(WRITES)[topology.edge_ids]
    )


def test_the_draws_of_all_parts_equal_those_of_one_server(
    graph: GraphDirectory, divided: PartitionedGraph
) -> None:
    undivided, ids = graph.topology(WRITES), read_only(np.arange(COUNTS["paper"]))
    roots = read_only(np.asarray(graph.split("train"))[::-1].copy())
    for fanout in (1, 3, 50, -1):
        key = draw_key(1, 99, 0, 0, 0, 0)
        lists = NeighborLists(undivided.indptr, undivided.indices, np.arange(COUNTS["author"]), ids)
        offsets, sources, positions = lists.draw(roots, SamplingSpec("uniform", fanout, key))
        expected = np.stack([np.repeat(roots, np.diff(offsets)), positions, sources])
        draws = []
        for server, partition in enumerate(divided.partitions):
            if partition.roots == (WRITES,):
                topology = divided.root_topology(WRITES, server)
                assert topology.positions is not None
                offsets, sources, positions = draw_hop_of_part(
                    topology.indptr, topology.indices, topology.positions, topology.in_degrees,
                    ids, roots, fanout, key,
                )  # fmt: skip
                heads = np.repeat(roots, np.diff(offsets))
                draws.append(np.stack([heads, positions, sources]))
        assert len(draws) == 3
        all_draws = np.concatenate(draws, 1)
        assert sorted(all_draws.T.tolist()) == sorted(expected.T.tolist())


def test_described_bytes_equal_those_on_disk(divided: PartitionedGraph) -> None:
    description = json.loads((divided.path / "partition.json").read_text())
    limit = description["meta"]["server_memory"]
    for server, share in enumerate(description["per_server"]):
        folder = divided.path / f"server-{server}"
        files = list(folder.rglob("*.npy"))
        on_disk = sum(file.stat().st_size for file in files)
        described_bytes = share["feature_bytes"] + share["topology_bytes"]
        assert described_bytes <= limit
        # But for the headers of files.
        assert on_disk == described_bytes + 128 * len(files)
        assert share["nodes"] == sum(description["meta"]["servers"][server]["held"].values())


def test_what_cannot_be_cut_small_enough_is_refused(
    graph: GraphDirectory,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(RequestError, match=r"takes [0-9.]+ KiB on a server when it is cut into 2"):
        partition_by_relation(graph, tmp_path / "parts", 3, 1, server_memory=20_000)
    arguments = ["partition", str(graph.path), "--out", str(tmp_path / "parts"), "--servers", "5"]
    assert main([*arguments, "--server-memory", "1K", "--method", "random"]) == 1
    assert "--server-memory: only --method meta reads it" in capfd.readouterr().err
    assert not (tmp_path / "parts").exists()
    memory = str(memory_for(graph, 3))
    assert main([*arguments, "--server-memory", memory, "--method", "meta"]) == 0
    assert "author/writes/paper (part 1 of 3)" in capfd.readouterr().out
