"""Neighbours averaged once: against dense matrices, and what is refused."""

import itertools
import shutil

import numpy as np
import pytest
from numpy.typing import NDArray

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.layout import features_file
from hopper.graph.schema_json import write_schema
from hopper.hetero.learnable import first_rows
from hopper.hetero.precompute import MetapathTables, SubsetTables, averages, precompute
from hopper.partition import partition_graph
from hopper.partition.stored_forms import describe_rounded_tables, parse_row_forms, store_rows_as
from hopper.timing.phases import Phases
from tests.engines.graphs import COUNTS, EDGES, WIDTHS, make_graph

Matrix = NDArray[np.float64]


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> GraphDirectory:
    return make_graph(tmp_path_factory.mktemp("typed") / "graph", tuple(COUNTS))


def count_edges(graph: GraphDirectory, relation: Relation) -> Matrix:
    """Return [destinations, sources], the number of edges between every two nodes."""
    topology = graph.topology(relation)
    counts = np.zeros((COUNTS[relation.dst], COUNTS[relation.src]))
    np.add.at(counts, (topology.list_destinations(), topology.indices), 1)
    return counts


def divide_by_degree(matrix: Matrix) -> Matrix:
    return matrix / np.maximum(matrix.sum(1, keepdims=True), 1)


@pytest.mark.parametrize("block_bytes", [1, 1 << 26])
def test_metapaths_are_products_of_means(block_bytes, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(averages, "_BLOCK_BYTES", block_bytes)
    precompute(graph.path, tmp_path / "tables", MetapathTables(layers=2))
    tables = GraphDirectory.open(tmp_path / "tables")
    # Into paper lead four relations; below author one, field two, paper four and nobody none.
    assert len(tables.schema.relations) == 4 + 1 + 2 + 4
    to_author, to_paper = Relation("paper", "to", "author"), Relation("author", "to", "paper")
    expected = (
        divide_by_degree(count_edges(graph, to_paper))
        @ divide_by_degree(count_edges(graph, to_author))
        @ graph.features("paper")
    )
    averaged = tables.features("to.author.to.paper")
    assert averaged.dtype == np.float32
    assert np.abs(expected).max() > 0.1
    assert np.allclose(averaged, expected, atol=1e-6)
    counts = count_edges(graph, Relation("field", "to", "paper"))
    field_means = divide_by_degree(counts) @ graph.features("field")
    assert np.allclose(tables.features("to.field"), field_means, atol=1e-6)
    assert not tables.features("to.nobody").any()
    assert np.array_equal(tables.features("paper"), graph.features("paper"))
    assert np.array_equal(tables.labels("paper"), graph.labels("paper"))
    assert np.array_equal(tables.split("train"), graph.split("train"))
    topology = tables.topology(Relation("to.field", "metapath", "paper"))
    assert np.array_equal(topology.indices, np.arange(COUNTS["paper"]))


def test_only_the_given_metapaths_are_averaged(graph, tmp_path):
    paths = [["author/to/paper", "paper/to/author"]]
    schema = precompute(graph.path, tmp_path / "tables", MetapathTables(2, paths))
    assert sorted(schema.node_types) == ["paper", "to.author", "to.author.to.paper"]


def test_subsets_are_averaged_hop_by_hop(graph, tmp_path):
    recipe = SubsetTables(layers=2, subsets=3, dim=4, seed=1)
    precompute(graph.path, tmp_path / "tables", recipe)
    tables = GraphDirectory.open(tmp_path / "tables")
    assert {kind.feature_dim for kind in tables.schema.node_types.values()} == {4}
    names = {relation.rel for relation in tables.schema.relations}
    assert (len(tables.schema.relations), names) == (6, {"hop1", "hop2"})
    # Nodes of all types one after another, and whatever was drawn: some subset of the relations
    # gives each table.
    first = dict(zip(COUNTS, np.cumsum([0, *COUNTS.values()]).tolist(), strict=False))
    rows = np.zeros((sum(COUNTS.values()), 4))
    for name in ("author", "field", "paper"):
        of_type = graph.features(name) @ random_matrix(recipe, name)
        rows[first[name] : first[name] + COUNTS[name]] = of_type
    papers = slice(first["paper"], first["paper"] + COUNTS["paper"])
    assert np.allclose(tables.features("paper"), rows[papers], atol=1e-6)
    matrices = []
    for relation in sorted(EDGES):
        matrix, counts = np.zeros((len(rows), len(rows))), count_edges(graph, relation)
        top, left = first[relation.dst], first[relation.src]
        matrix[top : top + counts.shape[0], left : left + counts.shape[1]] = counts
        matrices.append(matrix)
    references = []
    for chosen in list(itertools.product((0, 1), repeat=len(matrices)))[1:]:
        means = divide_by_degree(sum(np.array(chosen)[:, None, None] * matrices))
        references.append((means @ rows, means @ (means @ rows)))
    for number in range(3):
        hops = [tables.features(f"subset{number}.hop{hop}") for hop in (1, 2)]
        assert any(np.allclose(hops, np.array(both)[:, papers], atol=1e-5) for both in references)


def random_matrix(recipe: SubsetTables, node_type: str) -> Matrix:
    bound = (3 / WIDTHS[node_type]) ** 0.5
    generator = np.random.default_rng([recipe.seed, *node_type.encode()])
    return generator.uniform(-bound, bound, (WIDTHS[node_type], recipe.dim))


def test_types_without_features_get_random_rows(tmp_path):
    graph = make_graph(tmp_path / "bare", ("paper", "nobody"))
    with pytest.raises(RequestError, match="--random-dim: node type 'author', which metapath"):
        precompute(graph.path, tmp_path / "tables", MetapathTables(layers=1))
    assert not (tmp_path / "tables").exists()
    precompute(graph.path, tmp_path / "tables", MetapathTables(layers=1), random_dim=3, seed=4)
    rows = first_rows(4, "author", np.arange(COUNTS["author"]), 3)
    expected = divide_by_degree(count_edges(graph, Relation("author", "to", "paper"))) @ rows
    tables = GraphDirectory.open(tmp_path / "tables")
    assert np.allclose(tables.features("to.author"), expected, atol=1e-6)


def test_what_cannot_be_averaged_is_named(graph, tmp_path):
    out = tmp_path / "tables"
    with pytest.raises(RequestError, match=r"--dim: .* author 5, field 3, nobody 2, paper 7"):
        precompute(graph.path, out, SubsetTables())
    with pytest.raises(RequestError, match=r"--subsets: 7 relations have .* 200"):
        precompute(graph.path, out, SubsetTables(subsets=200, dim=2))
    assert not out.exists()


def test_the_command_prints_what_it_wrote(graph, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hopper.cli.phases._SHOWN_SECONDS", 0.0)
    arguments = ["dataset", "precompute", "subsets", str(graph.path)]
    arguments += ["--subsets", "2", "--dim", "4"]
    assert main([*arguments, "--layers", "1", "--out", str(tmp_path / "tables")]) == 0
    printed = capsys.readouterr()
    assert "subset1.hop1" in printed.out
    assert "paper (its own)" in printed.out
    assert "averaging neighbours" in printed.err


def test_averages_of_rounded_rows_state_a_bound_of_their_error(graph, tmp_path):
    """The stated bound holds, and it grows when the averages are stored in fewer bits."""
    recipe, forms = MetapathTables(layers=2), parse_row_forms(["int8"], graph.schema)
    exact = precompute(graph.path, tmp_path / "exact", recipe)
    rounded = tmp_path / "rounded"
    shutil.copytree(graph.path, rounded)
    with store_rows_as(graph, forms, tmp_path / "converted", Phases()) as converted:
        write_schema(rounded, converted.schema)
        for name in converted.schema.node_types:
            np.save(features_file(rounded, name), converted.features(name))
    rounded_schema = precompute(rounded, tmp_path / "tables", recipe)
    tables = [GraphDirectory.open(tmp_path / name) for name in ("exact", "tables")]
    assert not describe_rounded_tables(exact)
    for name in rounded_schema.node_types:
        error = rounded_schema.node_types[name].feature_error
        assert error is not None
        exact_rows, rounded_rows = (np.asarray(of.features(name), np.float64) for of in tables)
        assert np.abs(exact_rows - rounded_rows).max() <= error.absolute * (1 + 1e-6)
    bound = rounded_schema.node_types["to.field"].feature_error
    assert bound is not None
    assert bound.relative is None
    message = (
        "features of to.field: approximate, averages of rounded rows: a number is off by up to"
    )
    assert sum(line.startswith(message) for line in describe_rounded_tables(rounded_schema)) == 1
    out, dtypes = tmp_path / "again", ["float16"]
    divided_again = partition_graph(tables[1], out, 2, "random", feature_dtypes=dtypes)
    error_after = divided_again.schema.node_types["to.field"].feature_error
    assert error_after is not None
    assert error_after.absolute > bound.absolute
    assert error_after.relative is None
