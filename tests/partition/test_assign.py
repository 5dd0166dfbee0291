"""Random is balanced and reproducible, METIS finds communities, with and without DGL."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema, NodeType, Relation
from hopper.partition import partition_graph
from hopper.partition.balance import MOST_CLASSES, Balance, balance_classes, combined_weight
from hopper.partition.metis import Backend, assign_metis, choose_backend
from hopper.partition.random import assign_random
from hopper.partition.stacked_ids import NodeArrays
from hopper.partition.symmetrize import Adjacency, symmetrize
from hopper.scratch import scratch_folder

MakeGraph = Callable[..., GraphDirectory]
ARRAYS = NodeArrays(Path())


@pytest.fixture
def planted(make_graph: MakeGraph) -> GraphDirectory:
    """Four communities of 500, interleaved by id; nine edges in ten stay inside."""
    generator = np.random.default_rng(3)
    nodes, edges = 2000, 10_000
    src = generator.integers(0, nodes, edges)
    in_community = 4 * generator.integers(0, nodes // 4, edges) + src % 4
    dst = np.where(generator.random(edges) < 0.9, in_community, generator.integers(0, nodes, edges))
    return make_graph("planted", nodes, src, dst, range(0, nodes, 3))


@pytest.mark.parametrize("backend", ["dgl", "pymetis"])
def test_metis_finds_planted_communities(planted: GraphDirectory, backend: str) -> None:
    if backend == "dgl":
        pytest.importorskip("dgl")
    folder = planted.path.parent
    random = partition_graph(planted, folder / "random", 4, "random").description
    metis = partition_graph(planted, folder / "metis", 4, backend=backend).description
    # Planted: 7.5 % of the edges; random: three in four.
    assert metis["edge_cut"] < 0.1 < 0.7 < random["edge_cut"]
    assert max(metis["balance"].values()) < 1.1
    assert (metis["method"], metis["backend"]) == ("metis", backend)
    assert metis["seed_used"] is (backend == "pymetis")


@pytest.mark.parametrize("backend", ["dgl", "pymetis"])
def test_metis_can_be_repeated(planted: GraphDirectory, backend: Backend) -> None:
    """Memory that is new to METIS is zeroed from its interpreter's first moment."""
    if backend == "dgl":
        pytest.importorskip("dgl")
    adjacency = symmetrize(planted)
    weights = Balance.of(planted).weights(planted, adjacency, backend)
    scratch = planted.path.parent
    # DGL's METIS has no seed, so there another one must not matter.
    seeds = (1, 2) if backend == "dgl" else (1, 1, 2)
    first, repeated, *other_seeds = (
        assign_metis(adjacency, weights, 5, seed, backend, scratch) for seed in seeds
    )
    np.testing.assert_array_equal(first, repeated)
    assert all((homes != first).any() for homes in other_seeds)


def test_metis_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """The parent has ended before METIS could ask the kernel to be ended with it."""
    words = [sys.executable, "-P", "-m", "hopper.partition.metis", str(tmp_path), "pymetis"]
    words += ["2", "0", "--die-with-parent", str(os.getppid())]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.endswith(", which started this one, has ended\n")


