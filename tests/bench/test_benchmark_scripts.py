"""Scripts of benchmarks/ measure in turns, and write lines of summary.csv; batches of ClusterGCN
consist of whole clusters."""

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import link_prediction, rows_beyond_memory, two_commits
from benchmarks.cluster_gcn import ClusterBatches, ClusterSampler
from benchmarks.faults.bad_requests import send_bad_requests
from benchmarks.rounds import Results, take_turns
from benchmarks.summary import SUMMARY_FILE, Row, read, write
from hopper.config import change_config, make_config
from hopper.engines import Request
from hopper.engines.assemble import make_sampler, make_schedule
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import make
from hopper.partition import PartitionedGraph, partition_graph


@pytest.fixture(scope="module")
def typed_parts(tmp_path_factory) -> Path:
    """A small typed graph on one server."""
    folder = tmp_path_factory.mktemp("typed")
    make("mag-like", folder / "graph", scale=0.0005)
    graph = GraphDirectory.open(folder / "graph")
    partition_graph(graph, folder / "parts", 1, "random")
    return folder / "parts"


def run(script: str, out: Path, *words: str) -> list[Row]:
    """Run a script in this process. Return the lines that it wrote."""
    main: Callable[[list[str]], int] = importlib.import_module(f"benchmarks.{script}").main
    assert main(["--out", str(out), "--rounds", "2", *words]) == 0
    rows = read(out / SUMMARY_FILE)
    assert all(row.median >= 0 and len(row.commit.rstrip("+")) == 12 for row in rows)
    return rows


def test_sides_take_turns_in_rotated_order():
    calls: list[tuple[str, int]] = []

    def measure(name: str, part: int) -> dict[str, float]:
        calls.append((name, part))
        return {"MB": float(len(calls))}

    sides = {name: (lambda part, name=name: measure(name, part)) for name in "ab"}
    measured = take_turns(sides, 2, parts=2, warm_up=1)
    assert calls[:4] == [("b", 0), ("a", 0), ("a", 1), ("b", 1)]  # the warm-up
    assert "".join(name for name, _ in calls[4:]) == "abba" + "baab"
    assert measured["a"]["MB"].tolist() == [[5, 8], [10, 11]]


def test_results_are_paired_by_round_and_replace_those_of_their_cell(tmp_path):
    results = Results("speed", tmp_path)
    measured = {
        "new": {"seconds": np.array([[1.0], [2.0]]), "MB": np.zeros((2, 1))},
        "old": {"seconds": np.array([[2.0], [4.0]]), "MB": np.ones((2, 1))},
    }
    facts = [("new", "edges", 7)]
    for cell in ("one", "other", "one"):
        results.add(cell, measured, {"new": ["old"]}, facts, {"new": 12.4})
    rows = read(tmp_path / SUMMARY_FILE)
    assert [(row.cell, row.side, row.measure) for row in rows] == [
        (cell, *line)
        for cell in ("one", "other")
        for line in (("new", "MB"), ("new", "edges"), ("new", "seconds"),
                     ("old", "MB"), ("old", "seconds"))
    ]  # fmt: skip
    zero, edges, seconds = rows[:3]
    assert (zero.ratio, edges.rounds, edges.median) == (None, None, 7)
    assert (seconds.median, seconds.baseline, seconds.rounds, seconds.bytes) == (1.5, "old", 2, 12)
    assert (seconds.ratio, seconds.low, seconds.high) == (2.0, 2.0, 2.0)
    write(tmp_path / SUMMARY_FILE, [])
    assert read(tmp_path / SUMMARY_FILE) == rows


def test_merged_relations(typed_parts, tmp_path):
    words = ["--batches", "1", "--hidden", "8", "--models", "rgcn,hgt", str(typed_parts)]
    rows = run("merged_relations", tmp_path, *words)
    for prepared in ("", ", prepared"):
        ratios = [row for row in rows if row.baseline == f"relation by relation{prepared}"]
        assert [row.side for row in ratios] == [f"merged{prepared}"] * 2


def test_hifuse_ablation(typed_parts, tmp_path):
    words = ["--batches", "2", "--hidden", "8", "--models", "rgcn", str(typed_parts)]
    rows = run("hifuse_ablation", tmp_path, *words)
    assert {row.side for row in rows if row.baseline == "none"} >= {"R+M", "R+M+O+P+Pipe"}


