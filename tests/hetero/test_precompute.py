"""Neighbours averaged once: against dense matrices, from parts of a graph, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.divide import divide_graph
from hopper.hetero.learnable import first_rows
from hopper.hetero.precompute import MetapathTables, SubsetTables, neighbours, precompute
from hopper.partition import partition_graph
from hopper.partition.stored_forms import describe_rounded_tables
from tests.engines.typed_cases import COUNTS, EDGES, WIDTHS, make_graph

Matrix = NDArray[np.float64]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_graph(tmp_path_factory.mktemp("typed") / "graph", tuple(COUNTS))


def adjacency(graph: GraphDirectory, relation: Relation) -> Matrix:
    """[destinations, sources]: how many edges lead from one to the other."""
    topology = graph.topology(relation)
    found = np.zeros((COUNTS[relation.dst], COUNTS[relation.src]))
    for node in range(COUNTS[relation.dst]):
        for source in topology.indices[topology.indptr[node] : topology.indptr[node + 1]]:
            found[node, source] += 1
    return found


def mean(matrix: Matrix) -> Matrix:
    return matrix / np.maximum(matrix.sum(1, keepdims=True), 1)


@pytest.mark.parametrize("block_bytes", [1, 1 << 26])
def test_metapaths_are_products_of_means(
    block_bytes: int, graph: GraphDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "_BLOCK_BYTES", block_bytes)
    precompute(graph.path, tmp_path / "tables", MetapathTables(layers=2))
    tables = GraphDirectory.open(tmp_path / "tables")
    # Into paper lead four relations; below author one, field two, paper four and nobody none.
    assert len(tables.schema.relations) == 4 + 1 + 2 + 4
    to, has = Relation("paper", "to", "author"), Relation("author", "to", "paper")
    expected = mean(adjacency(graph, has)) @ mean(adjacency(graph, to)) @ graph.features("paper")
    found = tables.features("to.author.to.paper")
    assert found.dtype == np.float32
    assert np.abs(expected).max() > 0.1
    assert np.allclose(found, expected, atol=1e-6)
    one = mean(adjacency(graph, Relation("field", "to", "paper"))) @ graph.features("field")
    assert np.allclose(tables.features("to.field"), one, atol=1e-6)
    assert not tables.features("to.nobody").any()
    assert np.array_equal(tables.features("paper"), graph.features("paper"))
    assert np.array_equal(tables.labels("paper"), graph.labels("paper"))
    assert np.array_equal(tables.split("train"), graph.split("train"))
    topology = tables.topology(Relation("to.field", "metapath", "paper"))
    assert np.array_equal(topology.indices, np.arange(COUNTS["paper"]))


def test_each_server_averages_its_own_metapaths(graph: GraphDirectory, tmp_path: Path) -> None:
    divide_graph(graph, tmp_path / "parts", 2, "meta", layers=2)
    for source in (graph.path, tmp_path / "parts"):
        precompute(source, tmp_path / f"of-{source.name}", MetapathTables(layers=2))
    whole, parts = (GraphDirectory.open(tmp_path / f"of-{name}") for name in ("graph", "parts"))
    assert whole.schema == parts.schema
    for name in whole.schema.node_types:
        assert np.array_equal(whole.features(name), parts.features(name))


def test_given_metapaths_are_followed_alone(graph: GraphDirectory, tmp_path: Path) -> None:
    paths = [["author/to/paper", "paper/to/author"]]
    schema = precompute(graph.path, tmp_path / "tables", MetapathTables(2, paths))
    assert sorted(schema.node_types) == ["paper", "to.author", "to.author.to.paper"]


def test_subsets_are_averaged_hop_by_hop(graph: GraphDirectory, tmp_path: Path) -> None:
    recipe = SubsetTables(layers=2, subsets=3, dim=4, seed=1)
    precompute(graph.path, tmp_path / "tables", recipe)
    tables = GraphDirectory.open(tmp_path / "tables")
    assert {kind.feature_dim for kind in tables.schema.node_types.values()} == {4}
    names = {relation.rel for relation in tables.schema.relations}
    assert (len(tables.schema.relations), names) == (6, {"hop1", "hop2"})
    # Whatever was drawn, some subset of the relations gives each table.
    first = {
        name: graph.features(name) @ matrix_of(recipe, name)
        for name in ("author", "field", "paper")
    }
    first["nobody"] = np.zeros((0, 4))
    assert np.allclose(tables.features("paper"), first["paper"], atol=1e-6)
    for number in range(3):
        hops = [tables.features(f"subset{number}.hop{hop}") for hop in (1, 2)]
        assert any(
            np.allclose(hops[0], found[0]["paper"], atol=1e-5)
            and np.allclose(hops[1], found[1]["paper"], atol=1e-5)
            for found in all_subsets(graph, first)
        )


def matrix_of(recipe: SubsetTables, node_type: str) -> Matrix:
    bound = (3 / WIDTHS[node_type]) ** 0.5
    generator = np.random.default_rng([recipe.seed, *node_type.encode()])
    return generator.uniform(-bound, bound, (WIDTHS[node_type], recipe.dim))


def all_subsets(graph: GraphDirectory, first: dict[str, Matrix]) -> list[list[dict[str, Matrix]]]:
    """The rows of both hops under every subset of the relations."""
    relations = sorted(EDGES)
    matrices = {each: adjacency(graph, each) for each in relations}
    found = []
    for chosen in range(1, 1 << len(relations)):
        subset = [each for bit, each in enumerate(relations) if chosen >> bit & 1]
        rows, hops = first, []
        for _ in range(2):
            rows = {name: next_rows(matrices, subset, rows, name) for name in rows}
            hops.append(rows)
        found.append(hops)
    return found


def next_rows(
    matrices: dict[Relation, Matrix], subset: list[Relation], rows: dict[str, Matrix], name: str
) -> Matrix:
    into = [each for each in subset if each.dst == name]
    if not into:
        return np.zeros_like(rows[name])
    total = sum(matrices[each] @ rows[each.src] for each in into)
    degrees = sum(matrices[each].sum(1, keepdims=True) for each in into)
    result: Matrix = total / np.maximum(degrees, 1)
    return result


def test_types_without_features_get_random_rows(tmp_path: Path) -> None:
    bare = make_graph(tmp_path / "bare", ("paper", "nobody"))
    with pytest.raises(RequestError, match="--random-dim: node type 'author', which metapath"):
        precompute(bare.path, tmp_path / "tables", MetapathTables(layers=1))
    assert not (tmp_path / "tables").exists()
    precompute(bare.path, tmp_path / "tables", MetapathTables(layers=1), random_dim=3, seed=4)
    rows = first_rows(4, "author", np.arange(COUNTS["author"]), 3)
    expected = mean(adjacency(bare, Relation("author", "to", "paper"))) @ rows
    tables = GraphDirectory.open(tmp_path / "tables")
    assert np.allclose(tables.features("to.author"), expected, atol=1e-6)


def test_what_cannot_be_averaged_is_named(graph: GraphDirectory, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    with pytest.raises(RequestError, match=r"--dim: .* author 5, field 3, nobody 2, paper 7"):
        precompute(graph.path, out, SubsetTables())
    with pytest.raises(RequestError, match=r"--subsets: 7 relations have .* 5000"):
        precompute(graph.path, out, SubsetTables(subsets=5000, dim=2))
    divide_graph(graph, tmp_path / "meta", 2, "meta", layers=2)
    with pytest.raises(RequestError, match="several servers of a divided one may hold"):
        precompute(tmp_path / "meta", out, SubsetTables(dim=2))
    partition_graph(graph, tmp_path / "random", 2, "random")
    with pytest.raises(RequestError, match="expected a graph directory, or one divided by rel"):
        precompute(tmp_path / "random", out, MetapathTables())
    assert not out.exists()


def test_the_command_tells_what_it_wrote(
    graph: GraphDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["precompute", "subsets", str(graph.path), "--subsets", "2", "--dim", "4"]
    assert main([*words, "--layers", "1", "--out", str(tmp_path / "tables")]) == 0
    told = capsys.readouterr()
    assert "subset1.hop1" in told.out
    assert "paper (its own)" in told.out
    assert "averaging neighbours" in told.err


def test_averages_of_rounded_rows_say_how_far_they_are_off(
    graph: GraphDirectory, tmp_path: Path
) -> None:
    """By no more than the rows that they are made of; stored in fewer bits, by more."""
    rounded = tmp_path / "rounded"
    divide_graph(graph, rounded, 2, "meta", layers=2, feature_dtypes=["int8"])
    recipe = MetapathTables(layers=2)
    exact = precompute(graph.path, tmp_path / "exact", recipe)
    found = precompute(rounded, tmp_path / "tables", recipe)
    tables = [GraphDirectory.open(tmp_path / name) for name in ("exact", "tables")]
    assert not describe_rounded_tables(exact)
    for name in found.node_types:
        error = found.node_types[name].feature_error
        assert error is not None
        one, other = (np.asarray(each.features(name), np.float64) for each in tables)
        assert np.abs(one - other).max() <= error.absolute * (1 + 1e-6)
    bound = found.node_types["to.field"].feature_error
    assert bound is not None
    assert bound.relative is None
    told = "features of to.field: approximate, averages of rounded rows: a number is off by up to"
    assert sum(line.startswith(told) for line in describe_rounded_tables(found)) == 1
    again = partition_graph(tables[1], tmp_path / "again", 2, "random", feature_dtypes=["float16"])
    more = again.schema.node_types["to.field"].feature_error
    assert more is not None
    assert more.absolute > bound.absolute
    assert more.relative is None
