"""Runs with and without a pipeline: the same losses, scores, bytes and rows."""

import json
from collections.abc import Callable, Iterable
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
from hopper.pipeline import sweep
from hopper.train.loop import Trainer
from hopper.train.rank import make_trainer
from tests.engines.conftest import Run
from tests.engines.features import Sections, World, case_of, merged

Names = Iterable[tuple[str, str]]
TrainKinds = Callable[..., dict[tuple[str, str], Run]]

PIPELINES: dict[str, dict[str, Any]] = {
    "off": {"depth": 0},
    "as it is": {},
    "narrow": {"depth": 1, "reads": 1, "memory": "1"},
    "kept": {"lookahead": 4, "lookahead_memory": "1G"},
    "few kept": {"lookahead": 4, "lookahead_memory": "2K"},
}
# An engine, and more of a configuration.
WHOLE: Sections = {"train": {"micro_batch": 0}}
KINDS: dict[str, tuple[str, Sections]] = {
    "model_centric": ("model_centric", {}),
    "zero_hop in passes": ("zero_hop in passes", {}),
    "hop": ("hop", {"hop": {"merge": 1}}),
    "trials apart": (
        "hop",
        {
            "train": {"patience": 1, "epochs": 3},
            "hop": {"replicas": "independent", "share_sampling": False},
        },
    ),
    "cooperative, early end": ("cooperative", {"train": {"patience": 1, "epochs": 9}}),
    "a cache": (
        "zero_hop in passes",
        WHOLE | {"cache": {"policy": "hotness", "size": "20%", "presample_epochs": 1}},
    ),
}
OF_TYPES = {
    "zero_hop": ("zero_hop in passes", WHOLE),
    "cooperative": ("cooperative", {}),
    "raf": ("raf", {}),
}
# Those that plan, read or end in a way of their own have the narrow pipeline too.
NARROW = ("hop", "trials apart", "cooperative, early end", "a cache", "raf")
# Those that read rows of other servers ahead keep some.
KEEPS = ("model_centric", "zero_hop in passes", "hop", "trials apart", "a cache")
# So many that plans reach into the next epoch, and rows are kept for several of them.
ITERATIONS = 5
SHARED: Sections = {
    "train": {"batch_size": 8, "iterations_per_epoch": ITERATIONS, "epochs": 2}
    | {"dtype": "float32", "record_gradients": []}
}


@pytest.fixture
def train_kinds(train, divided, serve_partitions) -> TrainKinds:
    """Train kinds with pipelines, by their names, on two ranks with a feature server each."""

    def run(feature: str, model: str, names: Names, more: Sections | None = None) -> Any:
        asked = []
        for kind, pipeline in names:
            engine, sections = (KINDS | OF_TYPES)[kind]
            case = case_of(feature, engine, World(2, 1), 0, model)
            parts = divided(case)
            servers = serve_partitions(parts.path, 2) if parts.layout.reads_remote_rows else []
            own = {"pipeline": PIPELINES[pipeline], "cluster": {"servers": servers}}
            asked.append((case, merged(SHARED, sections, own, more or {})))
        return dict(zip(names, train(asked), strict=True))

    return run


def read_epochs(run: Run) -> list[dict[str, Any]]:
    """The records of a run's epochs, of all trials."""
    files = sorted(run.folder.rglob("epochs.jsonl"))
    assert files
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("kinds", "feature", "model"),
    [(KINDS, "node", "gat"), (OF_TYPES, "types, learned rows", "rgat")],
)
def test_pipelines_do_not_change_runs(kinds, feature, model, train_kinds):
    """Rows that are kept change only the traffic."""
    names = [
        (kind, pipeline)
        for kind in kinds
        for pipeline in PIPELINES
        if kind in {"narrow": NARROW, "kept": KEEPS, "few kept": KEEPS}.get(pipeline, kinds)
    ]
    runs = train_kinds(feature, model, names)
    epochs = {name: read_epochs(run) for name, run in runs.items()}
    for kind, pipeline in names:
        assert runs[kind, pipeline].result["losses"] == runs[kind, "off"].result["losses"]
        for key in ("epoch", "iteration_losses", "val", "bytes", "rows", "lookups"):
            # Key by key, so that an error says what differs.
            values, expected = (
                [epoch.get(key) for epoch in epochs[kind, name]] for name in (pipeline, "off")
            )
            is_traffic = key in ("bytes", "rows", "lookups")
            assert values == expected or ("kept" in pipeline and is_traffic), (kind, pipeline, key)
    for kind in filter(KEEPS.__contains__, kinds):
        results = [runs[kind, name].result for name in ("kept", "few kept", "as it is")]
        roomy, few, plain = (result["bytes"]["feature"] for result in results)
        assert roomy < few < plain, kind
        assert_same_rows_are_read(results[:2], results[2])


def assert_same_rows_are_read(results: list[dict[str, Any]], plain: dict[str, Any]) -> None:
    """Assert that results have read the rows of a plain one, from servers or from memory."""
    for counts in (result["rows"] for result in results):
        for keys in (["local"], ["remote"], ["remote_unique", "cached"]):
            read, expected = (sum(rows[key] for key in keys) for rows in (counts, plain["rows"]))
            assert read == expected, keys


