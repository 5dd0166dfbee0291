"""Configurations of GraphStorm's graph construction become queries that return the same values."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from hopper.cli import main
from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.importers.graphstorm import propose_graphstorm

NODES = {
    "id": ["a", "b", "c", "d"],
    "price": [10.0, 20.0, 30.0, 40.0],
    "color": ["red", "blue", "red", "red"],
    "vector": [[1.0, 2.0, 3.0]] * 4,
    "kind": [0, 1, 0, 1],
    "age": [1.0, 11.0, 21.0, 31.0],
}


def feature(column: str | list[str], title: str = "", **transform: Any) -> dict[str, Any]:
    named = {"feature_col": column, "feature_name": title}
    return named | ({"transform": transform} if transform else {})


CONFIG: dict[str, Any] = {
    "version": "gconstruct-v0.1",
    "nodes": [
        {
            "node_type": "item",
            "node_id_col": "id",
            "format": {"name": "parquet"},
            "files": "items-*.parquet",
            "features": [
                feature("price", "unit", name="max_min_norm", max_bound=30),
                feature("color", name="to_categorical"),
                feature("vector", truncate_dim=2),
                feature("age", "decade", name="bucket_numerical", range=[10, 30], bucket_cnt=2),
                feature("price", "rank", name="rank_gauss"),
            ],
            "labels": [
                {
                    "task_type": "classification",
                    "label_col": "kind",
                    "custom_split_filenames": {"train": "train.json", "valid": "val.json"},
                }
            ],
        },
        {
            "node_type": "item",
            "format": {"name": "JSON"},
            "files": ["more.json"],
            "features": [feature(["w", "h"], "size"), feature("w", "share", name="standard")],
        },
        {"node_type": "user", "node_id_col": "id", "format": {"name": "csv"}, "files": "users.csv"},
    ],
    "edges": [
        {
            "relation": ["user", "buys", "item"],
            "source_id_col": "from",
            "dest_id_col": "to",
            "format": {"name": "csv", "separator": "|"},
            "files": ["buys.csv"],
        }
    ],
}


@pytest.fixture
def folder(tmp_path) -> Path:
    items = pandas.DataFrame(NODES)
    items[:2].to_parquet(tmp_path / "items-0.parquet")
    items[2:].to_parquet(tmp_path / "items-1.parquet")
    rows = [json.dumps({"w": i, "h": 2 * i}) for i in range(4)]
    (tmp_path / "more.json").write_text("\n".join(rows))
    (tmp_path / "train.json").write_text('"a"\n"d"\n')
    (tmp_path / "val.json").write_text('"b"\n')
    (tmp_path / "users.csv").write_text("id\nx\ny\n")
    (tmp_path / "buys.csv").write_text("from|to\nx|c\ny|a\n")
    return tmp_path


def propose(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    words = ["graphstorm", str(folder / "config.json"), "--out", str(folder / "graph.toml")]
    assert main(["dataset", "import", *words]) == 0
    return (folder / "graph.toml").read_text()


def test_a_configuration_becomes_a_graph(folder):
    text = propose(folder, CONFIG)
    assert '-- rank: {"name": "rank_gauss"} of price' in text
    words = [str(folder / "graph.toml"), "--out", str(folder / "graph")]
    assert main(["dataset", "import", "sql", *words]) == 0
    graph = GraphDirectory.open(folder / "graph")
    columns = [column.name for column in graph.schema.node_types["item"].columns]
    assert columns == ["unit", "color", "vector", "decade", "size_w", "size_h", "share"]
    expected = np.array(
        [
            [0, 0.5, 1, 1],
            [0, 1, 0, 0],
            [1, 0, 1, 1],
            [1] * 4,
            [2] * 4,
            [1, 1, 0, 0],
            [0, 0, 1, 1],
            [0, 1, 2, 3],
            [0, 2, 4, 6],
            [0, 1 / 6, 2 / 6, 3 / 6],
        ]
    )
    np.testing.assert_allclose(graph.features("item"), expected.T, rtol=1e-6)
    np.testing.assert_array_equal(graph.labels("item"), NODES["kind"])
    np.testing.assert_array_equal(graph.split("train"), [0, 3])
    np.testing.assert_array_equal(graph.split("val"), [1])
    topology = graph.topology(next(iter(graph.schema.relations)))
    np.testing.assert_array_equal(topology.indptr, [0, 1, 1, 2, 2])
    np.testing.assert_array_equal(topology.indices, [1, 0])


def test_shares_of_splits_tasks_and_encoders(folder):
    config = json.loads(json.dumps(CONFIG))
    item = config["nodes"][0]
    item["labels"] = [
        {"task_type": "classification", "label_col": "kind", "split_pct": [0.5, 0.25, 0.25]},
        {"task_type": "regression", "label_col": "the_price", "split_pct": [1, 0, 0]},
    ]
    item["features"] = [
        feature("color", "text", name="bert_hf", bert_model="bert-base", max_seq_length=8),
        feature("id", "name", name="tokenize_hf", bert_model="bert-base"),
    ]
    config["edges"][0]["labels"] = [
        {"task_type": "link_prediction", "custom_split_filenames": {"train": "t.parquet"}}
    ]
    text = propose(folder, config)
    assert "< 0.5 THEN 'train'" in text
    assert "< 0.75 THEN 'val'" in text
    assert "< 1 THEN 'test'" in text
    assert 'AS "label.kind"' in text
    assert 'AS "value.the-price"' in text
    assert 'model_name_or_path = "bert-base"' in text
    assert 'embed_1(b0."color") AS "text"' in text
    assert 'embed_1(b0."id") AS "name"' in text
    assert text.count("SentenceTransformer") == 1
    assert '-- splits: {"train": "t.parquet"}' in text
    assert "-- splits of the_price" in text


def test_what_is_missing_stays_missing_and_names_of_hopper_are_left_to_it(folder):
    """The blocks of a type need not be neighbours, and have columns of one name."""
    (folder / "more.json").write_text('{"id": 1, "w": 2}\n{"id": 2}\n{"id": 3}\n{"id": 4, "w": 6}')
    config = json.loads(json.dumps(CONFIG))
    item, more, user = config["nodes"]
    item["features"] = []
    more["features"] = [
        feature("w", "weight", name="max_min_norm"),
        feature("w", "bucket", name="bucket_numerical", range=[0, 8], bucket_cnt=4),
    ]
    config["nodes"], config["edges"] = [item, user | {"node_type": 'a "b"'}, more], []
    text = propose(folder, config)
    assert list(tomllib.loads(text)["nodes"]) == ["item", 'a "b"']
    config["nodes"] = [item, user, more]
    (folder / "graph.toml").unlink()
    propose(folder, config)
    words = [str(folder / "graph.toml"), "--out", str(folder / "graph"), "--missing", "zero"]
    assert main(["dataset", "import", "sql", *words]) == 0
    graph = GraphDirectory.open(folder / "graph")
    columns = [column.name for column in graph.schema.node_types["item"].columns]
    assert columns == ["weight_feature", "bucket"]
    expected = [[0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 1]]
    np.testing.assert_array_equal(graph.features("item"), expected)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"nodes": None}, r"nodes: expected .*, given None"),
        ({"edges": [{"relation": []}]}, r"edges\[0\]\.format: missing field"),
        ({"nodes": [CONFIG["nodes"][1]]}, r"nodes: item: node_id_col: missing field"),
        (
            {"nodes": [CONFIG["nodes"][0] | {"format": {"name": "HDF5"}}]},
            r"nodes: item: format: expected one of parquet, json, csv, given 'hdf5'",
        ),
    ],
)
def test_what_is_wrong_is_told_in_a_line(change, error, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(GraphError, match=rf"config\.json: {error}") as caught:
        propose_graphstorm(tmp_path / "config.json", tmp_path / "graph.toml")
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]
