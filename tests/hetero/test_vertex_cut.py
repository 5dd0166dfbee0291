"""Sub-metatrees that are cut: what every part has, and what it takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cache_server.neighbour_draw import draw_hop
from hopper.cli import main
from hopper.errors import RequestError
from hopper.features import LocalRows
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
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
    """With which WRITES is cut into so many parts."""
    tree = make_metatree(make_metagraph(graph.schema), "paper", 2)
    return max(sum(part_bytes(graph, each)) for each in cut(graph, tree, WRITES, parts))


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
        whole = graph.topology(relation)
        servers = [s for s, held in enumerate(divided.holdings) if held.roots == (relation,)]
        assert [divided.holdings[s].part for s in servers] == [
            (place, len(servers)) for place in range(len(servers))
        ]
        assert len(servers) > 1
        found, sources = [], []
        for server in servers:
            mine = divided.root_topology(relation, server)
            assert mine.positions is not None
            assert np.array_equal(mine.in_degrees, whole.in_degrees)
            rows = np.repeat(np.arange(mine.in_degrees.size), np.diff(mine.indptr))
            at = whole.indptr[rows] + mine.positions
            assert np.array_equal(whole.indices[at], mine.indices)
            assert np.array_equal(whole.edge_ids[at], mine.edge_ids)
            found.append(at)
            sources.append(np.unique(mine.indices))
        wanted = [np.arange(*whole.indptr[root : root + 2]) for root in sorted(roots.tolist())]
        assert np.array_equal(np.sort(np.concatenate(found)), np.concatenate(wanted))
        # A source is whole, and loads differ by less than one source's.
        assert sum(each.size for each in sources) == np.unique(np.concatenate(sources)).size
        most = np.bincount(whole.indices).max()
        sizes = [each.size for each in found]
        assert max(sizes) - min(sizes) <= 2 * most


def test_rows_are_those_that_hops_reach(graph: GraphDirectory, divided: PartitionedGraph) -> None:
    roots = np.concatenate([graph.split("train"), graph.split("test")])
    for server, held in enumerate(divided.holdings):
        stored, rows = divided.stored("paper", server), LocalRows(divided, server)
        assert stored.contains(roots).all()
        for name in held.node_types:
            own = divided.stored(name, server)
            assert own.ids is not None
            assert own.count == held.held[name] == own.ids.size
            if graph.schema.node_types[name].feature_dim:
                mine = rows.gather("features", name, np.asarray(own.ids))
                assert np.array_equal(mine, graph.features(name)[own.ids])
        assert np.array_equal(
            rows.gather("labels", "paper", roots)[:, 0], graph.labels("paper")[roots]
        )
        # What is expanded has all of its in-neighbours, and their rows are here.
        met = np.unique(divided.root_topology(held.roots[0], server).indices)
        source = held.roots[0].src
        assert divided.stored(source, server).contains(met).all()
        for relation in held.relations:
            mine, whole = divided.topology(relation, server), graph.topology(relation)
            if relation.dst != source:
                assert mine.indices.size == 0
                continue
            for node in met.tolist():
                own_edges = slice(*mine.indptr[node : node + 2])
                edges = slice(*whole.indptr[node : node + 2])
                assert np.array_equal(mine.indices[own_edges], whole.indices[edges])
            assert divided.stored(relation.src, server).contains(mine.indices).all()
        nobody = np.setdiff1d(np.arange(COUNTS["author"]), divided.stored("author", server).ids)
        with pytest.raises(Exception, match=f"is not stored on server {server}"):
            rows.gather("features", "author", nobody[:1])


def test_edge_features_follow_the_edges(graph: GraphDirectory, divided: PartitionedGraph) -> None:
    server = next(s for s, held in enumerate(divided.holdings) if held.roots == (CITES,))
    mine = divided.topology(WRITES, server)
    stored = divided.edge_features(WRITES, server)
    assert stored is not None
    assert mine.edge_ids.size > 0
    assert np.array_equal(stored, graph.edge_features(WRITES)[mine.edge_ids])
    server = next(s for s, held in enumerate(divided.holdings) if held.roots == (WRITES,))
    stored = divided.root_edge_features(WRITES, server)
    assert stored is not None
    mine = divided.root_topology(WRITES, server)
    assert np.array_equal(stored, graph.edge_features(WRITES)[mine.edge_ids])


def test_parts_draw_together_what_one_server_draws(
    graph: GraphDirectory, divided: PartitionedGraph
) -> None:
    whole, ids = graph.topology(WRITES), np.arange(COUNTS["paper"])
    roots = np.asarray(graph.split("train"))[::-1].copy()
    for fanout in (1, 3, 50, -1):
        key = np.uint64(99)
        offsets, sources, positions = draw_hop(whole.indptr, whole.indices, ids, roots, fanout, key)
        wanted = np.stack([np.repeat(roots, np.diff(offsets)), positions, sources])
        found = []
        for server, held in enumerate(divided.holdings):
            if held.roots == (WRITES,):
                mine = divided.root_topology(WRITES, server)
                assert mine.positions is not None
                offsets, sources, positions = draw_hop_of_part(
                    mine.indptr, mine.indices, mine.positions, mine.in_degrees, ids, roots,
                    fanout, key,
                )  # fmt: skip
                heads = np.repeat(roots, np.diff(offsets))
                found.append(np.stack([heads, positions, sources]))
        assert len(found) == 3
        together = np.concatenate(found, 1)
        assert sorted(together.T.tolist()) == sorted(wanted.T.tolist())


def test_bytes_are_as_told(divided: PartitionedGraph) -> None:
    told = json.loads((divided.path / "partition.json").read_text())
    limit = told["meta"]["server_memory"]
    for server, share in enumerate(told["per_server"]):
        folder = divided.path / f"server-{server}"
        files = list(folder.rglob("*.npy"))
        on_disk = sum(file.stat().st_size for file in files)
        described = share["feature_bytes"] + share["topology_bytes"]
        assert described <= limit
        # But for the headers of files.
        assert on_disk == described + 128 * len(files)
        assert share["nodes"] == sum(told["meta"]["servers"][server]["held"].values())


def test_what_cannot_be_cut_small_enough_is_refused(
    graph: GraphDirectory,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(RequestError, match=r"takes [0-9.]+ KiB on a server when it is cut into 2"):
        partition_by_relation(graph, tmp_path / "parts", 3, 1, server_memory=20_000)
    words = ["partition", str(graph.path), "--out", str(tmp_path / "parts"), "--servers", "5"]
    assert main([*words, "--server-memory", "1K", "--method", "random"]) == 1
    assert "--server-memory: only --method meta reads it" in capfd.readouterr().err
    assert not (tmp_path / "parts").exists()
    memory = str(memory_for(graph, 3))
    assert main([*words, "--server-memory", memory, "--method", "meta"]) == 0
    assert "author/writes/paper (part 1 of 3)" in capfd.readouterr().out