# METIS takes seconds for it.
DIVIDES = """
import sys
from pathlib import Path
import numpy as np
from hopper.partition.metis import assign_metis
from hopper.partition.symmetrize import Adjacency, symmetrize
from hopper.signal_handlers import EndedBySignal, end_on_signals

nodes = 200_000
ends = np.repeat(np.arange(nodes), 6), np.random.default_rng(0).integers(0, nodes, 6 * nodes)
src, dst = np.concatenate(ends), np.concatenate(ends[::-1])
order, indptr = np.argsort(dst), np.zeros(nodes + 1, np.int64)
np.cumsum(np.bincount(dst, minlength=nodes), out=indptr[1:])
weights = np.ones((nodes, 1), np.int64)
try:
    with end_on_signals():
        adjacency = Adjacency(indptr, src[order])
        assign_metis(adjacency, weights, 4, 0, "pymetis", Path(sys.argv[1]))
except EndedBySignal as error:
    sys.exit(error.code)
"""


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_metis_ends_with_the_process_that_started_it(tmp_path: Path, kind: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DIVIDES, str(tmp_path)]) as process:
        parent = psutil.Process(process.pid)
        while not (children := parent.children()) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(kind)
        code = process.wait(60)
    assert code == (-kind if kind == signal.SIGKILL else 128 + kind)
    deadline = time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        while children[0].status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "METIS goes on"
            time.sleep(0.05)
    # A killed process removes nothing; the next one does.
    with scratch_folder(".metis.unfinished-", tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_a_disk_too_full_for_the_result_of_metis_is_told_before_metis_runs(
    planted: GraphDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_file: int, _first: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("METIS runs"))
    adjacency = Adjacency(np.array([0, 1, 2]), np.array([1, 0]))
    with pytest.raises(OSError, match=r"No space left on device: '.*homes.npy'"):
        assign_metis(adjacency, np.ones((2, 1), np.int64), 2, 0, "pymetis", planted.path.parent)


def test_a_failing_metis_is_an_error_that_quotes_its_output(planted: GraphDirectory) -> None:
    pair = Adjacency(np.array([0, 1, 2]), np.array([1, 0]))
    weights = np.ones((2, 0), np.int64)
    with pytest.raises(
        RequestError, match=r"(?s)could not divide 2 nodes over 2 .*exit code 1.*it said"
    ):
        assign_metis(pair, weights, 2, 0, "pymetis", planted.path.parent)
    assert [path.name for path in planted.path.parent.iterdir()] == ["planted"]


def test_pymetis_takes_over_where_dgl_is_missing(
    planted: GraphDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    assert choose_backend() == "pymetis"
    with pytest.raises(RequestError, match=r"METIS needs dgl.* pip install dgl==1\.1"):
        choose_backend("dgl")
    first = partition_graph(planted, planted.path.parent / "first", 4, seed=9)
    repeated = partition_graph(planted, planted.path.parent / "again", 4, seed=9)
    assert first.description["backend"] == "pymetis"
    np.testing.assert_array_equal(first.original_ids("node"), repeated.original_ids("node"))


def test_without_any_metis_streaming_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(RequestError, match="or use --method stream"):
        choose_backend()
    with pytest.raises(RequestError, match="expected auto, dgl or pymetis, given 'parmetis'"):
        choose_backend("parmetis")


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_random_is_balanced_by_type(servers: int) -> None:
    schema = _nodes(author=100, paper=31, venue=2, keyword=0)
    homes = assign_random(schema, servers, seed=4, arrays=ARRAYS)
    for node_type, kind in schema.node_types.items():
        shares = np.bincount(homes[node_type], minlength=servers)
        assert shares.sum() == kind.count
        assert shares.max() - shares.min() <= 1


def test_random_depends_on_seed_and_type_alone() -> None:
    papers = assign_random(_nodes(paper=50), 3, seed=1, arrays=ARRAYS)["paper"]
    several_types = assign_random(_nodes(author=8, paper=50), 3, seed=1, arrays=ARRAYS)
    np.testing.assert_array_equal(papers, several_types["paper"])
    assert (papers != assign_random(_nodes(paper=50), 3, seed=2, arrays=ARRAYS)["paper"]).any()
    assert (papers != assign_random(_nodes(author=50), 3, seed=1, arrays=ARRAYS)["author"]).any()


def test_random_ignores_the_order_of_edges(make_graph: MakeGraph) -> None:
    generator = np.random.default_rng(0)
    src, dst = generator.integers(0, 30, (2, 100))
    order = generator.permutation(100)
    in_order = make_graph("one", 30, src, dst, [1])
    shuffled = make_graph("two", 30, src[order], dst[order], [1])
    parts = [
        partition_graph(graph, graph.path.parent / f"{graph.path.name}-p", 3, "random")
        for graph in (in_order, shuffled)
    ]
    np.testing.assert_array_equal(parts[0].original_ids("node"), parts[1].original_ids("node"))
    relation = Relation("node", "edge", "node")
    np.testing.assert_array_equal(*(part.topology(relation).indices for part in parts))


def test_random_vector_of_the_documentation() -> None:
    homes = assign_random(_nodes(paper=8), 3, seed=1, arrays=ARRAYS)["paper"]
    assert homes.tolist() == [2, 0, 1, 1, 1, 0, 0, 2]


def test_the_symmetric_graph_equals_one_made_of_sets(library: GraphDirectory) -> None:
    schema = library.schema
    topologies = {relation: library.topology(relation) for relation in schema.relations}
    adjacency = symmetrize(library)
    starts = {"author": 0, "paper": 17, "venue": 57, "keyword": 58}
    pairs = set()
    for relation, edges in topologies.items():
        for v in range(edges.indptr.size - 1):
            for u in edges.indices[edges.indptr[v] : edges.indptr[v + 1]]:
                ends = (starts[relation.src] + int(u), starts[relation.dst] + v)
                pairs |= {ends, ends[::-1]} if ends[0] != ends[1] else set()
    stored_pairs = [
        (row, int(end))
        for row in range(adjacency.nodes)
        for end in adjacency.indices[adjacency.indptr[row] : adjacency.indptr[row + 1]]
    ]
    assert stored_pairs == sorted(pairs)


def test_balance_classes_separate_types_and_training_nodes() -> None:
    schema = _nodes(author=2, paper=4, venue=1)
    classes = balance_classes(schema, np.array([0, 1]))
    assert classes.tolist() == [2, 0, 1, 1, 1, 1, 3]
    many_types = _nodes(**{f"type{i}": 20 - i for i in range(12)})
    roots = np.zeros(20, np.int64)
    assert balance_classes(many_types, roots).max() == MOST_CLASSES - 1


def test_combined_weight_gives_each_measure_a_third() -> None:
    degrees, classes = np.arange(100), np.where(np.arange(100) % 4 == 0, 0, 1)
    weight = combined_weight(degrees, classes)
    assert weight.sum() == pytest.approx(3 * 16 * 100, rel=0.01)
    # One of 100,000 nodes is for training: it must not weigh as much as all others.
    with_one_root = combined_weight(
        np.ones(100_000, np.int64), (np.arange(100_000) > 0).astype(np.int64)
    )
    assert with_one_root[0] / with_one_root.sum() < 0.001


def _nodes(**counts: int) -> GraphSchema:
    return GraphSchema(
        name="nodes",
        node_types={name: NodeType(count) for name, count in counts.items()},
        relations={},
        target=next(iter(counts)),
    )
