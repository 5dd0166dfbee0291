"""A run with several tasks, from a user's tables to predictions of each."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import hopper
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.partition import partition_graph

COLOURS = ("blue", "green", "red")


def test_each_task_is_learned_scored_and_predicted(tmp_path: Path) -> None:
    """Neighbours share their colour and their height, so both can be learned."""
    generator = np.random.default_rng(2)
    colours = generator.integers(0, 3, 90)
    (tmp_path / "tables").mkdir()
    with (tmp_path / "tables" / "nodes.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "label.colour", "value.height", "coast"])
        for town in range(90):
            coast = COLOURS[colours[town]] if generator.random() < 0.7 else "none"
            height = "" if town % 5 == 0 else float(colours[town])
            writer.writerow([f"town {town}", COLOURS[colours[town]], height, coast])
    with (tmp_path / "tables" / "edges.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["src", "dst"])
        for town in range(90):
            for neighbour in generator.choice(np.flatnonzero(colours == colours[town]), 4):
                writer.writerow([f"town {neighbour}", f"town {town}"])
    options = ImportOptions(split=RandomSplit(0.6, 0.2))
    notes = import_graph("csv", str(tmp_path / "tables"), tmp_path / "graph", options)
    assert any("labels of node: colour: 3 classes" in note for note in notes)
    partition_graph(GraphDirectory.open(tmp_path / "graph"), tmp_path / "parts", 2, "random")
    run = hopper.train(
        {
            "data": {"partitioned": str(tmp_path / "parts")},
            "model": {"name": "sage", "layers": 2, "hidden": 16},
            "task": {"weights": {"height": 0.5}},
            "train": {
                "engine": "cooperative",
                "epochs": 8,
                "batch_size": 16,
                "learning_rate": 0.05,
                "dtype": "float64",
                "run_dir": str(tmp_path / "run"),
            },
        }
    )
    scores = run.summary["scores"]["test"]
    assert set(scores) == {"colour.accuracy", "height.rmse"}
    assert scores["colour.accuracy"] > 0.8
    # The error of predicting the mean of all heights.
    assert scores["height.rmse"] < 0.8
    predictions = hopper.predict(run.run_dir, out=tmp_path / "out", format="npy")
    assert predictions.task("colour").dtype == np.int64
    assert (predictions.task("colour") == colours[predictions.ids]).mean() > 0.8
    names = predictions.tasks["colour"].label_names
    assert tuple(names) == COLOURS
    test = GraphDirectory.open(tmp_path / "graph").split("test")
    height = predictions.task("height")[test]
    known = test % 5 != 0
    error = np.sqrt(np.square(height - colours[test])[known].mean())
    assert error == pytest.approx(scores["height.rmse"], rel=1e-6)
    described = json.loads((tmp_path / "out" / "_prediction.json").read_text())
    assert [task["name"] for task in described["tasks"]] == ["colour", "height"]
    probabilities = hopper.predict(run.run_dir, what="probabilities")
    assert probabilities.values.shape == (90, 4)
    assert np.allclose(probabilities.task("colour").sum(1), 1, atol=1e-6)
    with pytest.raises(hopper.RequestError, match="task: expected one of colour, height"):
        predictions.task("size")
