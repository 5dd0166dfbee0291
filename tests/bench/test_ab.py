"""``hopper bench ab`` from its command line to its files, on a tiny graph with two servers."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import save_file

from hopper.bench.ab import check_parity, conclude, run_ab
from hopper.bench.ab_plan import CONFIG_FILE, RUNS_FOLDER, Plan, make_plan
from hopper.bench.contender import Contender, parse_contenders
from hopper.bench.parity import GRADIENT_LIMITS, LOSS_LIMITS
from hopper.bench.picture import PICTURE_FILE
from hopper.bench.results import RESULTS_FILE, run_entry, write_results
from hopper.bench.statistics import figures
from hopper.bench.table import feature_reduction, print_results
from hopper.cli import bench
from hopper.config import Config, load_config
from hopper.partition import PartitionedGraph
from hopper.run_log import STAGES
from hopper.traffic import CAUSES

ENGINES = ("model_centric", "hop", "zero_hop")
PNG = b"\x89PNG\r\n"


def run_command(*words: str) -> int:
    """Run ``hopper bench ...`` and return its exit code."""
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    options = parser.parse_args(["bench", *words])
    return int(options.run(options))


@pytest.fixture(scope="module")
def finished(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder and the exit code of one A/B of all engines."""
    folder = tmp_path_factory.mktemp("ab")
    config = folder / "config.json"
    config.write_text(tiny_config.model_dump_json())
    words = ["ab", str(config), "--engines", ",".join(ENGINES), "--out", str(folder / "out")]
    # The override changes what is trained, so it must reach every run.
    return folder / "out", run_command(*words, "--rounds", "1", "--model.hidden", "6")


