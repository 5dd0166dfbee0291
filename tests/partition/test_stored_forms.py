"""Features that are stored in other forms while a graph is divided: what is written, measured, said
and refused."""

import json

import numpy as np
import pytest

from cache_server.feature_codec import CODECS
from hopper.cli import main
from hopper.errors import GraphError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.stored_forms import describe_rounded_tables


@pytest.fixture
def small(tmp_path) -> GraphDirectory:
    """Every form rounds the papers' numbers, and none the authors'."""
    generator = np.random.default_rng(3)
    ends = generator.integers(0, 20, (2, 90))
    return GraphDirectory.from_arrays(
        tmp_path / "graph",
        {("author", "writes", "paper"): ends, ("paper", "written_by", "author"): ends[::-1]},
        features={
            "paper": generator.normal(size=(20, 6)).astype(np.float32) * 30,
            "author": np.full((20, 3), 0.5, np.float32),
        },
        labels={"paper": generator.integers(0, 3, 20)},
        target="paper",
    )


@pytest.mark.parametrize("method", ["random", "meta"])
def test_rows_are_stored_in_the_requested_form(method, small, tmp_path):
    dtypes = ["bfloat16", "paper=int8"]
    parts = divide_graph(small, tmp_path / "parts", 2, method, feature_dtypes=dtypes)
    for node_type, name in (("paper", "int8"), ("author", "bfloat16")):
        assert parts.schema.node_types[node_type].feature_dtype == name
        expected = CODECS[name].encode(np.asarray(small.features(node_type)))
        for server in range(2):
            stored = parts.stored(node_type, server)
            original_ids = parts.original_ids(node_type)[stored.first : stored.stop]
            rows = parts.features(node_type, server)
            assert rows is not None
            assert np.array_equal(rows, expected[original_ids])
    assert not list(tmp_path.glob(".*"))
    # The graph itself is as it was.
    assert small.features("paper").dtype == np.float32


def test_the_rounding_error_is_measured_and_printed(small, tmp_path, capsys):
    out = tmp_path / "parts"
    arguments = ["partition", str(small.path), "--servers", "2", "--method", "random"]
    arguments += ["--out", str(out), "--feature-dtype", "int8", "--locality-roots", "0"]
    assert main(arguments) == 0
    schema = PartitionedGraph.open(out).schema
    rows = np.asarray(small.features("paper"), np.float64)
    form = CODECS["int8"]
    errors = np.abs(form.decode(form.encode(rows.astype(np.float32))) - rows).max(1)
    error = schema.node_types["paper"].feature_error
    assert error is not None
    assert error.absolute == errors.max()
    assert error.relative == (errors / np.abs(rows).max(1)).max()
    assert schema.node_types["author"].feature_error is None
    (line,) = describe_rounded_tables(schema)
    assert line.startswith("features of paper: approximate, rounded to int8")
    assert line in capsys.readouterr().out
    node_types = json.loads((out / "graph.json").read_text())["node_types"]
    assert node_types["paper"]["feature_error"] == error._asdict()
    assert "feature_error" not in node_types["author"]


BAD_FORMS = {
    "int4": "expected one of float32, float16, bfloat16, int8, given 'int4'",
    "book=int8": r"expected a table of features \(author, paper\), given 'book'",
    "int8 float16": "expected one a table, given int8, float16",
    "paper=int8 paper=float16": "expected one a table",
}


@pytest.mark.parametrize("method", ["random", "meta"])
def test_bad_forms_are_refused(method, small, tmp_path):
    out = tmp_path / "parts"
    for dtypes, text in BAD_FORMS.items():
        with pytest.raises(RequestError, match=f"--feature-dtype: {text}"):
            divide_graph(small, out, 2, method, feature_dtypes=dtypes.split())
    by_dimension = {"features": "by-dimension", "feature_dtypes": ["author=int8"]}
    with pytest.raises(RequestError, match=r"by-dimension .* int8 rows of 'author' have one scale"):
        partition_graph(small, out, 2, "random", **by_dimension)
    assert not out.exists()


@pytest.mark.parametrize(
    ("value", "dtype"), [(7e4, "float16"), (np.inf, "bfloat16"), (np.nan, "int8")]
)
def test_numbers_beyond_a_form_are_refused(value, dtype, small, tmp_path):
    file = small.path / "features/paper.npy"
    rows = np.load(file)
    rows[11, 4] = value
    np.save(file, rows)
    text = rf"features/paper\.npy: row 11, column 4: expected a number that {dtype} can hold"
    with pytest.raises(GraphError, match=text):
        partition_graph(small, tmp_path / "parts", 2, "random", feature_dtypes=[dtype])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph"]


def test_rounded_rows_are_not_rounded_again(small, tmp_path):
    """The stated error would be that of the second rounding alone."""
    parts = partition_graph(small, tmp_path / "parts", 2, "random", feature_dtypes=["int8"])
    graph = GraphDirectory(small.path, parts.schema)
    with pytest.raises(RequestError, match="features of paper are rounded to int8 already"):
        partition_graph(graph, tmp_path / "again", 2, "random", feature_dtypes=["float16"])
