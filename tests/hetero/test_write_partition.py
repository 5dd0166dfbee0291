"""Directories divided by relation: what every server's folder stores, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Final, get_args

import numpy as np
import pytest

from cache_server.store.shard import Shard
from hopper.cli import main
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import GraphError, RequestError
from hopper.features import LocalRows
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.layout import TOPOLOGY_ARRAYS
from hopper.graph.schema import Relation
from hopper.hetero.divide import divide_graph
from hopper.hetero.write_partition import partition_by_relation
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.checksums import check_rows, check_structure
from hopper.partition.stored_files import Tables

WRITES = Relation("author", "writes", "paper")
CITES = Relation("paper", "cites", "paper")
WORKS = Relation("institution", "employs", "author")
UNREAD = Relation("paper", "appears", "venue")
COUNTS = {"author": 30, "institution": 4, "paper": 50, "venue": 3}
EDGES = {WRITES: 80, CITES: 120, WORKS: 40, UNREAD: 50}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    generator = np.random.default_rng(1)
    schema = GraphSchema(
        name="papers",
        node_types={
            "author": NodeType(30, 5, "float32"),
            "institution": NodeType(4),
            "paper": NodeType(50, 3, "float16"),
            "venue": NodeType(3, 2, "float32"),
        },
        relations={
            relation: EdgeType(count, 2, "float32") if relation == WRITES else EdgeType(count)
            for relation, count in EDGES.items()
        },
        target="paper",
        labels={"paper": Labels("class", 4)},
        splits={"train": 30},
    )
    out = tmp_path_factory.mktemp("papers") / "graph"
    with GraphWriter(out, schema) as writer:
        for relation, count in EDGES.items():
            src = generator.integers(0, COUNTS[relation.src], count)
            writer.topology(relation, src, generator.integers(0, COUNTS[relation.dst], count))
        for name in ("author", "paper", "venue"):
            rows = writer.features(name)
            rows[:] = generator.standard_normal(rows.shape)
        writer.edge_features(WRITES)[:] = generator.standard_normal((80, 2))
        writer.labels("paper", generator.integers(0, 4, 50))
        writer.split("train", np.arange(30))
    return GraphDirectory.open(out)


def test_a_server_stores_what_its_relations_touch(graph: GraphDirectory, tmp_path: Path) -> None:
    parts = partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    assert [partition.roots for partition in parts.partitions] == [(CITES,), (WRITES,)]
    first, second = parts.partitions
    assert first.relations == {CITES, WRITES}
    assert second.relations == {WRITES, WORKS}
    assert first.node_types == {"author", "paper"}
    assert second.node_types == {"author", "institution", "paper"}
    assert parts.relations == sorted([CITES, WORKS, WRITES])
    # Original ids stay.
    for name, count in COUNTS.items():
        ids = parts.original_ids(name)
        assert np.array_equal(ids, np.arange(count))
        # One array serves all that use it, and goes with the last of them.
        assert parts.global_ids(name) is ids
        in_memory = weakref.ref(ids)
        del ids
        assert in_memory() is None
        assert np.array_equal(parts.global_ids(name), np.arange(count))
    for server, partition in enumerate(parts.partitions):
        for relation in partition.relations:
            stored_topology, topology = parts.topology(relation, server), graph.topology(relation)
            for name in TOPOLOGY_ARRAYS:
                assert np.array_equal(getattr(stored_topology, name), getattr(topology, name))
        rows = LocalRows(parts, server)
        ids = np.array([49, 0, 7])
        assert np.array_equal(rows.gather("features", "paper", ids), graph.features("paper")[ids])
        assert np.array_equal(rows.gather("labels", "paper", ids)[:, 0], graph.labels("paper")[ids])
        tables = Shard.open(tmp_path / "parts" / f"server-{server}").tables
        assert set(tables) == {("features", "author"), ("features", "paper"), ("labels", "paper")}
        edges = np.asarray(graph.topology(WRITES).edge_ids)
        stored = parts.edge_features(WRITES, server)
        assert stored is not None
        assert np.array_equal(stored, graph.edge_features(WRITES)[edges])
    # The target's nodes have an owner each; authors belong to who follows most edges out of them.
    assert parts.book.offsets["paper"].tolist() == [0, 25, 50]
    assert parts.book.offsets["author"].tolist() == [0, 30, 30]
    assert parts.book.offsets["institution"].tolist() == [0, 0, 4]


def test_arrays_that_a_server_lacks_are_named(graph: GraphDirectory, tmp_path: Path) -> None:
    parts = partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    with pytest.raises(GraphError, match=r"institution/employs/author: not server 0, which stores"):
        parts.topology(WORKS, 0)
    with pytest.raises(GraphError, match=r"paper/appears/venue: no server stores it: .* 2 hops"):
        parts.topology(UNREAD)
    with pytest.raises(GraphError, match="node 3 is not stored on server 0"):
        LocalRows(parts, 0)._rows("features", "institution", np.array([3]))


def test_replicas_and_bytes_are_described(graph: GraphDirectory, tmp_path: Path) -> None:
    parts = partition_by_relation(graph, tmp_path / "parts", 3, layers=2)
    assert [(stored.roots, stored.place, stored.copies) for stored in parts.partitions] == [
        ((CITES,), 0, 2), ((CITES,), 1, 2), ((WRITES,), 0, 1)
    ]  # fmt: skip
    description = json.loads((tmp_path / "parts" / "partition.json").read_text())
    assert description["meta"]["unreachable"] == [str(UNREAD)]
    # Both replicas of one group together finish as many roots as the other group.
    assert [share["train"] for share in description["per_server"]] == [7, 7, 15]
    for server, share in enumerate(description["per_server"]):
        folder = tmp_path / "parts" / f"server-{server}"
        files = [file for file in folder.rglob("*.npy") if file.is_file()]
        on_disk = sum(file.stat().st_size for file in files)
        described_bytes = share["feature_bytes"] + share["topology_bytes"]
        # Headers of rows' files are not counted.
        assert described_bytes <= on_disk <= described_bytes + 128 * len(files)


def inodes_by_path(folder: Path) -> dict[str, int]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.stat().st_ino for file in files}


def contents_by_path(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in inodes_by_path(folder)}


def test_links_are_the_graph_s_files_and_equal_copies(
    graph: GraphDirectory, tmp_path: Path
) -> None:
    divisions = {
        tables: partition_by_relation(graph, tmp_path / tables, 2, layers=2, tables=tables)
        for tables in get_args(Tables)
    }
    linked_files, copied_files, graph_files = (
        inodes_by_path(divisions["link"].path),
        inodes_by_path(divisions["copy"].path),
        inodes_by_path(graph.path),
    )
    for table in ("features/paper.npy", "labels/paper.npy", f"topology/{WRITES}/indices.npy"):
        for server in range(2):
            assert linked_files[f"server-{server}/{table}"] == graph_files[table]
        # What several servers store is written once.
        assert copied_files[f"server-0/{table}"] == copied_files[f"server-1/{table}"]
    edges = f"edge_features/{WRITES}.npy"
    assert linked_files[f"server-0/{edges}"] == linked_files[f"server-1/{edges}"]
    assert set(copied_files.values()).isdisjoint(graph_files.values())
    linked_contents, copied_contents = (
        contents_by_path(divisions["link"].path),
        contents_by_path(divisions["copy"].path),
    )
    descriptions = [
        json.loads(files.pop("partition.json")) for files in (linked_contents, copied_contents)
    ]
    assert [description["meta"]["tables"] for description in descriptions] == ["link", "copy"]
    assert descriptions[0]["meta"]["linked_bytes"] > descriptions[1]["meta"]["linked_bytes"] == 0
    for files in (linked_contents, copied_contents):
        files.pop("checksums.json")  # that of partition.json, too
    assert linked_contents == copied_contents
    check_structure(divisions["link"].path, [0, 1])
    check_rows(divisions["link"].path, [0, 1])
    with pytest.raises(RequestError, match="--tables: expected link or copy, given move"):
        partition_by_relation(graph, tmp_path / "other", 2, layers=2, tables="move")  # type: ignore[arg-type]


def test_disk_space_is_needed_for_files_that_are_not_links(
    graph: GraphDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge_features = 80 * 2 * 4
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=edge_features))
    partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    with pytest.raises(RequestError, match="too little disk space"):
        partition_by_relation(graph, tmp_path / "copies", 2, layers=2, tables="copy")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=edge_features - 1))
    with pytest.raises(RequestError, match=rf"{edge_features} bytes\) needed"):
        partition_by_relation(graph, tmp_path / "links", 2, layers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


_KILLED: Final = """
import os, shutil, signal, sys
from hopper.graph import GraphDirectory
from hopper.hetero.write_partition import partition_by_relation
def die(*_):
    print("torch" in sys.modules, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
shutil.copyfile = die
partition_by_relation(GraphDirectory.open(sys.argv[1]), sys.argv[2], 2, layers=2, tables="copy")
"""


def test_a_killed_partition_leaves_nothing_half_written(
    graph: GraphDirectory, tmp_path: Path
) -> None:
    graph_before = contents_by_path(graph.path)
    command = [sys.executable, "-c", _KILLED, str(graph.path), str(tmp_path / "parts")]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, "False\n"), run.stderr
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name.startswith(".parts.unfinished-")
    partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]
    assert contents_by_path(graph.path) == graph_before


def test_a_failure_leaves_nothing(graph: GraphDirectory, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine").touch()
    with pytest.raises(RequestError, match="parts"):
        partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    with pytest.raises(RequestError, match="--target: expected 'paper', whose splits"):
        partition_by_relation(graph, tmp_path / "other", 2, layers=2, target="author")
    with pytest.raises(RequestError, match="servers: expected 1 to 65,536"):
        partition_by_relation(graph, tmp_path / "other", 0, layers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda meta: meta.pop("servers"), "field 'meta.servers': Field required"),
        (lambda meta: meta["servers"].pop(), "field 'meta': does not fit"),
        (lambda meta: meta["servers"][0].update(relations=["a/b/c"]), "does not fit"),
        (lambda meta: meta["servers"][0].update(node_types=["nobody"]), "does not fit"),
        (lambda meta: meta.update(target="author"), "does not fit"),
    ],
)
def test_a_damaged_description_is_refused(
    damage: object, message: str, graph: GraphDirectory, tmp_path: Path
) -> None:
    partition_by_relation(graph, tmp_path / "parts", 2, layers=2)
    file = tmp_path / "parts" / "partition.json"
    description = json.loads(file.read_text())
    assert callable(damage)
    damage(description["meta"])
    file.write_text(json.dumps(description))
    with pytest.raises(GraphError, match=message):
        PartitionedGraph.open(tmp_path / "parts")


def test_engines_and_divisions_that_do_not_fit_are_refused(
    graph: GraphDirectory, tmp_path: Path
) -> None:
    by_relation = partition_by_relation(graph, tmp_path / "by-relation", 2, layers=2)
    by_node = partition_graph(graph, tmp_path / "by-node", 2, "random")

    def check(parts: PartitionedGraph, engine: str, layers: int = 2, model: str = "rgcn") -> None:
        values = {
            "data": {"partitioned": str(parts.path)},
            "model": {"name": model, "layers": layers},
            "train": {"engine": engine},
        }
        check_request(Request(make_config(values), parts))

    check(by_relation, "raf")
    check(by_relation, "raf", layers=1)
    check(by_relation, "auto")
    check(by_node, "zero_hop")
    with pytest.raises(
        RequestError,
        match=r"divided by node \(random\), not by relation \(--method meta\), .*; expected",
    ):
        check(by_node, "raf")
    with pytest.raises(RequestError, match=r"expected raf \(or auto\), given zero_hop"):
        check(by_relation, "zero_hop")
    with pytest.raises(RequestError, match=r"is divided by relation, for typed models; .* 'sage'"):
        check_request(
            Request(
                make_config(
                    {
                        "data": {"partitioned": str(by_relation.path)},
                        "model": {"name": "sage", "layers": 2},
                        "train": {"engine": "auto"},
                    }
                ),
                by_relation,
            )
        )
    with pytest.raises(RequestError, match="was divided for 2 hops; expected at most that many"):
        check(by_relation, "raf", layers=3)
    with pytest.raises(RequestError, match=r"is divided by relation, for typed models"):
        check(by_relation, "raf", model="sage")


@pytest.mark.parametrize("options", [["--seed", "3"], ["--locality-roots", "0"]])
def test_options_of_other_methods_are_refused(
    options: list[str], graph: GraphDirectory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "parts"
    argv = ["partition", str(graph.path), "--method", "meta", "--servers", "2", "--out", str(out)]
    assert main([*argv, *options]) == 1
    assert f"{options[0]}: --method meta does not read it" in capfd.readouterr().err
    assert not out.exists()
    with pytest.raises(RequestError, match="seed: --method meta does not read that"):
        divide_graph(graph, out, 2, "meta", seed=3)
    with pytest.raises(RequestError, match="only --method meta reads them, not random"):
        divide_graph(graph, out, 2, "random", layers=2)


def test_the_command_prints_what_each_server_stores(
    graph: GraphDirectory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["partition", str(graph.path), "--method", "meta", "--servers", "2"]
    assert main([*arguments, "--out", str(tmp_path / "parts")]) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert "papers over 2 servers, 2 hops from paper" in printed
    assert "a node is held by" in printed
    assert "do not read them: paper/appears/venue" in printed
    assert main([*arguments, "--layers", "1", "--json", "--out", str(tmp_path / "one")]) == 0
    description = json.loads(capfd.readouterr().out)
    assert description["meta"]["layers"] == 1
    assert description["meta"]["unreachable"] == [str(WORKS), str(UNREAD)]


def test_weights_may_count_what_sampling_draws(graph: GraphDirectory, tmp_path: Path) -> None:
    parts = partition_by_relation(graph, tmp_path / "parts", 2, layers=2, weights_fanouts=[-1, -1])
    meta = parts.description["meta"]
    assert meta["weights_fanouts"] == [-1, -1]
    roots = {("paper", int(node)) for node in graph.split("train")}

    def sources(relations: list[Relation], nodes: set[tuple[str, int]]) -> list[tuple[str, int]]:
        found_sources = []
        for relation in relations:
            topology = graph.topology(relation)
            for kind, node in nodes:
                if kind == relation.dst:
                    in_neighbours = topology.indices[
                        topology.indptr[node] : topology.indptr[node + 1]
                    ]
                    found_sources += [(relation.src, int(neighbour)) for neighbour in in_neighbours]
        return found_sources

    expected = {}
    for root in (WRITES, CITES):
        first_hop = sources([root], roots)
        second_hop = sources([WRITES, CITES, WORKS], set(first_hop))
        # At the second hop the roots' in-edges are drawn again.
        expected[str(root)] = (
            len(set(first_hop)) + len(set(second_hop)) + 2 * len(first_hop) + len(second_hop)
        )
    assert meta["weights"] == expected
    by_counts = partition_by_relation(graph, tmp_path / "counted", 2, layers=2)
    assert by_counts.description["meta"]["weights_fanouts"] is None
    with pytest.raises(RequestError, match="expected 2 fanouts, one per hop, given 1"):
        partition_by_relation(graph, tmp_path / "other", 2, layers=2, weights_fanouts=[3])
    assert not (tmp_path / "other").exists()


def test_the_command_takes_weights_and_metapaths(
    graph: GraphDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(out: str, *options: str) -> int:
        return main(["partition", str(graph.path), "--servers", "2", "--out", str(tmp_path / out),
                     "--json", *options])  # fmt: skip

    options = ["--method", "meta", "--layers", "2", "--weights", "sampled"]
    options += ["--weights-fanouts", "2,3", "--metapath", "writes", "--metapath", "cites,cites"]
    assert run("parts", *options) == 0
    meta = json.loads(capsys.readouterr().out)["meta"]
    assert meta["weights_fanouts"] == [2, 3]
    assert sorted(meta["unreachable"]) == sorted(map(str, (WORKS, UNREAD)))
    for options, message in (
        (("--method", "meta", "--weights", "guessed"), "--weights: expected counts or sampled"),
        (("--method", "meta", "--weights-fanouts", "2,2"), "only --weights sampled reads it"),
        (("--method", "random", "--weights", "sampled"), "--weights: only --method meta reads it"),
        (("--method", "random", "--metapath", "cites"), "--metapath: only --method meta reads it"),
        (("--method", "meta", "--weights", "sampled", "--weights-fanouts", "0"),
         "--weights-fanouts: expected positive"),
    ):  # fmt: skip
        assert run("wrong", *options) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()
