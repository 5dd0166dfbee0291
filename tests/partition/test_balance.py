"""METIS balances what was chosen, on a graph whose communities are very different."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
WITHIN = 1.1
"""largest share over mean that METIS keeps to, here, whatever was chosen"""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Four communities of papers.

    One has the training papers, one the validation papers, one the test papers and most in-edges,
    and one the tags.
    """
    generator = np.random.default_rng(5)
    size = PAPERS // COMMUNITIES
    cites, on = Relation("paper", "cites", "paper"), Relation("tag", "on", "paper")
    dst = generator.integers(0, PAPERS, 8000)
    # Papers of community 2 have three times the in-edges.
    dst = np.concatenate([dst, generator.integers(2 * size, 3 * size, 6000)])
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


def _divide(graph: GraphDirectory, out: Path, *balance: str, **options: Any) -> PartitionedGraph:
    pytest.importorskip("dgl")
    return partition_graph(
        graph, out, **{"servers": 4, "backend": "dgl"} | options, balance=balance
    )


def _ratios(parts: PartitionedGraph, level: str = "servers") -> dict[str, float]:
    """Return the largest share over the mean, for everything that may be balanced."""
    ratios = parts.description["shares"][level]["largest_over_mean"]
    return {"types": max(ratios["nodes"].values()), "edges": ratios["edges"], **ratios["splits"]}


def test_only_the_chosen_measures_are_balanced(uneven: GraphDirectory, tmp_path: Path) -> None:
    train = _ratios(_divide(uneven, tmp_path / "train", "train"))
    assert train["train"] < WITHIN
    assert all(train[name] > 1.7 for name in ("val", "test", "types", "edges")), train
    all_names = ("train", "val", "test", "types", "edges")
    parts = _divide(uneven, tmp_path / "every", *all_names)
    assert all(ratio < WITHIN for ratio in _ratios(parts).values()), _ratios(parts)
    assert parts.description["balanced"] == list(all_names)


def test_the_command_passes_the_choice_to_metis(
    uneven: GraphDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The choice holds for servers, and for the ranks of a server."""
    pytest.importorskip("dgl")
    arguments = ["partition", str(uneven.path), "--locality-roots", "0"]
    ranks = ["--servers", "1", "--ranks-per-server", "4", "--out", str(tmp_path / "a")]
    assert main([*arguments, *ranks, "--balance", "val,edges"]) == 0
    parts = PartitionedGraph.open(tmp_path / "a")
    assert parts.description["balanced"] == ["val", "edges"]
    ratios = _ratios(parts, "ranks")
    assert max(ratios[name] for name in ("val", "edges")) < WITHIN < ratios["train"]
    two_servers = [*arguments, "--servers", "2", "--out", str(tmp_path / "b"), "--balance", "val"]
    assert main([*two_servers, "--method", "meta"]) == 1
    assert "--balance: --method meta does not read it" in capsys.readouterr().err


def test_the_estimate_counts_constraints(uneven: GraphDirectory) -> None:
    nodes = PAPERS + TAGS
    default, val_only = (
        estimate_memory(uneven, 4, "metis", "dgl", balance=balance).phases["METIS (dgl)"]
        for balance in ((), ("val",))
    )
    # Three classes of two constraints; nodes and validation nodes.
    assert default - val_only == nodes * 16 * (6 - 2)
    many_types = GraphSchema("many", {f"t{i}": NodeType(1) for i in range(30)}, {}, "t0")
    assert number_of_constraints(many_types, ["train", "types", "edges"]) == MOST_CONSTRAINTS
