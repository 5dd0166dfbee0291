"""``hopper bench`` from its command line to its files, on a tiny graph with two servers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.ab import check_parity, conclude, run_ab
from hopper.bench.ab_plan import CONFIG_FILE, RUNS_FOLDER, Plan, make_plan
from hopper.bench.contender import parse_contenders
from hopper.bench.parity import LIMITS
from hopper.bench.picture import PICTURE_FILE
from hopper.bench.results import RESULTS_FILE, run_entry
from hopper.bench.statistics import figures
from hopper.bench.table import feature_reduction
from hopper.cli import main
from hopper.cluster.traffic import CAUSES
from hopper.config import load_config
from hopper.errors import ClusterError
from hopper.partition import PartitionedGraph
from hopper.timing.run_log import STAGES
from tests.server_processes import REPOSITORY, own_path

from .conftest import print_to_text

ENGINES = ("model_centric", "hop", "zero_hop")
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def finished(tiny_config, tmp_path_factory) -> tuple[Path, int]:
    """The folder and the exit code of one A/B of all engines."""
    folder = tmp_path_factory.mktemp("ab")
    config = folder / "config.json"
    config.write_text(tiny_config.model_dump_json())
    words = ["bench", str(config), "--engines", ",".join(ENGINES), "--rounds", "1"]
    # The override changes what is trained, so it must reach every run.
    return folder / "out", main([*words, "--out", str(folder / "out"), "--model.hidden", "6"])


@pytest.fixture(scope="module")
def results(finished) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((finished[0] / RESULTS_FILE).read_text())
    return content


def test_the_command_succeeds_and_writes_all_files(finished):
    out, code = finished
    assert code == 0
    assert (out / PICTURE_FILE).read_bytes().startswith(PNG)
    names = {f"{engine}-round-0" for engine in ENGINES}
    assert {path.name for path in (out / RUNS_FOLDER).iterdir()} == names
    assert not list(out.glob("*.unfinished"))


def test_results_have_the_schema(results):
    assert set(results) == {
        "schema",
        "commit",
        "versions",
        "machine",
        "config",
        "dataset",
        "partition",
        "runs",
        "parity",
    }
    assert results["schema"] == 1
    assert {"python", "torch", "numpy", "dgl", "grpcio", "numba"} <= set(results["versions"])
    assert {"cpu", "cores", "memory_gib", "kernel"} <= set(results["machine"])
    assert results["config"]["model"]["hidden"] == 6
    assert set(results["partition"]) == {"method", "servers", "edge_cut", "locality"}
    assert set(results["partition"]["locality"]) == {"micrograph", "subgraph"}
    assert [run["engine"] for run in results["runs"]] == list(ENGINES)
    for run in results["runs"]:
        assert set(run) == {
            "label",
            "engine",
            "exact",
            "options",
            "partition",
            "model",
            "round",
            "epochs",
            "nic_bytes",
            "peak_rss_mib",
            "scores",
        }
        assert run["nic_bytes"] is None
        assert len(run["peak_rss_mib"]) == 2
        assert set(run["scores"]) == {"val", "test"}
        assert 0 <= run["scores"]["test"]["accuracy"] <= 1
        assert len(run["epochs"]) == 2
        for epoch in run["epochs"]:
            assert set(epoch) == {
                "seconds",
                "loss",
                "iterations",
                "bytes",
                "rows",
                "lookups",
                "stage_seconds",
                "cpu_seconds",
                "sent_bytes",
            }
            assert epoch["seconds"] > 0
            assert epoch["iterations"] == 3
            assert set(epoch["bytes"]) == set(CAUSES)
            assert set(epoch["rows"]) == {"local", "remote", "remote_unique", "cached"}
            assert set(epoch["stage_seconds"]) == set(STAGES)


def test_engines_compute_the_same_gradient(results):
    for measure in ("max_relative_gradient_difference", "max_relative_loss_difference"):
        differences = results["parity"][measure]
        assert set(differences) == set(ENGINES)
        assert all(0 <= value < 1e-5 for value in differences.values())
    # Some rounding there must be: exactly 0 would mean that the same numbers were compared.
    assert results["parity"]["max_relative_gradient_difference"]["hop"] > 0


def test_hop_and_zero_hop_fetch_fewer_features(results):
    measured = {engine: figures(results["runs"], engine) for engine in ENGINES}
    base = measured["model_centric"]
    assert base.bytes["feature"] > 0
    assert measured["hop"].bytes["gradient"] > base.bytes["gradient"]
    for engine in ("hop", "zero_hop"):
        factor = feature_reduction(base, measured[engine])
        assert factor is not None
        assert factor > 1.2
        assert measured[engine].rows["remote_unique"] < base.rows["remote_unique"]


@pytest.fixture
def unconcluded(finished) -> tuple[Plan, list[dict[str, Any]], list[dict[str, Any]]]:
    """The finished A/B's plan, entries and summaries, as they were before its conclusion."""
    out, _ = finished
    config = load_config(out / CONFIG_FILE)
    graph = PartitionedGraph.open(config.data.partitioned)
    contenders = parse_contenders(ENGINES)
    plan = Plan(config, contenders, out, 1, 60.0, graph, iterations=3)
    folders = (plan.run_dir(contender, 0) for contender in contenders)
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    entries = [
        run_entry(config, contender, 0, summary)
        for contender, summary in zip(contenders, summaries, strict=True)
    ]
    return plan, entries, summaries


