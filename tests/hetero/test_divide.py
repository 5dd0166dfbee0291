"""Directories divided by relation: what every server's folder stores, whole or in parts, and what
is refused."""

import errno
import json
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from cache_server.draws.counter import draw_key
from cache_server.draws.neighbor_lists import NeighborLists
from cache_server.draws.spec import SamplingSpec
from cache_server.kernel import read_only
from cache_server.store.shard import Shard
from hopper.cli import main
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import GraphError, RequestError
from hopper.features import LocalRows
from hopper.graph import GraphDirectory, Relation, Topology
from hopper.graph.layout import draw_arrays, features_file, topology_file
from hopper.hetero.divide import divide_graph
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes
from hopper.hetero.write_partition import StoredFiles, Tables
from hopper.micrograph.frontier_kernels import draw_hop_of_part
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.checksums import check_rows, check_structure
from hopper.timing.phases import Silent

WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")
WORKS, UNREAD = Relation("institution", "employs", "author"), Relation("paper", "in", "venue")
COUNTS = {"author": 300, "institution": 40, "paper": 200, "venue": 3}
EDGES = {WRITES: 900, CITES: 50, WORKS: 500, UNREAD: 50}
DRAWN = ("cumulative_weights", "times", "by_time")
ROOTS = np.concatenate([np.arange(60), np.arange(100, 140)])


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> GraphDirectory:
    """Papers have times, and edges of one relation features, weights and times; half of the papers
    are in a split. Parallel edges are ordinary, as is a hub."""
    generator, edges = np.random.default_rng(4), {}
    for relation, count in EDGES.items():
        ends = (generator.integers(0, COUNTS[t], count) for t in (relation.src, relation.dst))
        src, dst = edges[relation] = np.stack([*ends])
        src[: count // 10] = 0
        dst[: count // 4] = min(7, COUNTS[relation.dst] - 1)
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("papers") / "papers",
        edges,
        {
            "author": generator.random((300, 64)),
            "paper": generator.random((200, 3)).astype(np.float16),
            "venue": generator.random((3, 2)),
        },
        {"paper": generator.integers(0, 4, 200)},
        {"train": ROOTS[:60], "test": ROOTS[60:]},
        edge_features={WRITES: generator.random((900, 2))},
        edge_weights={WRITES: np.exp(generator.normal(0, 2, 900))},
        times={"paper": generator.integers(0, 9, 200), WRITES: generator.integers(0, 9, 900)},
        counts=COUNTS,
        target="paper",
        name="papers",
    )


@pytest.fixture(scope="module")
def undivided(graph, tmp_path_factory) -> PartitionedGraph:
    """The graph on one server, where nodes keep their ids."""
    return partition_graph(graph, tmp_path_factory.mktemp("one") / "parts", 1, "random")


@pytest.fixture(scope="module")
def whole(graph, tmp_path_factory) -> PartitionedGraph:
    """Whole relations on two servers."""
    return divide_graph(graph, tmp_path_factory.mktemp("whole") / "parts", 2, "meta", layers=2)


@pytest.fixture(scope="module")
def in_parts(graph, tmp_path_factory) -> PartitionedGraph:
    """WRITES in three parts; CITES reads WRITES too, below the roots, and is cut in two."""
    out = tmp_path_factory.mktemp("cut") / "parts"
    return divide_graph(graph, out, 5, "meta", layers=2, server_memory=memory_for(graph, 3))


def memory_for(graph: GraphDirectory, parts: int) -> int:
    """Return the memory of a server with which WRITES is cut into ``parts`` parts."""
    tree = make_metatree(graph.schema, "paper", 2)
    return max(sum(part_bytes(graph, part)) for part in cut(graph, tree, WRITES, parts))


def check_lists(
    stored: Topology, undivided: Topology, nodes: np.ndarray, *, has_gaps: bool = False
) -> None:
    """Check that ``nodes`` have all of their in-edges, and other destinations none."""
    counts = np.zeros(undivided.in_degrees.size, np.int64)
    counts[nodes] = undivided.in_degrees[nodes]
    assert np.array_equal(np.diff(stored.indptr), counts)
    edges = np.flatnonzero(np.repeat(counts > 0, np.diff(undivided.indptr)))
    for name in DRAWN if has_gaps else ("indices", "edge_ids", *DRAWN):
        actual, expected = getattr(stored, name), getattr(undivided, name)
        assert (actual is None) == (expected is None)
        assert actual is None or np.array_equal(actual, expected[edges])
    for name in ("in_degrees", "out_degrees"):
        assert np.array_equal(getattr(stored, name), getattr(undivided, name))


def stored_bytes(folder: Path) -> int:
    """Return the bytes of all arrays in a folder, without their headers."""
    return sum(file.stat().st_size - 128 for file in folder.rglob("*.npy") if file.is_file())


def test_the_division_that_is_shown_beforehand_is_the_one_that_is_made(graph, whole, capsys):
    assert main(["inspect", "metatree", "--json", str(graph.path)]) == 0
    shown, made = json.loads(capsys.readouterr().out), whole.description["meta"]
    assert {"target", "weights", "servers"} <= shown.keys()
    assert shown == {key: made[key] for key in shown}


def test_a_server_stores_what_its_relations_touch(graph, undivided, whole):
    assert [partition.roots for partition in whole.partitions] == [(WRITES,), (CITES,)]
    first, second = whole.partitions
    assert first.relations == {WRITES, WORKS}
    assert second.relations == {CITES, WRITES}
    assert first.node_types == {"author", "institution", "paper"}
    assert second.node_types == {"author", "paper"}
    assert whole.relations == sorted([CITES, WORKS, WRITES])
    assert {r: list(draw_arrays(graph.schema, r)) for r in whole.relations} == {
        WRITES: [*DRAWN], CITES: [*DRAWN[1:]], WORKS: []
    }  # fmt: skip
    assert np.array_equal(whole.times("paper"), graph.times("paper"))
    for server, partition in enumerate(whole.partitions):
        for relation in partition.relations:
            topology = whole.topology(relation, server)
            check_lists(topology, undivided.topology(relation), np.arange(COUNTS[relation.dst]))
        tables = Shard.open(whole.path / f"server-{server}").tables
        assert set(tables) == {("features", "author"), ("features", "paper"), ("labels", "paper")}
    # The target's nodes have an owner each; authors belong to who follows most edges out of them.
    assert whole.book.offsets["paper"].tolist() == [0, 100, 200]
    assert whole.book.offsets["author"].tolist() == [0, 300, 300]
    assert whole.book.offsets["institution"].tolist() == [0, 40, 40]
    with pytest.raises(GraphError, match=r"institution/employs/author: not server 1, which stores"):
        whole.topology(WORKS, 1)
    with pytest.raises(GraphError, match=r"paper/in/venue: no server stores it: .* 2 hops"):
        whole.topology(UNREAD)
    with pytest.raises(GraphError, match="node 3 is not stored on server 1"):
        LocalRows(whole, 1)._rows("features", "institution", np.array([3]))


def test_original_ids_stay_and_are_one_array(whole):
    for name, count in COUNTS.items():
        ids = whole.original_ids(name)
        assert np.array_equal(ids, np.arange(count))
        # One array serves all that use it, and goes with the last of them.
        assert whole.global_ids(name) is ids
        in_memory = weakref.ref(ids)
        del ids
        assert in_memory() is None
        assert np.array_equal(whole.global_ids(name), np.arange(count))


def test_replicas_and_bytes_are_described(graph, in_parts, tmp_path):
    replicas = divide_graph(graph, tmp_path / "parts", 3, "meta", layers=2)
    assert [(stored.roots, stored.place, stored.copies) for stored in replicas.partitions] == [
        ((WRITES,), 0, 2), ((WRITES,), 1, 2), ((CITES,), 0, 1)
    ]  # fmt: skip
    meta, per_server = (replicas.description[key] for key in ("meta", "per_server"))
    assert meta["unreachable"] == [str(UNREAD)]
    # Both replicas of one group together finish as many roots as the other group.
    assert [share["train"] for share in per_server] == [15, 15, 30]
    for parts in (replicas, in_parts):
        for server, share in enumerate(parts.description["per_server"]):
            folder = parts.path / f"server-{server}"
            described = share["feature_bytes"] + share["topology_bytes"]
            if parts is in_parts:
                meta = parts.description["meta"]
                assert stored_bytes(folder) == described <= meta["server_memory"]
                assert share["nodes"] == sum(meta["servers"][server]["held"].values())
            else:
                # Of topology alone, headers count too.
                topology = list((folder / "topology").rglob("*.npy"))
                assert sum(file.stat().st_size for file in topology) == share["topology_bytes"]
                assert stored_bytes(folder) == described - 128 * len(topology)
    # Edges that several hops read below the roots count once.
    for part in cut(graph, make_metatree(graph.schema, "paper", 3), CITES, 2):
        for relation, count in part.edges.items():
            read = part.expanded[relation.dst]
            assert count == graph.topology(relation).in_degrees[read].sum()


# Parts of a relation that is too large for a server


def roots_of(graph: PartitionedGraph, relation: Relation) -> list[int]:
    return [s for s, partition in enumerate(graph.partitions) if partition.roots == (relation,)]


def test_every_edge_into_a_root_is_in_one_part(undivided, in_parts):
    for relation, servers in ((WRITES, [2, 3, 4]), (CITES, [0, 1])):
        servers = roots_of(in_parts, relation)
        expected = undivided.topology(relation)
        parts = [in_parts.partitions[server].part for server in servers]
        assert parts == [(index, len(servers)) for index in range(len(servers))]
        assert len(servers) > 1
        numbers, sources, lists = [], [], []
        for server in servers:
            topology = in_parts.root_topology(relation, server)
            assert topology.positions is not None
            assert np.array_equal(topology.in_degrees, expected.in_degrees)
            edges = expected.indptr[topology.list_destinations()] + topology.positions
            assert np.array_equal(expected.indices[edges], topology.indices)
            assert np.array_equal(expected.edge_ids[edges], topology.edge_ids)
            numbers.append(edges)
            sources.append(np.unique(topology.indices))
            # Draws by weight and time read whole lists, which have gaps.
            stored = in_parts.root_lists(relation, server)
            check_lists(stored, expected, ROOTS, has_gaps=True)
            assert stored.has_gaps
            assert stored.positions is None
            assert np.array_equal(stored.indices[stored.indices >= 0], topology.indices)
            lists.append(stored.indices)
        of_roots = np.flatnonzero(np.repeat(np.isin(np.arange(200), ROOTS), expected.in_degrees))
        assert np.array_equal(np.sort(np.concatenate(numbers)), of_roots)
        assert np.array_equal(np.max(lists, axis=0), expected.indices[of_roots])
        # All edges of a source are in one part: loads differ by two sources' edges at most.
        assert sum(ids.size for ids in sources) == np.unique(np.concatenate(sources)).size
        sizes = [edges.size for edges in numbers]
        assert max(sizes) - min(sizes) <= 2 * np.bincount(expected.indices).max()
        # One process that reads all parts gets the undivided lists.
        merged = in_parts.topology(relation)
        nodes = np.flatnonzero(np.diff(merged.indptr))
        assert set(ROOTS[expected.in_degrees[ROOTS] > 0]) <= set(nodes)
        check_lists(merged, expected, nodes)


def test_a_server_stores_the_rows_that_its_hops_reach(graph, undivided, in_parts):
    for server, partition in enumerate(in_parts.partitions):
        stored, rows = in_parts.stored("paper", server), LocalRows(in_parts, server)
        assert stored.contains(ROOTS).all()
        for name in partition.node_types:
            ids = in_parts.stored(name, server).ids
            assert ids is not None
            assert in_parts.stored(name, server).count == partition.stored[name] == ids.size
            if graph.schema.node_types[name].feature_dim:
                features = rows.gather("features", name, np.asarray(ids))
                assert np.array_equal(features, graph.features(name)[ids])
        labels = rows.gather("labels", "paper", ROOTS)[:, 0]
        assert np.array_equal(labels, graph.labels("paper")[ROOTS])
        # What is expanded has all of its in-neighbours, and their rows are here.
        (root,) = partition.roots
        expanded = np.unique(in_parts.root_topology(root, server).indices)
        assert in_parts.stored(root.src, server).contains(expanded).all()
        for relation in partition.relations:
            topology = in_parts.topology(relation, server)
            nodes = expanded if relation.dst == root.src else expanded[:0]
            check_lists(topology, undivided.topology(relation), nodes)
            assert in_parts.stored(relation.src, server).contains(topology.indices).all()
        # Features of edges follow the edges, below the roots and into them.
        expected = graph.features(WRITES)
        below = in_parts.features(str(WRITES), server)
        assert below is not None
        assert np.array_equal(below, expected[in_parts.topology(WRITES, server).edge_ids])
        if root == WRITES:
            into = np.load(features_file(in_parts.path / f"server-{server}/roots", WRITES))
            edge_ids = in_parts.root_topology(WRITES, server).edge_ids
            assert np.array_equal(into, expected[edge_ids])
        missing = np.setdiff1d(np.arange(300), in_parts.stored("author", server).ids)
        with pytest.raises(Exception, match=f"is not stored on server {server}"):
            rows.gather("features", "author", missing[:1])


def test_the_draws_of_all_parts_equal_those_of_one_server(graph, in_parts):
    undivided, ids = graph.topology(WRITES), read_only(np.arange(COUNTS["paper"]))
    roots = read_only(np.asarray(graph.split("train"))[::-1].copy())
    lists = NeighborLists(undivided.indptr, undivided.indices, np.arange(COUNTS["author"]), ids)
    for fanout in (1, 3, 50, -1):
        key = draw_key(1, 99, 0, 0, 0, 0)
        offsets, sources, positions = lists.draw(roots, SamplingSpec("uniform", fanout, key))
        expected = np.stack([np.repeat(roots, np.diff(offsets)), positions, sources])
        draws = []
        for server in roots_of(in_parts, WRITES):
            topology = in_parts.root_topology(WRITES, server)
            assert topology.positions is not None
            offsets, sources, positions = draw_hop_of_part(
                topology.indptr, topology.indices, topology.positions, topology.in_degrees,
                ids, roots, fanout, key,
            )  # fmt: skip
            draws.append(np.stack([np.repeat(roots, np.diff(offsets)), positions, sources]))
        assert len(draws) == 3
        assert sorted(np.concatenate(draws, 1).T.tolist()) == sorted(expected.T.tolist())


# Files: links or copies


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the inode and the content of every file."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(of.relative_to(folder)): (of.stat().st_ino, of.read_bytes()) for of in files}


def test_links_are_the_graph_s_files_and_equal_copies(graph, whole, tmp_path):
    copies = divide_graph(graph, tmp_path / "copy", 2, "meta", layers=2, tables="copy")
    linked, copied, of_graph = (contents(path) for path in (whole.path, copies.path, graph.path))
    for table in ("features/paper.npy", "labels/paper.npy", f"topology/{WRITES}/indices.npy"):
        for server in range(2):
            assert linked[f"server-{server}/{table}"] == of_graph[table]
        # What several servers store is written once.
        assert copied[f"server-0/{table}"] == copied[f"server-1/{table}"]
    edges = f"edge_features/{WRITES}.npy"
    assert linked[f"server-0/{edges}"] == linked[f"server-1/{edges}"]
    assert not {inode for inode, _ in copied.values()} & {inode for inode, _ in of_graph.values()}
    metas = [parts.description["meta"] for parts in (whole, copies)]
    assert [meta["tables"] for meta in metas] == [*get_args(Tables)]
    assert metas[0]["linked_bytes"] > metas[1]["linked_bytes"] == 0
    for files in (linked, copied):
        # Seconds are in one, and its checksum in the other.
        del files["partition.json"], files["checksums.json"]
    assert {n: text for n, (_, text) in linked.items()} == {n: c for n, (_, c) in copied.items()}
    check_structure(whole.path, [0, 1])
    check_rows(whole.path, [0, 1])


@pytest.mark.parametrize("code", [0, errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_a_file_is_a_link_or_as_few_copies_as_can_be(code, tmp_path, monkeypatch):
    """A graph on another file system is copied once, if links within the destination work."""
    source, name = tmp_path / "graph" / "rows.npy", tmp_path / "name.npy"
    source.parent.mkdir()
    source.write_bytes(os.urandom(100_003))
    name.symlink_to(source)
    files, link, written = StoredFiles("link"), os.link, list[int]()
    targets = [tmp_path / f"server-{server}" / "rows.npy" for server in range(3)]
    copies = {0: 0, errno.EXDEV: 1}.get(code, 3)

    def refuse(first: Path, second: Path) -> None:
        if copies == 3 or (copies and first == source):
            raise OSError(code, os.strerror(code))
        link(first, second)

    monkeypatch.setattr(os, "link", refuse)
    for target in targets:
        files.store(name, target)
        with pytest.raises(FileExistsError):
            files.store(name, target)
    assert files.bytes_to_write == copies * 100_003
    assert files.linked_bytes == (0 if copies else 300_009)
    progress = Silent()
    monkeypatch.setattr(progress, "advance", written.append)
    files.write(progress)
    assert written == [100_003] * copies
    assert all(target.read_bytes() == source.read_bytes() for target in targets)
    assert not any(target.is_symlink() for target in targets)
    assert len({path.stat().st_ino for path in (source, *targets)}) == 1 + copies


def test_a_full_disk_is_an_error_before_or_while_files_are_written(graph, tmp_path, monkeypatch):
    # Features, weights and two times an edge of WRITES, the times of CITES: all that is no link.
    nbytes = 900 * (8 + 4 + 16) + 50 * 16
    usage = SimpleNamespace(free=nbytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    divide_graph(graph, tmp_path / "parts", 2, "meta", layers=2)
    with pytest.raises(RequestError, match="too little disk space"):
        divide_graph(graph, tmp_path / "copies", 2, "meta", layers=2, tables="copy")
    usage.free -= 1
    with pytest.raises(RequestError, match=rf"{nbytes} bytes\) needed"):
        divide_graph(graph, tmp_path / "links", 2, "meta", layers=2)
    usage.free = 1 << 40

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "sendfile", refuse)
    with pytest.raises(OSError, match=r"No space left on device: .*\.npy"):
        divide_graph(graph, tmp_path / "full", 2, "meta", layers=2, tables="copy")
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


# What is refused


def test_impossible_requests_are_refused_and_leave_nothing(graph, tmp_path):
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "mine").touch()
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("occupied", {}, "occupied: already exists"),
        ("out", {"servers": 0}, "servers: expected 1 to 65,536"),
        ("out", {"tables": "move"}, "--tables: expected link or copy, given move"),
        ("out", {"seed": 3}, "seed: --method meta does not read that"),
        ("out", {"method": "random"}, "only --method meta reads them, not random"),
        (
            "out",
            {"servers": 3, "layers": 1, "server_memory": 20_000},
            r"takes [0-9.]+ KiB on a server when it is cut into 2",
        ),
    ]
    for out, options, text in refused:
        arguments: dict[str, Any] = {"servers": 2, "method": "meta", "layers": 2, **options}
        with pytest.raises(RequestError, match=text):
            divide_graph(graph, tmp_path / out, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["occupied"]


def test_damaged_directories_are_refused(whole, tmp_path):
    shutil.copytree(whole.path, tmp_path / "parts")
    file, text = tmp_path / "parts" / "partition.json", "field 'meta': does not fit"
    damages: list[tuple[Callable[[Any], object], str]] = [
        (lambda meta: meta.pop("servers"), r"json: meta\.servers: missing field"),
        (lambda meta: meta["servers"].pop(), text),
        (lambda meta: meta["servers"][0].update(relations=["a/b/c"]), text),
        (lambda meta: meta["servers"][0].update(node_types=["nobody"]), text),
        (lambda meta: meta.update(target="author"), text),
    ]
    for damage, message in damages:
        description = json.loads((whole.path / "partition.json").read_text())
        damage(description["meta"])
        file.write_text(json.dumps(description))
        with pytest.raises(GraphError, match=message):
            PartitionedGraph.open(tmp_path / "parts")
    shutil.copyfile(whole.path / "partition.json", file)
    array = topology_file(tmp_path / "parts" / "server-0", WRITES, "cumulative_weights")
    np.save(array, np.load(array)[1:])
    with pytest.raises(GraphError, match=r"cumulative_weights of author/\S+: expected shape"):
        PartitionedGraph.open(tmp_path / "parts").topology(WRITES, 0)


def test_engines_and_divisions_that_do_not_fit_are_refused(whole, undivided):
    def check(parts: PartitionedGraph, engine: str, layers: int = 2, model: str = "rgcn") -> None:
        values = {
            "data": {"partitioned": str(parts.path)},
            "model": {"name": model, "layers": layers},
            "train": {"engine": engine},
        }
        check_request(Request(make_config(values), parts))

    for engine, layers in (("raf", 2), ("raf", 1), ("auto", 2)):
        check(whole, engine, layers)
    check(undivided, "zero_hop")
    refused: list[tuple[tuple[Any, ...], str]] = [
        (
            (undivided, "raf"),
            r"divided by node \(random\), not by relation \(--method meta\), .*; expected",
        ),
        ((whole, "zero_hop"), r"expected raf \(or auto\), given zero_hop"),
        ((whole, "auto", 2, "sage"), r"is divided by relation, for typed models; .* 'sage'"),
        ((whole, "raf", 2, "sage"), r"is divided by relation, for typed models"),
        ((whole, "raf", 3), "was divided for 2 hops; expected at most that many"),
    ]
    for request, text in refused:
        with pytest.raises(RequestError, match=text):
            check(*request)


def test_the_command(graph, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(out: str, *options: str) -> int:
        where = ["--servers", "5", "--out", str(tmp_path / out)]
        return main(["partition", str(graph.path), *where, *options])

    memory = str(memory_for(graph, 3))
    assert run("parts", "--method", "meta", "--server-memory", memory) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert "papers over 5 servers, 2 hops from paper" in printed
    assert "author/writes/paper (part 1 of 3)" in printed
    assert "a node is held by" in printed
    assert "do not read them: paper/in/venue" in printed
    paths = ["--metapath", "writes", "--metapath", "cites,cites"]
    assert run("paths", "--method", "meta", "--layers", "2", "--json", *paths) == 0
    meta = json.loads(capfd.readouterr().out)["meta"]
    assert meta["layers"] == 2
    assert sorted(meta["unreachable"]) == sorted(map(str, (WORKS, UNREAD)))
    for options, message in (
        (("--method", "random", "--server-memory", "1K"), "--server-memory: only --method meta"),
        (("--method", "random", "--metapath", "cites"), "--metapath: only --method meta reads it"),
        (("--method", "meta", "--seed", "3"), "--seed: --method meta does not read it"),
        (("--method", "meta", "--locality-roots", "0"), "--locality-roots: --method meta does not"),
    ):
        assert run("wrong", *options) == 1
        assert message in capfd.readouterr().err
    assert not (tmp_path / "wrong").exists()
