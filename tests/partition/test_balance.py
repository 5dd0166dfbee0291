"""METIS balances what was chosen, on a graph whose communities are very different."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopper.cli import main
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema, NodeType
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
    # Papers of community 2 have three times the in-edges.
    ranges = ((0, PAPERS, 8000), (2 * size, 3 * size, 6000))
    dst = np.concatenate([generator.integers(*bounds) for bounds in ranges])
    cited = dst // size * size + generator.integers(0, size, dst.size)
    src = np.where(generator.random(dst.size) < 0.9, cited, generator.integers(0, PAPERS, dst.size))
    tagged = generator.integers(0, TAGS, 1600), generator.integers(3 * size, PAPERS, 1600)
    counts = {"train": 300, "val": 200, "test": 200}
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("balance") / "uneven",
        {("paper", "cites", "paper"): (src, dst), ("tag", "on", "paper"): tagged},
        splits={
            name: np.sort(place * size + generator.permutation(size)[:count])
            for place, (name, count) in enumerate(counts.items())
        },
        counts={"paper": PAPERS, "tag": TAGS},
        target="paper",
    )


def ratios(parts: PartitionedGraph, level: str) -> dict[str, float]:
    """Return the largest share over the mean, for everything that may be balanced."""
    largest = parts.description["shares"][level]["largest_over_mean"]
    return {"types": max(largest["nodes"].values()), "edges": largest["edges"], **largest["splits"]}


def test_the_chosen_measures_are_balanced_on_servers_and_ranks(
    uneven: GraphDirectory, tmp_path: Path
) -> None:
    pytest.importorskip("dgl")
    parts = partition_graph(uneven, tmp_path / "all", 4, backend="dgl", balance=ALL)
    assert max(ratios(parts, "servers").values()) < WITHIN
    assert parts.description["balanced"] == list(ALL)
    arguments = ["partition", str(uneven.path), "--locality-roots", "0", "--balance", "val,edges"]
    ranks = ["--servers", "1", "--ranks-per-server", "4", "--out", str(tmp_path / "a")]
    assert main([*arguments, *ranks]) == 0
    found = ratios(PartitionedGraph.open(tmp_path / "a"), "ranks")
    assert max(found[name] for name in ("val", "edges")) < WITHIN
    assert min(found[name] for name in ("train", "test", "types")) > WITHIN


def test_the_estimate_counts_constraints(uneven: GraphDirectory) -> None:
    default, val_only = (
        estimate_memory(uneven, 4, "metis", "dgl", balance=balance).phases["METIS (dgl)"]
        for balance in ((), ("val",))
    )
    # Three classes of two constraints; nodes and validation nodes.
    assert default - val_only == (PAPERS + TAGS) * 16 * (6 - 2)
    many_types = GraphSchema("many", {f"t{i}": NodeType(1) for i in range(30)}, {}, "t0")
    assert number_of_constraints(many_types, ["train", "types", "edges"]) == MOST_CONSTRAINTS
