"""METIS balances what was chosen, on a graph whose communities hold very different things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.write import GraphWriter
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.balance import MOST_CONSTRAINTS, check_balance, number_of_constraints
from hopper.partition.memory import estimate_memory

PAPERS, TAGS, COMMUNITIES = 1600, 400, 4
WITHIN = 1.1
"""largest share over mean that METIS keeps to, here, whatever was chosen"""


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Four communities of papers: one has the training papers, one the validation papers, one the
    test papers and most in-edges, and one the tags."""
    generator = np.random.default_rng(5)
    size = PAPERS // COMMUNITIES
    cites, tagged = Relation("paper", "cites", "paper"), Relation("tag", "on", "paper")
    dst = generator.integers(0, PAPERS, 8000)
    # Papers of community 2 have three times the in-edges.
    dst = np.concatenate([dst, generator.integers(2 * size, 3 * size, 6000)])
    near = dst // size * size + generator.integers(0, size, dst.size)
    src = np.where(generator.random(dst.size) < 0.9, near, generator.integers(0, PAPERS, dst.size))
    schema = GraphSchema(
        name="uneven",
        node_types={"paper": NodeType(PAPERS), "tag": NodeType(TAGS)},
        relations={cites: EdgeType(src.size), tagged: EdgeType(1600)},
        target="paper",
        splits={"train": 300, "val": 200, "test": 200},
    )
    path = tmp_path_factory.mktemp("balance") / "uneven"
    with GraphWriter(path, schema) as writer:
        writer.topology(cites, src, dst)
        last = generator.integers(3 * size, PAPERS, 1600)
        writer.topology(tagged, generator.integers(0, TAGS, 1600), last)
        for place, (name, count) in enumerate(schema.splits.items()):
            writer.split(name, place * size + generator.permutation(size)[:count])
    return GraphDirectory.open(path)


def _divide(graph: GraphDirectory, out: Path, *balance: str, **options: Any) -> PartitionedGraph:
    pytest.importorskip("dgl")
    return partition_graph(
        graph, out, **{"servers": 4, "backend": "dgl"} | options, balance=balance
    )


def _ratios(divided: PartitionedGraph, level: str = "servers") -> dict[str, float]:
    """By what is balanced, the largest share over the mean."""
    ratios = divided.description["shares"][level]["largest_over_mean"]
    return {"types": max(ratios["nodes"].values()), "edges": ratios["edges"], **ratios["splits"]}


def test_what_is_chosen_is_balanced_and_what_is_not_may_not_be(
    uneven: GraphDirectory, tmp_path: Path
) -> None:
    usual = _ratios(_divide(uneven, tmp_path / "usual"))
    assert usual["train"] < WITHIN
    assert usual["val"] > 1.5
    train = _ratios(_divide(uneven, tmp_path / "train", "train"))
    assert train["train"] < WITHIN
    assert all(train[each] > 1.7 for each in ("val", "test", "types", "edges")), train
    every = ("train", "val", "test", "types", "edges")
    divided = _divide(uneven, tmp_path / "every", *every)
    assert all(ratio < WITHIN for ratio in _ratios(divided).values()), _ratios(divided)
    assert divided.description["balanced"] == list(every)


@pytest.mark.parametrize(
    ("balance", "method", "backend", "said"),
    [
        (["val", "val"], "metis", "dgl", "each once, given 'val,val'"),
        (["nodes"], "metis", "dgl", "some of train, val, test, types, edges between commas"),
        (["val"], "stream", None, "stream always balances training nodes"),
        (["val"], "random", None, "random deals the nodes of every type evenly"),
        (["val"], "package:Own", None, "what package:Own balances is its own choice"),
        (["val"], "metis", "pymetis", r"pymetis takes one weight a node.*--backend dgl"),
    ],
)
def test_what_cannot_be_balanced_is_refused(
    uneven: GraphDirectory, balance: list[str], method: str, backend: Any, said: str
) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        check_balance(balance, uneven.schema, method, backend)
    assert "\n" not in str(refused.value)


def test_the_command_passes_a_choice_on(
    uneven: GraphDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the ranks of a server too."""
    pytest.importorskip("dgl")
    words = ["partition", str(uneven.path), "--locality-roots", "0"]
    ranks = ["--servers", "1", "--ranks-per-server", "4", "--out", str(tmp_path / "a")]
    assert main([*words, *ranks, "--balance", "val,edges"]) == 0
    divided = PartitionedGraph.open(tmp_path / "a")
    assert divided.description["balanced"] == ["val", "edges"]
    ratios = _ratios(divided, "ranks")
    assert max(ratios[each] for each in ("val", "edges")) < WITHIN < ratios["train"]
    arguments = [*words, "--servers", "2"]
    out = ["--out", str(tmp_path / "b")]
    assert main([*arguments, *out, "--balance", "val", "--backend", "pymetis"]) == 1
    assert "error: --balance: pymetis takes one weight a node" in capsys.readouterr().err
    assert main([*arguments, *out, "--balance", "val", "--method", "meta"]) == 1
    assert "--balance: --method meta does not read it" in capsys.readouterr().err


def test_the_estimate_counts_constraints(uneven: GraphDirectory) -> None:
    nodes = PAPERS + TAGS
    usual, one = (
        estimate_memory(uneven, 4, "metis", "dgl", balance=each).phases["METIS (dgl)"]
        for each in ((), ("val",))
    )
    # Three classes of two constraints; nodes and validation nodes.
    assert usual - one == nodes * 16 * (6 - 2)
    many = GraphSchema("many", {f"t{i}": NodeType(1) for i in range(30)}, {}, "t0")
    assert number_of_constraints(many, ["train", "types", "edges"]) == MOST_CONSTRAINTS
