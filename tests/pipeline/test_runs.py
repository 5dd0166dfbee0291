"""Runs with and without a pipeline: the same losses, scores, bytes and rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cache_server.store import mapped_rows
from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.device.choice import choose_device
from hopper.engines import Request
from hopper.features import LocalRows, PartitionedRows
from hopper.hetero.divide import divide_graph
from hopper.partition import partition_graph
from hopper.pipeline import sweep
from hopper.train.loop import Trainer
from hopper.train.rank import make_trainer
from tests.engines.graphs import LEARNABLE, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

PIPELINES: dict[str, dict[str, Any]] = {
    "off": {"depth": 0},
    "as it is": {},
    "narrow": {"depth": 1, "reads": 1, "memory": "1"},
    "kept": {"lookahead": 4, "lookahead_memory": "1G"},
    "few kept": {"lookahead": 4, "lookahead_memory": "2K"},
}
ONE_TYPE: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 5}},
    "hop": {"train": {"engine": "hop"}, "hop": {"merge": 1}},
    "trials apart": {
        "train": {"engine": "hop", "patience": 1, "epochs": 3},
        "hop": {"replicas": "independent", "share_sampling": False},
    },
    "cooperative, early end": {"train": {"engine": "cooperative", "patience": 1, "epochs": 9}},
    "a cache": {
        "train": {"engine": "zero_hop"},
        "cache": {"policy": "hotness", "size": "20%", "presample_epochs": 1},
    },
}
TYPED: dict[str, dict[str, Any]] = {
    "zero_hop": {"train": {"engine": "zero_hop"}},
    "cooperative": {"train": {"engine": "cooperative"}},
}
# Those that plan, read or end in a way of their own have the narrow pipeline too.
NARROW = ("hop", "trials apart", "cooperative, early end", "a cache", "raf")
# Those that read rows of other servers ahead keep some.
KEEPS = ("model_centric", "zero_hop in passes", "hop", "trials apart", "a cache")
# So many that plans reach into the next epoch, and rows are kept for several of them.
ITERATIONS = 5


def make_values(
    partitioned: Path, run_dir: Path, servers: list[str], pipeline: str, **sections: Any
) -> dict[str, Any]:
    train = {
        "batch_size": 8,
        "iterations_per_epoch": ITERATIONS,
        "epochs": 2,
        "learning_rate": 0.01,
        "run_dir": str(run_dir),
    }
    return sections | {
        "data": {"partitioned": str(partitioned)},
        "sampler": {"fanouts": [4, 3]},
        "train": train | sections["train"],
        "pipeline": PIPELINES[pipeline],
        "cluster": {"servers": servers},
    }


def compare(
    train_cases: TrainCases,
    folder: Path,
    make_case: Callable[[str, str], dict[str, Any]],
    kinds: Any,
) -> None:
    """Train every kind with every pipeline that it is to have, and compare them by epoch.

    Rows that are kept change only the traffic.
    """
    names = [
        (kind, pipeline)
        for kind in kinds
        for pipeline in PIPELINES
        if kind in {"narrow": NARROW, "kept": KEEPS, "few kept": KEEPS}.get(pipeline, kinds)
    ]
    configs = [make_case(kind, pipeline) for kind, pipeline in names]
    trained = train_cases(configs, 2, folder / "ranks")
    results: dict[tuple[str, str], dict[str, Any]] = {}
    for name, config, result in zip(names, configs, trained, strict=True):
        run_dir = Path(config["train"]["run_dir"])
        epochs = sorted(run_dir.rglob("epochs.jsonl"))
        assert epochs
        lines = [json.loads(line) for file in epochs for line in file.read_text().splitlines()]
        keys = ["epoch", "iteration_losses", "val", "bytes", "rows", "lookups"]
        # Key by key, so that an error says what differs.
        results[name] = {"losses": result["losses"]} | {
            key: [line.get(key) for line in lines] for key in keys
        }
        results[name]["sums"] = result["rows"] | {"feature": result["bytes"]["feature"]}
    for kind, pipeline in names:
        for key, values in results[kind, "off"].items():
            if "kept" not in pipeline or key in ("losses", "epoch", "iteration_losses", "val"):
                assert results[kind, pipeline][key] == values, (kind, pipeline, key)
    for kind in filter(KEEPS.__contains__, kinds):
        roomy, few, plain = (results[kind, p]["sums"] for p in ("kept", "few kept", "as it is"))
        assert roomy["feature"] < few["feature"] < plain["feature"], kind
        for result in (roomy, few):
            assert (result["local"], result["remote"]) == (plain["local"], plain["remote"])
            read = result["remote_unique"] + result["cached"]
            assert read == plain["remote_unique"] + plain["cached"]


@pytest.fixture(scope="module")
def servers(parts, serve_partitions) -> list[str]:
    return serve_partitions(parts, 2)


def test_pipelines_do_not_change_runs_of_homogeneous_graphs(parts, servers, train_cases, tmp_path):

    def make_case(kind: str, pipeline: str) -> dict[str, Any]:
        model = {"name": "gat", "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.3}
        run_dir = tmp_path / f"{kind}-{pipeline}"
        return make_values(parts, run_dir, servers, pipeline, model=model, **ONE_TYPE[kind])

    compare(train_cases, tmp_path, make_case, ONE_TYPE)


def test_full_batches_fetch_rows_once(parts, servers, train_cases, tmp_path):
    cases = []
    for pipeline in ("off", "as it is"):
        for engine in ("zero_hop", "hop"):
            sections = {"model": {"name": "sage", "layers": 2}, "train": {"engine": engine}}
            run_dir = tmp_path / f"{engine}-{pipeline}"
            values = make_values(parts, run_dir, servers, pipeline, **sections)
            values["train"] |= {"epochs": 3, "iterations_per_epoch": 0}
            cases.append(values | {"sampler": {"kind": "full"}})
    results = train_cases(cases, 2, tmp_path / "ranks")
    fetched = []
    for case in cases:
        lines = (Path(case["train"]["run_dir"]) / "epochs.jsonl").read_text().splitlines()
        fetched.append([json.loads(line)["bytes"]["feature"] for line in lines])
    for anew, kept in ((0, 2), (1, 3)):
        assert results[kept]["losses"] == results[anew]["losses"]
        assert fetched[kept] == [fetched[anew][0], 0, 0]
        assert min(fetched[anew]) > 0


def test_rows_of_tables_beyond_memory_are_read_for_several_iterations(
    parts, servers, train_cases, tmp_path, monkeypatch
):
    monkeypatch.setattr(mapped_rows, "_SMALL_TABLE_BYTES", 0)
    monkeypatch.setattr(mapped_rows, "exceed_memory", lambda _nbytes: True)
    monkeypatch.setattr(sweep, "_PARTS", 3)
    read_early, sizes = PartitionedRows.read_early, []

    def count(rows: PartitionedRows, node_type: str, ids: NDArray[np.int64]) -> Any:
        sizes.append(ids.size)
        return read_early(rows, node_type, ids)

    monkeypatch.setattr(PartitionedRows, "read_early", count)

    def make_case(kind: str, pipeline: str) -> dict[str, Any]:
        values = make_values(
            *(parts, tmp_path / f"{kind}-{pipeline}", servers, pipeline),
            **(ONE_TYPE[kind] | {"model": {"name": "sage", "layers": 2, "hidden": 4}}),
        )
        values["train"]["batch_size"] = 4
        return values | {"sampler": {"fanouts": [2, 1]}}

    names = [(kind, pipeline) for kind in ONE_TYPE for pipeline in ("off", "as it is")]
    cases = [make_case(*name) for name in names]
    results = dict(zip(names, train_cases(cases, 2, tmp_path / "ranks"), strict=True))
    assert sizes
    assert min(sizes) > 0
    for kind in ONE_TYPE:
        plain, swept = results[kind, "off"], results[kind, "as it is"]
        assert swept["losses"] == plain["losses"]
        rows, expected = swept["rows"], plain["rows"]
        for key in ("local", "remote"):
            assert rows[key] == expected[key], (kind, key)
        read, expected_read = (one["remote_unique"] + one["cached"] for one in (rows, expected))
        assert read == expected_read, kind
        if kind in KEEPS:
            assert rows["remote_unique"] < expected["remote_unique"], kind
            assert swept["bytes"]["feature"] < plain["bytes"]["feature"], kind


def test_ranks_that_plan_together_may_differ_in_what_fits_memory(
    train_cases, tmp_path, monkeypatch
):
    graph, parts = make_graph(tmp_path / "graph", WITH_FEATURES), tmp_path / "relations"
    divide_graph(graph, parts, 2, "meta", layers=2)
    monkeypatch.setattr(mapped_rows, "_SMALL_TABLE_BYTES", 0)
    monkeypatch.setattr(mapped_rows, "exceed_memory", lambda _nbytes: True)
    is_beyond_memory = LocalRows.is_beyond_memory

    def is_beyond(rows: LocalRows, table: str) -> bool:
        return rows._server == 1 and is_beyond_memory(rows, table)

    monkeypatch.setattr(LocalRows, "is_beyond_memory", is_beyond)
    sections = {"model": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2}}
    sections |= {"learnable": LEARNABLE, "train": {"engine": "raf"}}
    cases = [
        make_values(parts, tmp_path / name, [], name, **sections) for name in ("off", "as it is")
    ]
    off, swept = train_cases(cases, 2, tmp_path / "ranks")
    assert swept["losses"] == off["losses"]


def test_pipelines_do_not_change_runs_of_typed_graphs_with_learnable_rows(
    serve_partitions, train_cases, tmp_path
):
    graph = make_graph(tmp_path / "graph", WITH_FEATURES)
    divisions = {"nodes": tmp_path / "nodes", "relations": tmp_path / "relations"}
    partition_graph(graph, divisions["nodes"], 2, "random")
    divide_graph(graph, divisions["relations"], 2, "meta", layers=2)
    servers = serve_partitions(divisions["nodes"], 2)
    kinds = {name: (divisions["nodes"], servers, sections) for name, sections in TYPED.items()}
    kinds["raf"] = (divisions["relations"], [], {"train": {"engine": "raf"}})

    def make_case(kind: str, pipeline: str) -> dict[str, Any]:
        partitioned, addresses, sections = kinds[kind]
        model = {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3}
        model_sections = sections | {"model": model, "learnable": LEARNABLE}
        return make_values(
            partitioned, tmp_path / f"{kind}-{pipeline}", addresses, pipeline, **model_sections
        )

    compare(train_cases, tmp_path, make_case, kinds)


@pytest.fixture
def lone_trainer(community_graph, tmp_path) -> Callable[..., Trainer]:
    """A function that makes a trainer of one rank in this process."""
    partitioned = tmp_path / "parts"
    graph = partition_graph(community_graph, partitioned, 1, "random")

    def make(**sections: Any) -> Trainer:
        train = {"batch_size": 8, "epochs": 2, "run_dir": str(tmp_path / "run"), "engine": "hop"}
        model = {"name": "sage", "layers": 2, "hidden": 4}
        values = {"data": {"partitioned": str(partitioned)}, "train": train, "model": model}
        config = make_config(values | sections)
        cluster = Cluster.join(1, choose_device("cpu"), 5.0, 5.0)
        rows = PartitionedRows(graph, 0, None, cluster.traffic)
        return make_trainer(Request(config, graph), cluster, rows)

    return make


@pytest.mark.parametrize("stage", ["plan", "read"])
def test_an_error_of_a_stage_ends_the_run_with_its_own_traceback(lone_trainer, monkeypatch, stage):
    trainer = lone_trainer()
    engine = trainer.engine.engine
    work, calls = getattr(engine, stage), []

    def break_down(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError(f"while it would {stage}")
        return work(*arguments)

    monkeypatch.setattr(engine, stage, break_down)
    with pytest.raises(ZeroDivisionError, match=f"while it would {stage}") as caught:
        trainer.run()
    trainer.engine.state.log.close()
    frames = [entry.name for entry in caught.traceback]
    assert "break_down" in frames
    assert len(calls) == 4


def test_spans_name_the_threads_of_the_pipeline(lone_trainer, tmp_path):
    trainer = lone_trainer()
    trainer.run()
    trainer.engine.state.log.close()
    (file,) = (tmp_path / "run").rglob("rank-0.jsonl")
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = {(line.get("span"), line.get("thread")) for line in spans if "span" in line}
    assert {("sample", "plan"), ("gather", "read"), ("compute", None)} <= kinds
    assert ("sample", None) not in kinds
    iterations = trainer.schedule.iterations
    for name, thread in (("sample", "plan"), ("gather", "read")):
        stage_spans = [
            line for line in spans if (line.get("span"), line.get("thread")) == (name, thread)
        ]
        assert {(line["epoch"], line["iteration"]) for line in stage_spans} == {
            (epoch, iteration) for epoch in range(2) for iteration in range(iterations)
        }