def test_full_batches_fetch_rows_once(train_kinds):
    names = [(kind, name) for name in ("off", "as it is") for kind in ("zero_hop", "hop")]
    more = {"train": {"epochs": 3, "iterations_per_epoch": 0}, "hop": {"merge": "off"}}
    runs = train_kinds("full", "wide sage", names, more)
    fetched = {
        name: [epoch["bytes"]["feature"] for epoch in read_epochs(run)]
        for name, run in runs.items()
    }
    for kind in ("zero_hop", "hop"):
        anew, kept = (kind, "off"), (kind, "as it is")
        assert runs[kept].result["losses"] == runs[anew].result["losses"]
        assert fetched[kept] == [fetched[anew][0], 0, 0]
        assert min(fetched[anew]) > 0


@pytest.fixture
def beyond_memory(monkeypatch) -> None:
    """No table fits memory."""
    monkeypatch.setattr(mapped_rows, "_SMALL_TABLE_BYTES", 0)
    monkeypatch.setattr(mapped_rows, "exceed_memory", lambda _nbytes: True)


def test_rows_of_tables_beyond_memory_are_read_for_several_iterations(
    train_kinds, beyond_memory, monkeypatch
):
    monkeypatch.setattr(sweep, "_PARTS", 3)
    read_early, sizes = PartitionedRows.read_early, []

    def count(rows: PartitionedRows, node_type: str, ids: NDArray[np.int64]) -> Any:
        sizes.append(ids.size)
        return read_early(rows, node_type, ids)

    monkeypatch.setattr(PartitionedRows, "read_early", count)
    names = [(kind, pipeline) for kind in KINDS for pipeline in ("off", "as it is")]
    few = {"model": {"hidden": 4}, "sampler": {"fanouts": [2, 1]}, "train": {"batch_size": 4}}
    runs = train_kinds("node", "wide sage", names, few)
    assert sizes
    assert min(sizes) > 0
    for kind in KINDS:
        plain, swept = (runs[kind, pipeline].result for pipeline in ("off", "as it is"))
        assert swept["losses"] == plain["losses"]
        assert_same_rows_are_read([swept], plain)
        if kind in KEEPS:
            assert swept["rows"]["remote_unique"] < plain["rows"]["remote_unique"], kind
            assert swept["bytes"]["feature"] < plain["bytes"]["feature"], kind


def test_ranks_that_plan_together_may_differ_in_what_fits_memory(
    train_kinds, beyond_memory, monkeypatch
):
    is_beyond_memory = LocalRows.is_beyond_memory

    def is_beyond(rows: LocalRows, table: str) -> bool:
        return rows._server == 1 and is_beyond_memory(rows, table)

    monkeypatch.setattr(LocalRows, "is_beyond_memory", is_beyond)
    off, swept = train_kinds(
        "types, learned rows", "rgat", [("raf", "off"), ("raf", "as it is")]
    ).values()
    assert swept.result["losses"] == off.result["losses"]


@pytest.fixture
def lone_trainer(divided, tmp_path) -> Trainer:
    """A trainer of one rank in this process."""
    case = case_of("node", "hop", World(1, 1), 0, "wide sage")
    graph = divided(case)
    whole = {"train": {"batch_size": 8, "epochs": 2, "iterations_per_epoch": 0}}
    config = make_config(merged(case.values(graph, tmp_path / "run"), whole))
    cluster = Cluster.join(1, choose_device("cpu"), 5.0, 5.0)
    rows = PartitionedRows(graph, 0, None, cluster.traffic)
    return make_trainer(Request(config, graph), cluster, rows)


@pytest.mark.parametrize("stage", ["plan", "read"])
def test_an_error_of_a_stage_ends_the_run_with_its_own_traceback(lone_trainer, monkeypatch, stage):
    engine = lone_trainer.engine.engine
    work, calls = getattr(engine, stage), []

    def break_down(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError(f"while it would {stage}")
        return work(*arguments)

    monkeypatch.setattr(engine, stage, break_down)
    with pytest.raises(ZeroDivisionError, match=f"while it would {stage}") as caught:
        lone_trainer.run()
    lone_trainer.engine.state.log.close()
    frames = [entry.name for entry in caught.traceback]
    assert "break_down" in frames
    assert len(calls) == 4


def test_spans_name_the_threads_of_the_pipeline(lone_trainer, tmp_path):
    lone_trainer.run()
    lone_trainer.engine.state.log.close()
    (file,) = (tmp_path / "run").rglob("rank-0.jsonl")
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = {(line.get("span"), line.get("thread")) for line in spans if "span" in line}
    assert {("sample", "plan"), ("gather", "read"), ("compute", None)} <= kinds
    assert ("sample", None) not in kinds
    iterations = lone_trainer.schedule.iterations
    for name, thread in (("sample", "plan"), ("gather", "read")):
        stage_spans = [
            line for line in spans if (line.get("span"), line.get("thread")) == (name, thread)
        ]
        assert {(line["epoch"], line["iteration"]) for line in stage_spans} == {
            (epoch, iteration) for epoch in range(2) for iteration in range(iterations)
        }
