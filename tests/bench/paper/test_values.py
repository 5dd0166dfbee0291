"""What measures make of runs: values of spans, epochs and samples, and of layers alone."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.layers.rates import Rates
from benchmarks.layers.sides import BY_RELATION, MERGED
from benchmarks.paper import ab, layers
from benchmarks.paper.command import MEASURES
from benchmarks.paper.experiment import load_experiments
from benchmarks.paper.figures import RunsOf, compare_pipelines, read_held_rows
from benchmarks.paper.figures import _merging as merging_values
from benchmarks.paper.job import ROOT_SECONDS, make_rows, run_job, scaling_rows
from benchmarks.paper.layers import PYG_ROLE
from benchmarks.paper.single import first_iteration, seconds_to_best
from hopper.bench.contender import Contender
from hopper.config import change_config
from hopper.errors import RequestError

from ..report_folders import write_spans
from .conftest import start_job

SIDES = {BY_RELATION, MERGED}
if importlib.util.find_spec("torch_geometric"):
    SIDES |= {PYG_ROLE}


def make_runs(label: str, folder: Path, *runs: list[dict[str, Any]], ranks: int = 2) -> RunsOf:
    """Return a side with the epochs of its runs."""
    entries = [{"epochs": epochs, "peak_rss_mib": [1.0] * ranks} for epochs in runs]
    return RunsOf(Contender.parse(label), None, None, folder, entries)  # type: ignore[arg-type]


def test_the_rows_that_a_pass_holds_are_read_from_spans(tmp_path):
    side = make_runs("hop", tmp_path, [{"iterations": 3, "seconds": 1.0}])
    assert dict(read_held_rows(side, 2**20)) == {}

    def span(iteration: int, **fields: Any) -> dict[str, Any]:
        return {"epoch": 0, "iteration": iteration, "span": "gather"} | fields

    # One iteration with pre-gathering (asked once), one of two passes without (asked twice), and
    # a rank's own rows, which are asked of nobody.
    first = [span(0, operation="pregather"), span(0, rows=5), span(0, rows=7)]
    own = span(2, rows=11, operation="own rows")
    second = [span(1, rows=9), span(1, rows=2)]
    lines = [*first, *second, own, {"span": "gather", "rows": 99}]
    write_spans(tmp_path / "spans", lines, [span(0, rows=3)])
    values = dict(read_held_rows(side, 2**20))
    assert values == {"requests": pytest.approx(4 / (2 * 3)), "largest pass MiB": 11}


def test_seconds_of_learnable_rows_are_read_from_spans(tmp_path):
    side = make_runs("raf", tmp_path, [{"iterations": 2, "seconds": 30.0}] * 2)
    write_spans(tmp_path / "spans", *(
        [
            {"span": span, "operation": "learnable rows", "epoch": epoch, "iteration": iteration,
             "seconds": seconds * (1 + rank)}
            for epoch in range(2) for iteration in range(2)
            for span, seconds in (("gather", 1.0), ("sync", 2.0), ("compute", 4.0))
        ] + [{"span": "compute", "epoch": 1, "iteration": 0}]
        for rank in range(2)
    ))  # fmt: skip
    # Two ranks, two iterations after the first epoch: the mean of 1 and 2, and so on.
    values = dict(read_held_rows(side, None))
    parts = [values[f"learnable {name} seconds"] for name in ("read", "send", "update")]
    assert parts == [1.5, 3.0, 6.0]
    assert values["learnable share"] == 10.5 / 15


@pytest.mark.parametrize(("processor", "share"), [(0.05, 0.625), (100.0, None)])
def test_the_ideal_is_the_slowest_stage_or_the_processors(processor, share, tmp_path):
    name = "{} seconds of an iteration".format
    stages = {key: [0.1] for key in map(name, ("migrate", "compute", "sync", "wait"))}
    values: Any = {
        "off": stages | {name("sample"): [0.2], name("gather"): [0.4, 0.5, 0.6]},
        "on": {"iteration seconds": [0.8], name("processor"): [processor]},
    }
    on, off = (make_runs(f"hop{more}", tmp_path, []) for more in ("", ":pipeline.depth=0"))
    compare_pipelines(values, ("on", on), ("off", off))
    ((found,),) = [values["on"]["share of the ideal"]]
    assert found == pytest.approx(share) if share else found > 1
    compare_pipelines(values, ("off", off), ("on", on))
    assert "share of the ideal" not in values["off"]


def test_random_merging_puts_several_models_on_one_rank(tiny_config, tiny_graph, tmp_path):
    config = change_config(tiny_config, cluster={"ranks_per_server": 2}, train={"batch_size": 2})
    for dissolve in (1, 2):
        busiest = {}
        for selection in ("fewest", "random"):
            label = f"hop:merge={dissolve}:merge_selection={selection}"
            contender = Contender.parse(label)
            entries = [{"epochs": [], "peak_rss_mib": [1.0] * 4}]
            side = RunsOf(contender, config, tiny_graph, tmp_path, entries)
            busiest[selection] = dict(merging_values(side))["groups one after another"]
        assert busiest["fewest"] == 4 - dissolve < busiest["random"]


def test_more_servers_are_compared_with_the_fewest():
    experiment = load_experiments()["distdglv2-fig8"]
    four, two = (
        {"experiment": "e", "date": "", "commit": "", "problems": [],
         "cell": {"name": f"cell-{servers}", "servers": servers},
         "values": {"a": {ROOT_SECONDS: [seconds] * 3}}}
        for servers, seconds in ((4, 0.5), (2, 2.0))
    )  # fmt: skip
    (row,) = scaling_rows(experiment, four, two)
    assert (row.cell, row.baseline, row.ratio) == ("cell-4", "2 servers", 4.0)
    assert list(scaling_rows(experiment, two, two)) == []
    assert [row.rounds for row in make_rows(experiment, four)] == [3]


def test_utilisation_counts_samples_while_a_side_trains(tmp_path):
    moments = ((10, 90), (11, 0), (12, 10), (13, 30), (19, 80))
    samples = [ab.Sample(moment, busy) for moment, busy in moments]
    lines = [{"span": "s", "epoch": epoch, "start": epoch, "seconds": 1.5} for epoch in range(3)]
    write_spans(tmp_path / "spans", [{"event": "opened", "monotonic": 10.0}, *lines])
    assert ab.training_time(tmp_path) == (11.0, 13.5)
    used = ab.utilisation(samples, *ab.training_time(tmp_path))
    assert used == {"peak utilisation": 0.3, "busy share": pytest.approx(2 / 3)}
    assert ab.utilisation(samples, 14, 15) == {}


def test_the_gpu_is_sampled_meanwhile(tmp_path, monkeypatch):
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 37\n")
    command.chmod(0o755)
    monkeypatch.setattr(ab, "_QUERY", (str(command),))
    monkeypatch.setattr(ab, "_SAMPLE_SECONDS", 0.01)
    monkeypatch.setattr(ab, "gpu_name", lambda: "a GPU")
    monkeypatch.setattr(ab, "training_time", lambda _: (0.0, float("inf")))

    def train(_job: Any, _cell: Any, read_runs: Any) -> Any:
        while not (values := read_runs({"side": tmp_path}))["side"]:
            pass
        return values

    monkeypatch.setattr(ab, "measure_ab", train)
    job: Any = SimpleNamespace(experiment=SimpleNamespace(name="gpu"))
    assert ab.measure_gpu(job, None) == {"side": {"peak utilisation": 0.37, "busy share": 1.0}}  # type: ignore[arg-type]


def test_a_job_begins_with_the_last_rank_and_ends_with_the_best_epoch(tmp_path):
    opened = {"event": "opened", "start": 0.0, "unix": 100.0}
    # A span is written when it ends: those of threads that work ahead may come out of order.
    later, earlier = ({"span": "s", "iteration": 0, "start": start} for start in (3.0, 2.0))
    first = [opened, {"span": "wait", "start": 1.0}, later, earlier]
    second = [opened | {"unix": 100.5}, {"span": "s", "iteration": 0, "start": 2.5}]
    write_spans(tmp_path / "spans", first, second)
    assert (first_iteration(tmp_path, 1), first_iteration(tmp_path, 2)) == (102.0, 103.0)
    write_spans(tmp_path / "spans", first, [opened])
    with pytest.raises(RequestError, match=r"rank-1\.jsonl: no iteration in it"):
        first_iteration(tmp_path, 2)
    epochs = [{"epoch": epoch, "seconds": 2.0, "evaluation_seconds": 0.5} for epoch in range(5)]
    assert seconds_to_best(epochs, 1) == 5.0


def test_layers_are_timed_and_counted_by_all_sides(typed_graph, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "measure_machine", lambda: Rates(1e12, 1e12))
    axes = {"models": ("rgat",), "fanouts": ((3, 2),), "hidden": (8,)}
    entries = []
    for name in ("hifuse-fig7", "hifuse-fig8", "hifuse-table3"):
        experiment = load_experiments()[name]
        grid = experiment.grid.model_copy(update=axes)
        small = experiment.model_copy(update={"grid": grid, "rounds": 2})
        job = start_job(small, typed_graph.path, tmp_path)
        entries += run_job(job, MEASURES[small.measure])
    times, counts, rates = (entry["values"] for entry in entries)
    assert entries[0]["problems"] == []
    assert set(times) == set(counts) == set(rates) - {"the machine"} == SIDES
    baselines = {row.baseline for row in entries[0]["rows"] if row.measure == "batch seconds"}
    assert baselines - {""} == SIDES - {MERGED}
    for side in counts.values():
        forward = [value for name, value in side.items() if name.startswith("forward")]
        assert side["operators of torch"] > sum(forward) > 0
    whole = {name: side["operators of torch"] for name, side in counts.items()}
    assert whole[MERGED] < whole[BY_RELATION]
    assert all(min(rates[side]["Gflop/s"]) > 0 for side in SIDES)
    # Sides that do not compute the same tell so.
    monkeypatch.setattr(layers, "LIMIT", -1.0)
    measured = layers.measure_layer_operators(job, job.cells[0])
    assert f"{BY_RELATION}: logits differ by" in measured.problems[0]
