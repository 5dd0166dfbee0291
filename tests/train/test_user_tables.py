"""Runs on a user's tables: names of nodes and classes, moved columns, and several tasks."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def write_towns(
    folder: Path, label: str, more: str, value: Callable[[int, int], object]
) -> np.ndarray:
    """Write tables of 90 towns, each near others of its colour; return the colours.

    ``value`` gives a column ``more`` of a town and its colour.
    """
    generator = np.random.default_rng(2)
    colours = generator.integers(0, 3, 90)
    nodes: list[list[object]] = [["id", label, "coast", more]]
    for town in range(90):
        coast = COLOURS[colours[town]] if generator.random() < 0.7 else "none"
        nodes.append([f"town {town}", COLOURS[colours[town]], coast, value(town, colours[town])])
    edges = [["src", "dst"]]
    for town in range(90):
        for neighbour in generator.choice(np.flatnonzero(colours == colours[town]), 4):
            edges.append([f"town {neighbour}", f"town {town}"])
    folder.mkdir()
    for name, rows in (("nodes", nodes), ("edges", edges)):
        with (folder / f"{name}.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows(rows)
    return colours


def make_values(folder: Path, **train: Any) -> dict[str, Any]:
    train = {"batch_size": 16, "learning_rate": 0.05, "dtype": "float64"} | train
    return {
        "data": {"partitioned": str(folder / "parts")},
        "model": {"name": "sage", "layers": 2, "hidden": 16},
        "train": train | {"run_dir": str(folder / "run")},
    }


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory) -> hopper.RunResult:
    """A run that predicts colours of towns."""
    folder, generator = tmp_path_factory.mktemp("towns"), np.random.default_rng(3)

    def height(town: int, _: int) -> object:
        return "" if town == 3 else round(generator.random(), 3)

    write_towns(folder / "tables", "label", "height", height)
    options = ImportOptions(split=RandomSplit(0.6, 0.2), missing="mean")
    import_graph("csv", str(folder / "tables"), folder / "graph", options)
    partition_graph(GraphDirectory.open(folder / "graph"), folder / "parts", 2, "random")
    recorded = {"gradient_norms": True, "record_gradients": [1]}
    return hopper.train(make_values(folder, engine="zero_hop", epochs=4, **recorded))


def test_a_graph_with_other_class_names_is_refused(trained_run, tmp_path):
    folder = Path(trained_run.run_dir).parent
    shutil.copytree(folder / "parts", tmp_path / "parts")
    (tmp_path / "parts" / "names" / "labels" / "node.txt").write_text("blue\nred\ngreen\n")
    words = ["--data.partitioned", str(tmp_path / "parts"), "--data.verify", "off"]
    match = r"classes \[blue, red, green\]; .* with \[blue, green, red\]; .*--encode-like .*parts"
    with pytest.raises(hopper.RequestError, match=match):
        hopper.predict(trained_run.run_dir, tmp_path / "out", format="npy", overrides=words)


def test_moved_columns_are_refused_until_they_are_encoded_alike(trained_run, tmp_path):
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


def test_predictions_show_names_of_nodes_and_classes(trained_run, tmp_path):
    import pandas

    predictions = hopper.predict(trained_run.run_dir, out=tmp_path / "out")
    assert predictions.label_names == COLOURS
    labels = GraphDirectory.open(Path(trained_run.run_dir).parent / "graph").labels("node")
    assert (predictions.values == labels[predictions.ids]).mean() > 0.9
    assert predictions.names is not None
    assert predictions.names.tolist() == [f"town {node}" for node in predictions.ids]
    table = pandas.read_parquet(tmp_path / "out")
    assert list(table.columns) == ["id", "labels", "name", "label_name"]
    assert table["label_name"].tolist() == [COLOURS[label] for label in table["labels"]]
    logits = hopper.predict(trained_run.run_dir, what="logits", format="npy", out=tmp_path / "npy")
    assert logits.label_names == ()
    assert logits.names is not None
    assert logits.names.tolist() == predictions.names.tolist()


def test_norms_of_gradients_are_recorded(trained_run):
    epochs = trained_run.epochs
    (recorded,) = read_recorded(Path(trained_run.run_dir) / "gradients")
    squares = sum(float(gradient.square().sum()) for gradient in recorded.gradients.values())
    assert epochs[0].gradient_norms[1] == pytest.approx(squares**0.5, rel=1e-12)
    assert all(len(epoch.gradient_norms) == epoch.iterations == 2 for epoch in epochs)


def test_names_are_lines_of_a_file(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("eins\n\nдва\n", encoding="utf-8")
    names = Names.open(file, 3)
    assert names is not None
    assert names.of(np.array([2, 0, 1])) == ["два", "eins", ""]
    with pytest.raises(hopper.GraphError, match=r"names\.txt: expected 2 lines, given 3"):
        Names.open(file, 2)
    assert Names.open(tmp_path / "none.txt", 2) is None
    assert names.find(["два", "zwei", "", "два"]).tolist() == [2, -1, 1, 2]
    file.write_text("")
    assert len(Names(file)) == 0
    # More lines than are looked through at once.
    file.write_text("".join(f"town {number}\n" for number in range(70_000)))
    assert Names(file).find(["town 69999", "town", "town 65536"]).tolist() == [69999, -1, 65536]


def test_each_of_several_tasks_is_learned_scored_and_predicted(tmp_path):
    """Neighbours share their colour and their height, so both can be learned."""

    def height(town: int, colour: int) -> object:
        return "" if town % 5 == 0 else float(colour)

    colours = write_towns(tmp_path / "tables", "label.colour", "value.height", height)
    options = ImportOptions(split=RandomSplit(0.6, 0.2))
    notes = import_graph("csv", str(tmp_path / "tables"), tmp_path / "graph", options)
    assert any("labels of node: colour: 3 classes" in note for note in notes)
    partition_graph(GraphDirectory.open(tmp_path / "graph"), tmp_path / "parts", 2, "random")
    values = make_values(tmp_path, engine="cooperative", epochs=8)
    run = hopper.train(values | {"task": {"weights": {"height": 0.5}}})
    scores = run.summary["scores"]["test"]
    assert set(scores) == {"colour.accuracy", "height.rmse"}
    assert scores["colour.accuracy"] > 0.8
    # The error of predicting the mean of all heights.
    assert scores["height.rmse"] < 0.8
    predictions = hopper.predict(run.run_dir, out=tmp_path / "out", format="npy")
    assert predictions.task("colour").dtype == np.int64
    assert (predictions.task("colour") == colours[predictions.ids]).mean() > 0.8
    assert tuple(predictions.tasks["colour"].label_names) == COLOURS
    test = GraphDirectory.open(tmp_path / "graph").split("test")
    height, known = predictions.task("height")[test], test % 5 != 0
    error = np.sqrt(np.square(height - colours[test])[known].mean())
    assert error == pytest.approx(scores["height.rmse"], rel=1e-6)
    described = json.loads((tmp_path / "out" / "_prediction.json").read_text())
    assert [task["name"] for task in described["tasks"]] == ["colour", "height"]
    probabilities = hopper.predict(run.run_dir, what="probabilities")
    assert probabilities.values.shape == (90, 4)
    assert np.allclose(probabilities.task("colour").sum(1), 1, atol=1e-6)
    with pytest.raises(hopper.RequestError, match="task: expected one of colour, height"):
        predictions.task("size")