def test_feature_service(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.feature_service.SIZES", {3: 1})
    # A valid client asks as fast as it can before the others come.
    send = partial(send_bad_requests, alone_seconds=0.2)
    monkeypatch.setattr("benchmarks.feature_service.send_bad_requests", send)
    words = ["--megabytes", "1", "--calls", "4", "--bad-requests", "200", "--load", "1"]
    rows = run("feature_service", tmp_path, *words)
    assert {row.measure for row in rows} >= {"seconds", "p99 milliseconds"}


def test_construction(tmp_path):
    # Each round starts processes.
    words = ["--edges", "2000", "--sources", "texts", "--methods", "random", "--servers", "2"]
    rows = run("construction", tmp_path, *words, "--rounds", "1")
    assert {row.side for row in rows} == {"texts", "random"}
    (cut,) = (row.median for row in rows if row.measure == "edge cut")
    assert cut == pytest.approx(0.5, abs=0.1)


def test_rows_are_read_from_a_mapped_table(tmp_path):
    rows_beyond_memory.make_table(tmp_path / "rows.npy", 10)
    side = rows_beyond_memory.MAPPED
    assert rows_beyond_memory.read(tmp_path / "rows.npy", side, 0, 0.01) > 0


def test_losses_of_two_commits_are_compared_relatively():
    assert two_commits.loss_difference([[1.0, 2.0], [1.0, 2.0]]) == 0.0
    assert two_commits.loss_difference([[1.0, 2.0], [1.0, 2.2]]) == pytest.approx(0.1)


def test_links_of_a_batch_are_left_out_of_its_edges():
    there, back = ("a", "to", "b"), ("b", "from", "a")
    edges = {there: torch.tensor([[0, 1, 2], [3, 3, 0]]), back: torch.tensor([[3, 0], [1, 2]])}
    batch = torch.tensor([[1], [3]])
    kept = link_prediction.leave_out(edges, there, [back], batch, {"a": 3, "b": 4})
    assert {key: pairs.tolist() for key, pairs in kept.items()} == {
        there: [[0, 2], [3, 0]], back: [[0], [2]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("script", "words", "text"),
    [
        ("partitioners", ["--rounds", "0"], "--rounds: expected at least 1, given 0"),
        ("sampler", [], "the following arguments are required: --graph"),
        ("real_graphs", ["--data", ".", "--only", "x"], "--only: expected some of"),
        ("link_prediction", ["--data", ".", "--only", "x"], "--only: invalid choice: 'x'"),
        ("predict_memory", ["--nodes", "9"], "embeddings of 9216 bytes are not larger than"),
        ("plan_accuracy", ["--engine", "hop"], "unrecognized arguments: --engine"),
        ("construction", ["--edges", "-1"], "--edges: expected at least 1, given -1"),
    ],
)
def test_senseless_options_are_refused(script, words, text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(script, tmp_path / "out", *words)
    assert text in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ClusterGCN

CLUSTERS = 12


def graph_nodes(graph: PartitionedGraph) -> np.ndarray:
    """Return the original id of every node of a graph of one node type."""
    return graph.original_ids(graph.schema.target_type())


@pytest.fixture
def clusters(tiny_graph, tmp_path) -> Path:
    """A file that assigns nodes to twelve clusters at random."""
    path = tmp_path / "clusters.npy"
    count = graph_nodes(tiny_graph).size
    np.save(path, np.random.default_rng(5).permutation(count) % CLUSTERS)
    return path


@pytest.fixture
def cluster_request(tiny_config, tiny_graph, clusters) -> Request:
    """A request for two ranks, with two clusters a batch and all neighbours."""
    plug_in = ClusterSampler.__module__
    options = f'{{clusters = "{clusters}", per_batch = 2}}'
    words = [
        f"--train.engine={plug_in}:{ClusterBatches.__name__}",
        f"--sampler.kind={plug_in}:{ClusterSampler.__name__}",
        f"--sampler.kind_options={options}",
        "--sampler.fanouts=[-1, -1]",
    ]
    return Request(make_config(tiny_config.model_dump(), words), tiny_graph)


def test_every_root_is_in_one_batch_of_whole_clusters(cluster_request, clusters):
    schedule, graph = make_schedule(cluster_request), cluster_request.graph
    assert schedule.iterations == CLUSTERS // 2 // 2
    of_node = np.load(clusters)[graph_nodes(graph)]
    by_epoch = []
    for epoch in range(2):
        batches = [schedule.batch(epoch, index) for index in range(schedule.iterations)]
        parts = [batch.of_model(model) for batch in batches for model in range(2)]
        roots = np.concatenate(parts)
        assert sorted(graph_nodes(graph)[roots]) == sorted(graph.split("train"))
        batch_clusters = [frozenset(of_node[part].tolist()) for part in parts]
        assert [len(members) for members in batch_clusters] == [2] * len(parts)
        assert len(frozenset().union(*batch_clusters)) == CLUSTERS
        by_epoch.append(set(batch_clusters))
    assert by_epoch[0] != by_epoch[1]


def test_edges_that_leave_the_batch_are_dropped_and_no_others(cluster_request, clusters):
    batch = make_schedule(cluster_request).batch(1, 0)
    roots = batch.of_model(0)
    subgraph = make_sampler(cluster_request).sample(roots, 1, 0)
    node_wise, train = {"kind": "node", "kind_options": {}}, {"engine": "model_centric"}
    plain = change_config(cluster_request.config, sampler=node_wise, train=train)
    unfiltered = make_sampler(Request(plain, cluster_request.graph)).sample(roots, 1, 0)
    of_node = np.load(clusters)[graph_nodes(cluster_request.graph)]
    batch_clusters = np.unique(of_node[roots])
    (relation,) = subgraph.hops[0]
    # Of the first hop, from the roots alone, all edges to nodes of these clusters stay.
    sources = unfiltered.nodes[relation.src][unfiltered.hops[0][relation].indices]
    drawn = subgraph.hops[0][relation].indices.size
    assert 0 < drawn == np.isin(of_node[sources], batch_clusters).sum()
    assert np.isin(of_node[subgraph.nodes[relation.src]], batch_clusters).all()


def test_a_batch_without_training_nodes_is_refused(cluster_request, clusters, tiny_graph):
    np.save(clusters, np.arange(graph_nodes(tiny_graph).size))
    schedule = make_schedule(cluster_request)
    assert schedule.iterations > 130 // 4
    with pytest.raises(RequestError, match=r"no training node in epoch 0, .* more clusters"):
        _ = [schedule.batch(0, index) for index in range(schedule.iterations)]
