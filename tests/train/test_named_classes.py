"""Nodes and classes of a user's tables have names. Predictions show these names."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import hopper
from hopper.bench.parity import read_recorded
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.names import Names
from hopper.launch.run import prepare
from hopper.partition import partition_graph

COLOURS = ("blue", "green", "red")


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> hopper.RunResult:
    """A run that predicts colours of towns; a town is near others of its colour."""
    folder, generator = tmp_path_factory.mktemp("towns"), np.random.default_rng(2)
    colours = generator.integers(0, 3, 90)
    (folder / "tables").mkdir()
    with (folder / "tables" / "nodes.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "label", "coast", "height"])
        for town in range(90):
            coast = COLOURS[colours[town]] if generator.random() < 0.7 else "none"
            height = "" if town == 3 else round(float(generator.random()), 3)
            writer.writerow([f"town {town}", COLOURS[colours[town]], coast, height])
    with (folder / "tables" / "edges.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["src", "dst"])
        for town in range(90):
            same_colour = np.flatnonzero(colours == colours[town])
            for neighbour in generator.choice(same_colour, 4):
                writer.writerow([f"town {neighbour}", f"town {town}"])
    options = ImportOptions(split=RandomSplit(0.6, 0.2), missing="mean")
    import_graph("csv", str(folder / "tables"), folder / "graph", options)
    partition_graph(GraphDirectory.open(folder / "graph"), folder / "parts", 2, "random")
    return hopper.train(
        {
            "data": {"partitioned": str(folder / "parts")},
            "model": {"name": "sage", "layers": 2, "hidden": 16},
            "train": {
                "engine": "zero_hop",
                "epochs": 4,
                "batch_size": 16,
                "learning_rate": 0.05,
                "dtype": "float64",
                "gradient_norms": True,
                "record_gradients": [1],
                "run_dir": str(folder / "run"),
            },
        }
    )


def test_a_graph_with_other_class_names_is_refused(
    trained_run: hopper.RunResult, tmp_path: Path
) -> None:
    folder = Path(trained_run.run_dir).parent
    shutil.copytree(folder / "parts", tmp_path / "parts")
    (tmp_path / "parts" / "names" / "labels" / "node.txt").write_text("blue\nred\ngreen\n")
    words = ["--data.partitioned", str(tmp_path / "parts"), "--data.verify", "off"]
    match = r"classes \[blue, red, green\]; .* with \[blue, green, red\]; .*--encode-like .*parts"
    with pytest.raises(hopper.RequestError, match=match):
        hopper.predict(trained_run.run_dir, tmp_path / "out", format="npy", overrides=words)


def test_moved_columns_are_refused_until_they_are_encoded_alike(
    trained_run: hopper.RunResult, tmp_path: Path
) -> None:
    """Next week one coast is amber, which comes before all other colours."""
    folder = Path(trained_run.run_dir).parent
    shutil.copytree(folder / "tables", tmp_path / "tables")
    file = tmp_path / "tables" / "nodes.csv"
    file.write_text(re.sub(r"(?m)^(town 5,\w+),\w+", r"\1,amber", file.read_text()))

    def divide(name: str, options: ImportOptions) -> str:
        import_graph("csv", str(tmp_path / "tables"), tmp_path / name, options)
        parts = tmp_path / f"{name} parts"
        partition_graph(GraphDirectory.open(tmp_path / name), parts, 2, "random")
        return str(parts)

    split = RandomSplit(0.6, 0.2)
    moved = ["--data.partitioned", divide("moved", ImportOptions(split=split, missing="mean"))]
    match = (
        r"node: column 'coast' has the categories \[amber, blue, green, none, red\]; the run was "
        r"trained with \[blue, green, none, red\]; import the new data with --encode-like .*parts"
    )
    with pytest.raises(hopper.RequestError, match=match):
        hopper.predict(trained_run.run_dir, tmp_path / "out", overrides=moved)
    begun = [*moved, "--train.run_dir", "", "--train.init_from", str(trained_run.run_dir)]
    file = Path(trained_run.run_dir) / "config.json"
    with pytest.raises(hopper.RequestError, match=f"train.init_from: .*{match}"):
        prepare(hopper.load_config(file, begun))
    like = ImportOptions(encode_like=str(folder / "parts"), unknown_category="zeros")
    alike = ["--data.partitioned", divide("alike", like)]
    predictions = hopper.predict(trained_run.run_dir, tmp_path / "out", overrides=alike)
    labels = GraphDirectory.open(folder / "graph").labels("node")
    assert (predictions.values == labels[predictions.ids]).mean() > 0.9


@pytest.mark.parametrize("file_format", ["parquet", "npy"])
def test_predictions_show_names_of_nodes_and_classes(
    file_format: str, trained_run: hopper.RunResult, tmp_path: Path
) -> None:
    predictions = hopper.predict(trained_run.run_dir, out=tmp_path / "out", format=file_format)
    assert predictions.label_names == COLOURS
    labels = GraphDirectory.open(Path(trained_run.run_dir).parent / "graph").labels("node")
    assert (predictions.values == labels[predictions.ids]).mean() > 0.9
    assert predictions.names is not None
    assert predictions.names.tolist() == [f"town {node}" for node in predictions.ids]
    if file_format == "npy":
        return
    import pandas

    table = pandas.read_parquet(tmp_path / "out")
    assert list(table.columns) == ["id", "labels", "name", "label_name"]
    assert table["label_name"].tolist() == [COLOURS[label] for label in table["labels"]]
    logits = hopper.predict(trained_run.run_dir, what="logits")
    assert logits.label_names == ()
    assert logits.names is not None


def test_norms_of_gradients_are_recorded(trained_run: hopper.RunResult) -> None:
    run = Path(trained_run.run_dir)
    epochs = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    (recorded,) = read_recorded(run / "gradients")
    squares = sum(float(gradient.square().sum()) for gradient in recorded.gradients.values())
    assert epochs[0]["gradient_norms"][1] == pytest.approx(squares**0.5, rel=1e-12)
    assert all(len(epoch["gradient_norms"]) == epoch["iterations"] == 2 for epoch in epochs)


def test_names_are_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("eins\n\nдва\n", encoding="utf-8")
    names = Names.open(file, 3)
    assert names is not None
    assert names.of(np.array([2, 0, 1])) == ["два", "eins", ""]
    with pytest.raises(hopper.GraphError, match=r"names\.txt: expected 2 lines, given 3"):
        Names.open(file, 2)
    assert Names.open(tmp_path / "none.txt", 2) is None
    file.write_text("")
    assert len(Names(file)) == 0
