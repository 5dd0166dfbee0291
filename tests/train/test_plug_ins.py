"""Whole runs with a plug-in class wherever a configuration can name one.

One run reads features from files. Another reads them from a database, is ended by a signal and is
resumed. Both compute the same bits.
"""

import csv
import signal
from typing import Any

import pytest
from sqlite_features import write_rows

from hopper.bench.parity import read_recorded
from hopper.partition import partition_graph

EPOCHS, CALLS = 4, "witness.jsonl"
PLUG_INS: dict[str, Any] = {
    "engine": "zero_hop",
    "batch_size": 2,
    "epochs": EPOCHS,
    "checkpoint_every": 5,
    "loss": "focal_loss:FocalLoss",
    "loss_options": {"gamma": 1.0},
    "metric": "macro_f1:MacroF1",
    "optimizer": "lion:Lion",
    "schedule": "one_cycle:OneCycle",
    "schedule_options": {"peak": 0.4},
    "weight_decay": 0.01,
}
LOGGERS = ["csv_logger:CsvLogger", "own_callbacks:Witness"]
METHOD = "range_partitioner:RangePartitioner"


@pytest.fixture(scope="module")
def plugged_run(community_graph, runs, tmp_path_factory) -> Any:
    parts = tmp_path_factory.mktemp("own") / "parts"
    partition_graph(community_graph, parts, 2, METHOD)
    return runs.train_to_end(
        "own-whole", "--data.partitioned", str(parts), **PLUG_INS, loggers=LOGGERS
    )


def test_the_run_learns_and_tells_the_loggers_of_rank_0_alone(plugged_run):
    epochs, summary = plugged_run.epochs(), plugged_run.summary()
    assert epochs[-1]["loss"] < 0.7 * epochs[0]["loss"]
    assert "val macro_f1 " in plugged_run.stdout
    test = summary["scores"]["test"][summary["metric"]]
    assert summary["metric"] == "macro_f1"
    assert test > 0.5
    assert plugged_run.read_lines(CALLS) == [
        ["0", "start", "zero_hop", False],
        *(["0", "epoch", number, epoch["val"]] for number, epoch in enumerate(epochs)),
        ["0", "finish", test],
        ["0", "close"],
    ]
    with (plugged_run.run_dir / "epochs.csv").open(newline="") as file:
        head, *lines, last = csv.reader(file)
    assert head[:3] == ["epoch", "loss", "val"]
    assert [float(line[1]) for line in lines] == [epoch["loss"] for epoch in epochs]
    assert last == ["test", "", str(test)]


def test_an_interrupted_run_from_a_database_computes_the_same_bits(
    plugged_run, community_graph, graph_of, runs, tmp_path
):
    graph = graph_of("bare items")
    assert not graph.schema.node_types["item"].feature_dim
    partition_graph(graph, tmp_path / "parts", 2, METHOD)
    write_rows(tmp_path / "rows.db", enumerate(community_graph.features("item")))
    options = f'{{item = {{path = "{tmp_path / "rows.db"}", dim = 10}}}}'
    data = (
        "--data.partitioned",
        str(tmp_path / "parts"),
        "--data.features",
        '{item = "sqlite_features:SqliteFeatures"}',
        "--data.features_options",
        options,
    )
    logging = {"loggers": ["own_callbacks:Witness"], "loggers_options": [{"wait_after": 1}]}
    run = runs.train("own-interrupted", *data, **PLUG_INS, **logging)
    run.await_condition(
        lambda: (run.run_dir / CALLS).exists() and len(run.read_lines(CALLS)) == 3, "two epochs"
    )
    run.process.send_signal(signal.SIGTERM)
    assert run.finish(60) == 143
    run.assert_nothing_remains()
    # The logger is closed even if its rank is ended.
    assert run.read_lines(CALLS)[-1] == ["0", "close"]
    assert "ended by SIGTERM" in run.stderr

    resumed = runs.train_to_end("own-interrupted", *data, **PLUG_INS, **logging, resume=True)
    assert resumed.read_lines(CALLS)[4] == ["0", "start", "zero_hop", True]
    assert resumed.losses() == plugged_run.losses()
    expected, epochs = plugged_run.epochs(), resumed.epochs()
    assert [epoch["val"] for epoch in epochs] == [epoch["val"] for epoch in expected]
    assert epochs[-1]["rows"] == expected[-1]["rows"]
    assert resumed.best_model == plugged_run.best_model


def test_a_callback_ends_a_run_on_all_ranks_and_freezes_parameters(runs):
    options = {"loss": 1e9, "frozen": ["layers.0"], "epochs": 1}
    callbacks = {"callbacks": ["early_enough:EarlyEnough"], "callbacks_options": [options]}
    run = runs.train_to_end("called", **callbacks, epochs=3, record_gradients=[0, 1])
    assert len(run.epochs()) == 1
    assert "a callback ended the training after epoch 0" in run.stdout
    first, second = read_recorded(run.run_dir / "gradients")
    frozen = [name for name in first.parameters if name.startswith("layers.0")]
    assert frozen
    for name, value in first.parameters.items():
        assert value.equal(second.parameters[name]) == (name in frozen), name
    # Gradients are recorded before the callback sets them to zero.
    assert all(first.gradients[name].any() for name in frozen)