@pytest.fixture(scope="module")
def results(finished: tuple[Path, int]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((finished[0] / RESULTS_FILE).read_text())
    return content


def test_the_command_succeeds_and_writes_all_files(finished: tuple[Path, int]) -> None:
    out, code = finished
    assert code == 0
    assert (out / PICTURE_FILE).read_bytes().startswith(PNG)
    names = {f"{engine}-round-0" for engine in ENGINES}
    assert {path.name for path in (out / RUNS_FOLDER).iterdir()} == names
    assert not list(out.glob("*.unfinished"))


def test_results_have_the_schema(results: dict[str, Any]) -> None:
    assert set(results) == {
        *("schema", "commit", "versions", "machine", "config"),
        *("dataset", "partition", "runs", "parity"),
    }
    assert results["schema"] == 1
    assert {"python", "torch", "numpy", "dgl", "grpcio", "numba"} <= set(results["versions"])
    assert {"cpu", "cores", "memory_gib", "kernel"} <= set(results["machine"])
    assert results["config"]["model"]["hidden"] == 6
    assert set(results["partition"]) == {"method", "servers", "edge_cut", "locality"}
    assert set(results["partition"]["locality"]) == {"micrograph", "subgraph"}
    assert [run["engine"] for run in results["runs"]] == list(ENGINES)
    for run in results["runs"]:
        _check_run(run)


def _check_run(run: Mapping[str, Any]) -> None:
    assert set(run) == {
        *("label", "engine", "exact", "options", "partition", "model", "round"),
        *("epochs", "nic_bytes", "peak_rss_mib", "scores"),
    }
    assert run["nic_bytes"] is None
    assert len(run["peak_rss_mib"]) == 2
    assert set(run["scores"]) == {"val", "test"}
    assert 0 <= run["scores"]["test"]["accuracy"] <= 1
    assert len(run["epochs"]) == 2
    for epoch in run["epochs"]:
        assert set(epoch) == {
            *("seconds", "loss", "iterations", "decisions"),
            *("bytes", "rows", "lookups", "stage_seconds", "cpu_seconds", "sent_bytes"),
        }
        assert epoch["seconds"] > 0
        assert epoch["iterations"] == 3
        assert set(epoch["bytes"]) == set(CAUSES)
        assert set(epoch["rows"]) == {"local", "remote", "remote_unique", "cached"}
        assert set(epoch["stage_seconds"]) == set(STAGES)


def test_engines_compute_the_same_gradient(results: dict[str, Any]) -> None:
    for measure in ("max_relative_gradient_difference", "max_relative_loss_difference"):
        differences = results["parity"][measure]
        assert set(differences) == set(ENGINES)
        assert all(0 <= value < 1e-5 for value in differences.values())
    # Some rounding there must be: exactly 0 would mean that the same numbers were compared.
    assert results["parity"]["max_relative_gradient_difference"]["hop"] > 0


def test_hop_and_zero_hop_fetch_fewer_features(results: dict[str, Any]) -> None:
    measured = {engine: figures(results["runs"], engine) for engine in ENGINES}
    base = measured["model_centric"]
    assert base.bytes["feature"] > 0
    assert base.bytes["model"] == 0
    assert measured["hop"].bytes["model"] > 0
    for engine in ("hop", "zero_hop"):
        factor = feature_reduction(base, measured[engine])
        assert factor is not None
        assert factor > 1.2
        assert measured[engine].rows["remote_unique"] < base.rows["remote_unique"]


@pytest.fixture
def unconcluded(
    finished: tuple[Path, int],
) -> tuple[Plan, list[dict[str, Any]], list[dict[str, Any]]]:
    """The finished A/B's plan, entries and summaries, as they were before its conclusion."""
    out, _ = finished
    config = load_config(out / CONFIG_FILE)
    graph = PartitionedGraph.open(config.data.partitioned)
    contenders = parse_contenders(ENGINES)
    plan = Plan(config, contenders, out, 1, 60.0, graph, iterations=3)
    summaries = [
        json.loads((plan.run_dir(contender, 0) / "summary.json").read_text())
        for contender in contenders
    ]
    entries = [
        run_entry(config, contender, 0, summary)
        for contender, summary in zip(contenders, summaries, strict=True)
    ]
    return plan, entries, summaries


def _print_to_text(results: dict[str, Any], problems: list[str]) -> str:
    console = Console(width=120, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        print_results(console, results, problems)
    return captured.get()


@pytest.mark.parametrize("factor", [1.01, math.nan])
def test_a_wrong_gradient_makes_speed_ups_refused(
    unconcluded: tuple[Plan, list[dict[str, Any]], list[dict[str, Any]]],
    factor: float,
    tmp_path: Path,
) -> None:
    plan, entries, summaries = unconcluded
    last = plan.recorded_iterations[-1]
    path = plan.run_dir(Contender.parse("hop"), 0) / "gradients" / f"step-{last}.safetensors"
    original = path.read_bytes()
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = next(name for name in tensors if name.startswith("gradient."))
    tensors[name] = tensors[name] * factor
    try:
        save_file(tensors, str(path), metadata=metadata)
        parity = check_parity(plan)
    finally:
        path.write_bytes(original)
    outcome = conclude(plan, parity, entries, summaries, print)
    assert len(outcome.problems) == 1
    assert "hop: gradients differ by" in outcome.problems[0]
    text = _print_to_text(outcome.results, outcome.problems)
    assert "No speed-up is told" in text
    assert text.count("refused") == 4
    written = json.loads(write_results(tmp_path, outcome.results).read_text())
    shown = written["parity"]["max_relative_gradient_difference"]["hop"]
    assert shown == "nan" if math.isnan(factor) else shown > 1e-3
    # Nothing else was wrong.
    sound = conclude(plan, check_parity(plan), entries, summaries, print)
    assert sound.problems == []
    assert "refused" not in _print_to_text(sound.results, [])


def test_rounding_is_settled_in_float64_or_named(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Less than any rounding: float32 cannot pass, an engine in float64 can.
    monkeypatch.setitem(GRADIENT_LIMITS, "float32", 1e-12)
    messages: list[str] = []
    rounding = "cooperative:wire=bfloat16"
    plan = make_plan(tiny_config, ["zero_hop", rounding], tmp_path / "out", rounds=1)
    outcome = run_ab(plan, messages.append, lambda _: None)
    assert outcome.problems == []
    parity = outcome.results["parity"]
    assert 1e-12 < parity["max_relative_gradient_difference"]["zero_hop"] < 1e-5
    assert list(parity["in_float64"]) == ["zero_hop"]
    assert 0 < parity["in_float64"]["zero_hop"]["difference"] < 1e-12
    assert 1e-9 < parity["in_float64"]["zero_hop"]["rounding"] < 1e-4
    assert any("in float64" in line for line in messages)
    # One that is meant to round is compared, and not judged.
    assert parity["not_judged"] == [rounding]
    assert 1e-4 < parity["max_relative_gradient_difference"][rounding] < 0.1
    # The run that settles it is not among those that are timed.
    assert [run["exact"] for run in outcome.results["runs"]] == [True, False]


def test_a_loss_that_drifts_is_settled_in_float64(
    unconcluded: tuple[Plan, list[dict[str, Any]], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan, entries, summaries = unconcluded
    drifted = deepcopy(summaries)
    drifted[2]["epochs"][1]["iteration_losses"][0] *= 1.00005
    messages: list[str] = []
    outcome = conclude(plan, check_parity(plan), entries, drifted, messages.append)
    assert outcome.problems == []
    parity = outcome.results["parity"]
    assert parity["max_relative_loss_difference"]["zero_hop"] == pytest.approx(5e-5, rel=0.1)
    assert list(parity["losses_in_float64"]) == ["zero_hop"]
    assert 0 <= parity["losses_in_float64"]["zero_hop"] < 1e-9
    assert any("zero_hop, all epochs in float64" in line for line in messages)
    # What float64 does not explain stands.
    monkeypatch.setitem(LOSS_LIMITS, "float64", -1.0)
    assert ["limit -1 in float64" in problem for problem in outcome.problems] == [True]


def test_a_loss_that_leaves_the_others_is_found(
    unconcluded: tuple[Plan, list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    plan, entries, summaries = unconcluded
    parity = check_parity(plan)
    summaries[2]["epochs"][1]["iteration_losses"][0] *= 1.001
    outcome = conclude(plan, parity, entries, summaries, print)
    assert len(outcome.problems) == 1
    assert "zero_hop: losses differ by 0.001" in outcome.problems[0]