def test_a_wrong_engine_makes_speed_ups_refused(config_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", own_path())
    monkeypatch.syspath_prepend(REPOSITORY / "tests" / "engines")
    monkeypatch.setenv("COLUMNS", "200")
    wrong = 'faulty_engines:FaultyZeroHop:train.engine_options={fault="an edge is dropped"}'
    words = ["bench", str(config_file), "--engines", f"model_centric,{wrong}"]
    words += ["--rounds", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "No speed-up is told" in text
    assert text.count("refused") == 2
    assert re.search(r"FaultyZeroHop\S* .*: gradients differ by .*, limit 1e-10 in float64", text)
    parity = json.loads((tmp_path / "out" / RESULTS_FILE).read_text())["parity"]
    assert 1e-7 < parity["max_relative_gradient_difference"][wrong] < 0.1
    assert parity["max_relative_gradient_difference"]["model_centric"] < 1e-5
    assert list(parity["in_float64"]) == [wrong]


def test_rounding_is_settled_in_float64_or_named(tiny_config, tmp_path, monkeypatch):
    # Less than any rounding: float32 cannot pass, an engine in float64 can.
    monkeypatch.setitem(LIMITS["gradients"], "float32", 1e-12)
    messages: list[str] = []
    rounding = "cooperative:wire=bfloat16"
    plan = make_plan(tiny_config, ["zero_hop", rounding], tmp_path / "out", rounds=1)
    outcome = run_ab(plan, messages.append, lambda _: None)
    assert outcome.problems == []
    parity = outcome.results["parity"]
    assert 1e-12 < parity["max_relative_gradient_difference"]["zero_hop"] < 1e-5
    assert list(parity["in_float64"]) == list(parity["spread"]) == ["zero_hop"]
    assert 0 < parity["in_float64"]["zero_hop"]["difference"] < 1e-12
    assert parity["in_float64"]["zero_hop"]["roots"] == 50
    assert 1e-9 < parity["spread"]["zero_hop"] < 1e-5
    assert "one process in 8 orders of summation" in messages[-1]
    # One that is meant to round is compared, and not judged.
    assert parity["not_judged"] == [rounding]
    assert 1e-4 < parity["max_relative_gradient_difference"][rounding] < 0.1
    # The run that settles it is not among those that are timed.
    assert [run["exact"] for run in outcome.results["runs"]] == [True, False]
    text = print_to_text(outcome.results, [], 120)
    assert "64 bit: " in text
    assert "spread: " in text


def test_float64_takes_fewer_roots_where_memory_is_short(unconcluded, monkeypatch):
    plan, entries, summaries = unconcluded
    monkeypatch.setitem(LIMITS["losses"], "float32", -1.0)
    monkeypatch.setattr("hopper.bench.ab.available_memory", lambda: 1)
    limited = replace(plan, contenders=plan.contenders[:1])
    outcome = conclude(limited, check_parity(limited), entries[:1], summaries[:1], print)
    assert outcome.problems == []
    assert outcome.results["parity"]["in_float64"]["model_centric"]["roots"] == 2 * (25 // 4)


def test_losses_that_drift_are_settled_in_float64(unconcluded):
    plan, entries, summaries = unconcluded
    summaries[1]["epochs"][1]["iteration_losses"][0] *= 1.02
    summaries[2]["epochs"][1]["iteration_losses"][0] *= 1.0016
    messages: list[str] = []
    outcome = conclude(plan, check_parity(plan), entries, summaries, messages.append)
    assert outcome.problems == ["hop: losses differ by 0.02, limit 0.01 in float32"]
    parity = outcome.results["parity"]
    assert parity["max_relative_loss_difference"]["zero_hop"] == pytest.approx(1.6e-3, rel=0.1)
    assert list(parity["losses_in_float64"]) == ["hop", "zero_hop"]
    assert 0 <= parity["losses_in_float64"]["zero_hop"] < 1e-9
    assert "refused" in print_to_text(outcome.results, outcome.problems, 120)


def test_an_engine_that_float64_could_not_run_is_held_to_a_thousandth(unconcluded):
    plan, entries, summaries = unconcluded

    def fail(what: str, *_: Any) -> dict[str, Any]:
        raise ClusterError(f"{what}: killed")

    summaries[1]["epochs"][1]["iteration_losses"][0] *= 1.0016
    summaries[2]["epochs"][1]["iteration_losses"][0] *= 1.0001
    messages: list[str] = []
    broken = replace(plan, train=fail, out=plan.out)
    outcome = conclude(broken, check_parity(plan), entries, summaries, messages.append)
    assert outcome.problems == ["hop: losses differ by 0.0016, limit 0.001 in float32"]
    assert "64 bit: not run" in print_to_text(outcome.results, outcome.problems, 120)
    failed = [line for line in messages if "killed" in line]
    assert [line.split(" roots")[0] for line in failed] == ["in float64, 25", "in float64, 6"]
