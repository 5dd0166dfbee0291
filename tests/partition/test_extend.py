"""Next week's graph, divided like this week's: known nodes stay, new ones join their neighbours."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, NodeType, Relation
from hopper.partition import PartitionedGraph, partition_graph
from tests.partition.conftest import planted_edges

RELATION = Relation("node", "edge", "node")
NODES, NEW, SERVERS = 2000, 200, 4


def write(path: Path, ends: NDArray[np.int64], names: NDArray[np.int64] | None) -> GraphDirectory:
    """A graph whose nodes are all for training, and have names or not."""
    count = int(ends.max()) + 1 if names is None else names.size
    schema = GraphSchema(
        *("week", {"node": NodeType(count)}, {RELATION: EdgeType(ends.shape[1])}, "node"),
        splits={"train": count},
    )
    with GraphWriter(path, schema) as writer:
        writer.topology(RELATION, *ends)
        writer.split("train", np.arange(count))
        if names is not None:
            writer.names("node", [f"n{name}" for name in names])
    return GraphDirectory.open(path)


def homes(parts: Path) -> NDArray[np.int64]:
    """The server of every node by its original id."""
    graph = PartitionedGraph.open(parts)
    return graph.book.home("node", np.asarray(graph.global_ids("node")))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("method", ["metis", "stream"])
def test_no_known_node_moves_and_few_edges_are_cut(named, method, tmp_path):
    """Two nodes are gone, 200 are new, and all names stand in another order."""
    generator = np.random.default_rng(1)
    every = np.stack(planted_edges(generator, NODES + NEW, 22_000, SERVERS, 0.9))
    before = every[:, (every < NODES).all(0)]
    before = write(tmp_path / "old", before, np.arange(NODES) if named else None)
    # That of DGL starts later.
    divide = partial(partition_graph, servers=SERVERS, method=method, backend="pymetis")
    divide(before, tmp_path / "old-parts")
    names = generator.permutation(NODES + NEW) if named else np.arange(NODES + NEW)
    names = names[~np.isin(names, (3, 5))] if named else names
    row = np.full(NODES + NEW, -1)
    row[names] = np.arange(names.size)
    ends = row[every]
    now = write(tmp_path / "new", ends[:, (ends >= 0).all(0)], names if named else None)
    words = ["--servers", str(SERVERS), "--locality-roots", "0"]
    command = ["partition", str(now.path), *words, "--out", str(tmp_path / "parts")]
    assert main([*command, "--like", str(tmp_path / "old-parts")]) == 0
    old, new = homes(tmp_path / "old-parts"), homes(tmp_path / "parts")
    known = names < NODES
    np.testing.assert_array_equal(new[known], old[names[known]])
    assert np.bincount(new, minlength=SERVERS).max() <= 1.06 * names.size / SERVERS
    topology = now.topology(RELATION)
    dst = np.repeat(np.arange(names.size), np.diff(topology.indptr))
    divide(now, tmp_path / "anew")
    cuts = [
        float((of[topology.indices] != of[dst]).mean()) for of in (new, homes(tmp_path / "anew"))
    ]
    assert cuts[0] <= 1.05 * cuts[1]


def test_what_does_not_fit_is_refused(tmp_path, capsys):
    graph = write(tmp_path / "old", np.array([[0, 1, 2], [1, 2, 0]]), None)
    partition_graph(graph, tmp_path / "parts", 3, "random")
    options = {"parts": tmp_path / "parts"}
    with pytest.raises(RequestError, match=r"--like: expected .* over 2 servers, given .* over 3"):
        partition_graph(graph, tmp_path / "other", 2, "like", method_options=options)
    with pytest.raises(RequestError, match="method like: expected --like PARTS"):
        partition_graph(graph, tmp_path / "other", 3, "like")
    words = ["--servers", "3", "--method", "random", "--like", str(tmp_path / "parts")]
    assert main(["partition", str(graph.path), *words, "--out", str(tmp_path / "other")]) == 1
    assert "--like: expected no --method beside it, given random" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
