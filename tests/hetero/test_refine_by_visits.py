"""Refining a division by visits: fewer rows are remote, and the balance stays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.write import GraphWriter
from hopper.hetero.presample import FIRST_EPOCH
from hopper.hetero.refine_by_visits import VisitRefiner
from hopper.hetero.root_reads import BATCH, RootReads
from hopper.micrograph.sample import NeighborSampler
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.refine import move_nodes
from hopper.timing.phases import Silent

PAPERS, AUTHORS, SERVERS = 2400, 800, 3
REFINER = VisitRefiner((4, 4), seed=3)


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """A few papers are trained, and read citations of their own of three subjects.

    The many other papers cite anything. Their edges count in an edge cut, but no training root
    reads them.
    """
    generator = np.random.default_rng(7)
    train, half = np.arange(0, PAPERS // 2, 4), PAPERS // 2
    cited, untrained = np.repeat(train, 6), generator.integers(half, PAPERS, 15_000)
    same_subject = 3 * generator.integers(0, half // 3, cited.size) + cited % 3
    src = np.concatenate([same_subject, generator.integers(0, PAPERS, untrained.size)])
    cites, wrote = Relation("paper", "cites", "paper"), Relation("author", "wrote", "paper")
    schema = GraphSchema(
        name="skewed",
        node_types={"paper": NodeType(PAPERS), "author": NodeType(AUTHORS)},
        relations={cites: EdgeType(src.size), wrote: EdgeType(3 * PAPERS)},
        target="paper",
        splits={"train": train.size},
    )
    path = tmp_path_factory.mktemp("refine") / "skewed"
    with GraphWriter(path, schema) as writer:
        writer.topology(cites, src, np.concatenate([cited, untrained]))
        written_papers = np.repeat(np.arange(PAPERS), 3)
        writers = 3 * generator.integers(0, AUTHORS // 3, written_papers.size) + written_papers % 3
        writer.topology(wrote, writers, written_papers)
        writer.split("train", train)
    return GraphDirectory.open(path)


@pytest.fixture(scope="module")
def micrographs(skewed: GraphDirectory) -> list[tuple[int, dict[str, np.ndarray]]]:
    """Every root and what it reads in the epoch by which moves are judged.

    No draw depends on the division.
    """
    train = np.asarray(skewed.split("train"))
    assert train.size <= BATCH  # so that all are roots of iteration 0
    sampler = NeighborSampler(
        {relation: skewed.topology(relation) for relation in skewed.schema.relations},
        {name: np.arange(kind.count) for name, kind in skewed.schema.node_types.items()},
        "paper",
        REFINER.fanouts,
        REFINER.seed,
    )
    epoch = FIRST_EPOCH + REFINER.epochs
    return [(root, sampler.sample(np.array([root]), epoch, 0).nodes) for root in train]


def _count_remote(
    micrographs: list[tuple[int, dict[str, np.ndarray]]], divided: PartitionedGraph
) -> float:
    """Return the share of rows that roots read from other servers, root by root."""
    types = divided.schema.node_types
    homes = {name: divided.book.home(name, divided.global_ids(name)) for name in types}
    rows = remote = 0
    for root, nodes in micrographs:
        for name, ids in nodes.items():
            rows += ids.size
            remote += int((homes[name][ids] != homes["paper"][root]).sum())
    return remote / rows


@pytest.mark.parametrize("method", ["metis", "stream", "random"])
def test_fewer_rows_of_other_servers_are_read(
    skewed: GraphDirectory,
    micrographs: list[tuple[int, dict[str, np.ndarray]]],
    tmp_path: Path,
    method: str,
) -> None:
    options = {"backend": "pymetis"} if method == "metis" else {}
    plain, refined = (
        partition_graph(skewed, tmp_path / name, SERVERS, method, refiner=refiner, **options)
        for name, refiner in (("plain", None), ("refined", REFINER))
    )
    refinement = refined.description["refined"]
    assert refinement["remote_rows_before"] == pytest.approx(
        _count_remote(micrographs, plain), abs=1e-6
    )
    assert refinement["remote_rows_after"] == pytest.approx(
        _count_remote(micrographs, refined), abs=1e-6
    )
    assert refinement["remote_rows_after"] < 0.9 * refinement["remote_rows_before"]
    assert refinement["moved"] > 0
    largest_before, largest_after = (
        division.description["shares"]["servers"]["largest_over_mean"]
        for division in (plain, refined)
    )
    assert largest_after["splits"]["train"] <= max(largest_before["splits"]["train"], 1.05)
    assert largest_after["edges"] <= max(largest_before["edges"], 1.05)
    assert refinement["visits_balance_after"] <= max(refinement["visits_balance_before"], 1.05)


def test_the_same_seed_moves_the_same_nodes(skewed: GraphDirectory, tmp_path: Path) -> None:
    division, repeated, other_seed = (
        partition_graph(
            *(skewed, tmp_path / str(number), SERVERS, "random"),
            refiner=VisitRefiner((4, 4), seed=seed, epochs=1),
        )
        for number, seed in enumerate((3, 3, 4))
    )
    np.testing.assert_array_equal(division.original_ids("paper"), repeated.original_ids("paper"))
    assert division.description["refined"] == repeated.description["refined"]
    assert (division.original_ids("paper") != other_seed.original_ids("paper")).any()


def test_pulls_equal_those_counted_micrograph_by_micrograph(skewed: GraphDirectory) -> None:
    reads = RootReads(skewed, (2, 3), 1, seed=5)
    homes = np.random.default_rng(0).integers(0, SERVERS, PAPERS + AUTHORS).astype(np.int32)
    pull, _ = reads.run(homes, SERVERS, Silent())
    expected = np.zeros_like(pull)
    sampler = NeighborSampler(
        {relation: skewed.topology(relation) for relation in skewed.schema.relations},
        {"paper": np.arange(PAPERS), "author": np.arange(AUTHORS)},
        *("paper", (2, 3), 5),
    )
    for root in np.asarray(skewed.split("train")):
        nodes = sampler.sample(np.array([root]), FIRST_EPOCH, 0).nodes
        ids = np.concatenate([nodes["paper"][1:], PAPERS + nodes["author"]])
        expected[ids, homes[root]] += 1
        np.add.at(expected[root], homes[ids], 1)
    np.testing.assert_array_equal(pull, expected)
    assert (reads.visits() <= reads.iterations).all()


def test_moves_respect_room_and_take_the_largest_gains_first() -> None:
    homes = np.array([0] * 20 + [1] * 20, np.int32)
    pull = np.zeros((40, 2), np.int32)
    pull[:5, 1] = [1, 2, 3, 4, 5]
    pull[20:23, 0] = 9
    moved = homes.copy()
    # Room for 21 nodes a server: three leave server 1, so that four of five find room there.
    assert move_nodes(moved, pull, np.ones((40, 1), np.int64)) == 7
    assert moved[:5].tolist() == [0, 1, 1, 1, 1]
    assert moved[20:23].tolist() == [0, 0, 0]


def test_moves_that_save_no_rows_are_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Three roots that read each other: a server has room for one of them.
    relation = Relation("node", "edge", "node")
    schema = GraphSchema(
        "whole", {"node": NodeType(3)}, {relation: EdgeType(6)}, "node", splits={"train": 3}
    )
    with GraphWriter(tmp_path / "whole", schema) as writer:
        writer.topology(relation, np.array([0, 0, 1, 1, 2, 2]), np.array([1, 2, 0, 2, 0, 1]))
        writer.split("train", np.arange(3))
    graph = GraphDirectory.open(tmp_path / "whole")
    arguments = ["partition", str(graph.path), "--servers", "3", "--method", "random"]
    refine = ["--refine", "visits", "--refine-epochs", "1", "--out", str(tmp_path / "out")]
    assert main([*arguments, *refine]) == 0
    refined = PartitionedGraph.open(tmp_path / "out").description["refined"]
    assert refined["moved"] == 0
    assert refined["remote_rows_before"] == refined["remote_rows_after"] > 0
    assert "not refined: no moves read fewer rows of other servers" in capsys.readouterr().out


def test_the_command_prints_the_rows_saved(
    skewed: GraphDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["partition", str(skewed.path), "--servers", "3", "--method", "random"]
    visits = ["--refine", "visits", "--refine-fanouts", "4,4", "--seed", "3"]
    assert main([*arguments, *visits, "--out", str(tmp_path / "a"), "--locality-roots", "0"]) == 0
    assert "refined by visits: rows read from other servers 6" in capsys.readouterr().out
    written = json.loads((tmp_path / "a" / "partition.json").read_text())["refined"]
    assert (written["fanouts"], written["epochs"], written["seed"]) == ([4, 4], 2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--refine", "edges"], "--refine: expected visits, given 'edges'"),
        (["--refine-fanouts", "5,5"], "--refine-fanouts: only --refine visits reads it"),
        (["--refine-epochs", "1"], "--refine-epochs: only --refine visits reads it"),
        (["--refine", "visits", "--refine-fanouts", "5,0"], "--refine-fanouts: expected positive"),
        (["--refine", "visits", "--refine-epochs", "0"], "--refine-epochs: expected at least 1"),
        (["--refine", "visits", "--features", "by-dimension"], "--refine: moves whole rows"),
        (["--refine", "visits", "--method", "meta"], "--refine: --method meta does not read it"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(
    skewed: GraphDirectory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    out = tmp_path / "out"
    arguments = ["partition", str(skewed.path), "--servers", "2", "--out", str(out)]
    assert main(
        [*arguments, *(["--method", "stream"] if "--method" not in options else []), *options]
    )
    error = capsys.readouterr().err.strip()
    assert f"error: {message}" in error
    assert "\n" not in error
    assert not out.exists()


def test_a_graph_without_training_roots_is_refused(tmp_path: Path) -> None:
    relation = Relation("node", "edge", "node")
    schema = GraphSchema("bare", {"node": NodeType(2)}, {relation: EdgeType(1)}, "node")
    with GraphWriter(tmp_path / "bare", schema) as writer:
        writer.topology(relation, np.array([0]), np.array([1]))
    graph = GraphDirectory.open(tmp_path / "bare")
    with pytest.raises(RequestError, match="for training roots, and graph 'bare' has none"):
        partition_graph(graph, tmp_path / "out", 2, "random", refiner=REFINER)
