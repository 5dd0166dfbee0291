"""METIS balances what was chosen, on a graph whose communities are very different."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopper.cli import main
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.write import GraphWriter
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.balance import MOST_CONSTRAINTS, number_of_constraints
from hopper.partition.memory import estimate_memory

PAPERS, TAGS, COMMUNITIES = 1600, 400, 4
ALL = ("train", "val", "test", "types", "edges")
WITHIN = 1.1
"""largest share over mean that METIS keeps to, here, whatever was chosen"""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Four communities of papers: one has the training papers, one the validation papers, one the
    test papers and most in-edges, and one the tags."""
    generator, size = np.random.default_rng(5), PAPERS // COMMUNITIES
    cites, on = Relation("paper", "cites", "paper"), Relation("tag", "on", "paper")
    # Papers of community 2 have three times the in-edges.
    ranges = ((0, PAPERS, 8000), (2 * size, 3 * size, 6000))
    dst = np.concatenate([generator.integers(*bounds) for bounds in ranges])
    cited = dst // size * size + generator.integers(0, size, dst.size)
    src = np.where(generator.random(dst.size) < 0.9, cited, generator.integers(0, PAPERS, dst.size))
    schema = GraphSchema(
        name="uneven",
        node_types={"paper": NodeType(PAPERS), "tag": NodeType(TAGS)},
        relations={cites: EdgeType(src.size), on: EdgeType(1600)},
        target="paper",
        splits={"train": 300, "val": 200, "test": 200},
    )
    path = tmp_path_factory.mktemp("balance") / "uneven"
    with GraphWriter(path, schema) as writer:
        writer.topology(cites, src, dst)
        tagged_papers = generator.integers(3 * size, PAPERS, 1600)
        writer.topology(on, generator.integers(0, TAGS, 1600), tagged_papers)
        for place, (name, count) in enumerate(schema.splits.items()):
            writer.split(name, place * size + generator.permutation(size)[:count])
    return GraphDirectory.open(path)


def ratios(parts: PartitionedGraph, level: str = "servers") -> dict[str, float]:
    """Return the largest share over the mean, for everything that may be balanced."""
    largest = parts.description["shares"][level]["largest_over_mean"]
    return {"types": max(largest["nodes"].values()), "edges": largest["edges"], **largest["splits"]}


def test_only_the_chosen_measures_are_balanced(uneven: GraphDirectory, tmp_path: Path) -> None:
    pytest.importorskip("dgl")
    for chosen in (("train",), ALL):
        out = tmp_path / str(len(chosen))
        parts = partition_graph(uneven, out, 4, backend="dgl", balance=chosen)
        found = ratios(parts)
        assert all((found[name] < WITHIN) == (name in chosen) for name in ALL), found
        assert parts.description["balanced"] == list(chosen)


def test_the_command_passes_the_choice_to_metis(uneven: GraphDirectory, tmp_path: Path) -> None:
    """The choice holds for servers, and for the ranks of a server."""
    pytest.importorskip("dgl")
    arguments = ["partition", str(uneven.path), "--locality-roots", "0"]
    ranks = ["--servers", "1", "--ranks-per-server", "4", "--out", str(tmp_path / "a")]
    assert main([*arguments, *ranks, "--balance", "val,edges"]) == 0
    parts = PartitionedGraph.open(tmp_path / "a")
    assert parts.description["balanced"] == ["val", "edges"]
    found = ratios(parts, "ranks")
    assert max(found[name] for name in ("val", "edges")) < WITHIN < found["train"]


def test_the_estimate_counts_constraints(uneven: GraphDirectory) -> None:
    default, val_only = (
        estimate_memory(uneven, 4, "metis", "dgl", balance=balance).phases["METIS (dgl)"]
        for balance in ((), ("val",))
    )
    # Three classes of two constraints; nodes and validation nodes.
    assert default - val_only == (PAPERS + TAGS) * 16 * (6 - 2)
    many_types = GraphSchema("many", {f"t{i}": NodeType(1) for i in range(30)}, {}, "t0")
    assert number_of_constraints(many_types, ["train", "types", "edges"]) == MOST_CONSTRAINTS
