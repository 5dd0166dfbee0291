"""Figures of cells, tables, pictures and pages, from results made by hand."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.paper import charts
from benchmarks.paper.accuracy import half_interval
from benchmarks.paper.cell_figures import cell_figures
from benchmarks.paper.cells import Cell
from benchmarks.paper.cluster_batches import run_cluster_curves
from benchmarks.paper.convergence import equality_table, reach, run_curves, scores_table
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.gpu import Sample, utilisation
from benchmarks.paper.held import read_held_rows
from benchmarks.paper.merging import workload
from benchmarks.paper.options import Options
from benchmarks.paper.page import PAGE_FILE, PICTURE_FILE, write_page
from benchmarks.paper.penalties import learnable_penalty_table, penalty_table, run_profiles
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.paper.result import RESULT_FILE, assemble_result, summarise, write_result
from hopper.bench.layer_work import MEASURES
from hopper.config import Config
from hopper.partition import PartitionedGraph
from hopper.traffic import CAUSES

from ..conftest import make_results, make_run

OPTIONS = Options(Path("out"), Path("work"))
RANKS = 4
ROW_BYTES = 64 * 4
WEBP = b"RIFF"
WORKLOAD = {"first": [[1, 1, 1]] * RANKS, "busiest": 3.0}
EXTRA = {
    "workload": {f"{s} {k}": WORKLOAD for s in ("fewest", "random") for k in (1, 2)},
    "utilisation": {},
    "partial_bound": 4000,
    "groups": 2,
    "roots": {"model_centric": 80.0, "locality": 76.0},
}

WORK = {measure: [3.0, 1.0, 1.0, 1.0] for measure in MEASURES}
AUTO = {
    "engine": "zero_hop",
    "reason": "an iteration each",
    "tries": [{"engine": "zero_hop", "seconds": 0.25, "bytes": 1000}],
}
LEARNABLE = {"read": 0.01, "send": 0.02, "update": 0.03}


@pytest.fixture(autouse=True)
def _coarse_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw coarse pictures: nobody looks at them, and fine ones take longer than the tests."""
    monkeypatch.setattr(charts, "DOTS_PER_INCH", 20)


def make_record(experiment: Experiment, cell: Cell, problems: tuple[str, ...] = ()) -> Any:
    """Return the content of a cell's file, in which side i takes 1 / (1 + i) seconds an epoch."""
    runs = []
    for round_index in range(3):
        for place, side in enumerate(experiment.sides):
            contender = side.contender(1)
            seconds = [9.0, *[(1 + 0.01 * round_index) / (1 + place)] * (experiment.epochs - 1)]
            run = make_run(contender.engine, round_index, seconds)
            run |= {"label": contender.label, "exact": contender.engine != "locality"}
            run["peak_rss_mib"] = [100.0, 120.0, 90.0, 100.0]
            for epoch in run["epochs"]:
                epoch["decisions"] = {"merge": 1} if contender.engine == "hop" else {}
            runs.append(run)
    labels = {side.role: side.contender(1).label for side in experiment.sides}
    results = make_results(runs, dict.fromkeys(labels.values(), 1e-7))
    kinds = {"node": {"count": 2400, "feature_dim": 64, "feature_dtype": "float32"}}
    results["dataset"]["node_types"] = kinds
    use = {role: {"samples": 4, "peak": 0.2, "busy": 0.5} for role in labels}
    return {
        "date": "2026-01-02",
        "commit": "0" * 40,
        "cell": asdict(cell),
        "sides": labels,
        "scout": None,
        "auto": AUTO if experiment.lets_auto_choose else None,
        "problems": list(problems),
        "parameter_bytes": 1000,
        "held": {
            role: {"largest_pass_rows": 512, "gathers": 48, "learnable": LEARNABLE}
            for role in labels
        },
        "work": {role: [WORK] for role in labels},
        "extra": EXTRA | {"utilisation": use},
        "results": results,
    }


def make_converged_cell(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Return a cell with three epochs of two seeds. Side i takes 1 + i seconds an epoch, and its
    last training score is i hundredths lower than that of the first side."""
    sides = {}
    for place, side in enumerate(experiment.sides):
        points = [
            {"epochs": count, "seconds": count * (1.0 + place), "train": score, "val": 0.9 * score}
            for count, score in enumerate((0.3, 0.6, 0.7 - place / 100), 1)
        ]
        run = {"test": 0.5, "points": points}
        label = side.contender(1).label
        kind = {"label": label, "exact": not label.startswith("locality")}
        sides[side.role] = kind | {"runs": [run] * 2, "in_float64": run}
    entry = {"nodes": 5, "edges": 6, "emulation": None, "sides": sides}
    entry |= {"clusters": {"count": 9, "per_batch": 2}}
    return asdict(cell) | entry | {"problems": [], "ratios": []}


def make_profiled_cell(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Return a cell with three rounds. A learnable row has three times the bytes of a feature row
    and costs twice as much a byte."""
    kinds = {"learned": False, "width": 128, "row_bytes": 512, "rows": [10.0, 20.0]}
    types = {
        "author": kinds | {"learned": True, "row_bytes": 1536, "penalties": [4e-9, 6e-9]},
        "paper": kinds | {"penalties": [2e-9, 3e-9]},
        "narrow": kinds | {"width": 7, "row_bytes": 28, "rows": [3.0], "penalties": [9e-9]},
    }
    sides = {
        side.role: {"label": side.label, "exact": True, "runs": [types] * 3}
        for side in experiment.sides
    }
    entry = {"nodes": 5, "edges": 6, "emulation": None, "sides": sides}
    return asdict(cell) | entry | {"problems": [], "ratios": []}


_FORWARD = {"selection": 3, "aggregation": 20, "products": 4}
_BATCHES = {"relations": 7, "batches": 2, "roots": 64, "sampled_edges": 900, "threads": 2}
_RATES = {"arithmetic": 1e9, "memory": 2e9}
MEASURED: dict[str, dict[str, Any]] = {
    "hifuse-fig7": _BATCHES
    | {
        "sides": {
            role: {"seconds": 3.0, "prepare": 1.0, "compute": 2.0}
            for role in ("relation by relation", "PyG", "merged")
        },
        "ratios": [
            {"role": "merged", "baseline": role, "mean": 2.0, "low": 1.5, "high": 2.5, "rounds": 3}
            for role in ("relation by relation", "PyG")
        ],
    },
    # As without PyG.
    "hifuse-fig8": _BATCHES
    | {
        "operators": {
            role: {"whole": 90, "forward": _FORWARD} for role in ("relation by relation", "merged")
        }
    },
    "hifuse-table3": _BATCHES
    | {"machine_rates": _RATES, "rates": {"merged": _RATES | {"calls": 4, "seconds": 0.1}}},
    "distdglv2-table2": {
        "partitioner": 2.0,
        "load_save": 3.0,
        "load": 4.0,
        "train": 5.0,
        "best_epoch": 6,
        "epochs": 9,
        "val": 0.7,
        "phases": {"assign nodes (METIS, dgl)": 2.0},
    },
}
"""by experiment that measures cells by itself, what it measured in each"""


def make_finished_cells(
    experiment: Experiment, problems: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return the cells of result.json, as if all had been run."""
    cells = experiment.grid.cells(OPTIONS)
    if experiment.name in MEASURED:
        facts = {"nodes": 5, "edges": 6, "problems": [], "ratios": []}
        return [asdict(cell) | facts | MEASURED[experiment.name] for cell in cells]
    if experiment.name == "hopgnn-table1":
        measured = {"micrograph": 0.8, "subgraph": 0.4, "roots": 99, "published": None}
        localities = [
            measured | {"sampling": sampling, "depth": depth, "published_subgraph": 0.5}
            for sampling in ("node-wise", "layer-wise")
            for depth in ("2L", "10L")
        ]
        return [
            {**asdict(cell), "nodes": 5, "edges": 6, "localities": localities}
            | {"problems": [], "ratios": [], "batch_size": None}
            for cell in cells
        ]
    if experiment.name == "hopgnn-table3":
        scores = {"mean": 0.61234, "spread": 0.01, "drop": 0.0, "drop_half_interval": 0.02}
        sides = {side.role: scores | {"largest_difference": 0.03} for side in experiment.sides}
        runs = [{"seed": s, "accuracy": dict.fromkeys(sides, 0.6 + s / 100)} for s in range(3)]
        return [
            {**asdict(cell), "nodes": 5, "edges": 6, "sides": sides, "runs": runs}
            | {"problems": [], "ratios": []}
            for cell in cells
        ]
    if experiment.carry_out is run_profiles:
        return [make_profiled_cell(experiment, cell) for cell in cells]
    if experiment.carry_out in (run_curves, run_cluster_curves):
        return [make_converged_cell(experiment, cell) for cell in cells]
    return [
        cell_figures(make_record(experiment, cell, problems), experiment.comparisons)
        for cell in cells
    ]


def assemble(experiment: Experiment, out: Path, problems: tuple[str, ...] = ()) -> dict[str, Any]:
    cells = make_finished_cells(experiment, problems)
    return write_result(out, assemble_result(experiment, OPTIONS, cells, len(cells)))


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda e: e.name)
def test_every_experiment_has_its_page(experiment: Experiment, tmp_path: Path) -> None:
    result = assemble(experiment, tmp_path)
    if experiment.draw is not None:
        experiment.draw(result, tmp_path / PICTURE_FILE)
        assert (tmp_path / PICTURE_FILE).read_bytes().startswith(WEBP)
    page = write_page(tmp_path, experiment, result).read_text()
    why = "Why they differ" if experiment.published else "What to mind"
    for heading in ("What Hopper measured", why):
        assert f"## {heading}" in page
    assert ("## What the paper reports" in page) == bool(experiment.published)
    assert ("paper" in page) == bool(experiment.published)
    for published in experiment.published:
        assert f"| {published.place} | {published.what} | {published.value} |" in page
    for make in experiment.tables:
        table = make(result)
        assert f"### {table.title}" in page
        assert table.rows
        assert all(len(row) == len(table.headings) for row in table.rows)
    assert ("![" in page) == (experiment.draw is not None)
    assert "None" not in page
    assert "unfinished" not in page


def test_numbers_come_from_the_json(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["hopgnn-fig13"]
    assemble(experiment, tmp_path)
    result = json.loads((tmp_path / RESULT_FILE).read_text())
    assert "7.77 (7.11 to 8.88)" not in write_page(tmp_path, experiment, result).read_text()
    result["cells"][0]["ratios"][0] |= {"mean": 7.77, "low": 7.11, "high": 8.88}
    result["cells"][0]["sides"]["+MG"]["peak_rss_mib"] = 4321.0
    result["machine"]["cpu"] = "Another processor"
    page = write_page(tmp_path, experiment, result).read_text()
    for text in ("7.77 (7.11 to 8.88)", "4,321", "Another processor"):
        assert text in page


def test_where_parity_fails_no_speed_up_is_told(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["hopgnn-fig13"]
    result = assemble(experiment, tmp_path, ("hop: gradients differ by 0.1",))
    for cell in result["cells"]:
        assert all(ratio["mean"] is None for ratio in cell["ratios"])
    for comparison in result["summary"]:
        assert (comparison["cells"], comparison["least"], comparison["above_one"]) == (0, None, 0)
        assert comparison["refused"] == len(result["cells"])
    assert experiment.draw is not None
    experiment.draw(result, tmp_path / PICTURE_FILE)
    page = write_page(tmp_path, experiment, result).read_text()
    assert "**Not equal**" in page
    assert "hop: gradients differ by 0.1" in page
    assert page.count("refused") == len(result["cells"]) * len(experiment.comparisons)


def test_an_unfinished_grid_says_so(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["hopgnn-fig13"]
    cells = make_finished_cells(experiment)[:2]
    result = write_result(tmp_path, assemble_result(experiment, OPTIONS, cells, 6))
    assert "unfinished: 2 of 6 cells" in write_page(tmp_path, experiment, result).read_text()


def test_figures_of_a_cell() -> None:
    experiment = EXPERIMENTS["hopgnn-fig13"]
    record = make_record(experiment, experiment.grid.cells(OPTIONS)[0])
    figures = cell_figures(record, experiment.comparisons)
    base, mg = figures["sides"]["model-centric"], figures["sides"]["+MG"]
    ratios = {(ratio["role"], ratio["baseline"]): ratio for ratio in figures["ratios"]}
    # The second side takes half of the first's time in every round; the first epoch is left out.
    assert ratios["+MG", "model-centric"]["mean"] == pytest.approx(2.0)
    assert ratios["+MG", "model-centric"]["low"] == pytest.approx(2.0)
    assert base["seconds"] == pytest.approx(1.01)
    # 900 local and 300 remote rows an epoch of 4 iterations over 4 ranks.
    assert base["rows"]["remote_unique"] == pytest.approx(250 / 16)
    assert base["input_share"] == pytest.approx(1200 / 16 / 2400)
    assert base["miss_rate"] == pytest.approx(0.25)
    assert base["bytes"]["feature"] == pytest.approx(4_000_000 / 16)
    assert base["gathers"] == pytest.approx(48 / (4 * 4 * experiment.epochs))
    bounds = base["bounds"]
    assert bounds["feature_over_bound"] == pytest.approx(4_000_000 / (250 * ROW_BYTES))
    # 2 (N - 1) / N of the parameters on each of N ranks, every iteration.
    assert bounds["gradient_over_bound"] == pytest.approx(200_000 / (4 * 6 * 1000))
    assert bounds["nic_over_counted"] is None
    assert base["peak_rss_mib"] == 120.0
    assert base["pass_mib"] == pytest.approx(512 * ROW_BYTES / 2**20)
    # Without pre-gathering what a time step fetched is let go before the next.
    fetched_mib = 250 / 16 * ROW_BYTES / 2**20
    assert base["fetched_mib"] == pytest.approx(fetched_mib)
    for run in record["results"]["runs"]:
        if run["engine"] == "hop":
            run["options"] = {"merge": "off", "pregather": "pregather" not in run["label"]}
    again = cell_figures(record, ())["sides"]
    assert again["+MG"]["fetched_mib"] == pytest.approx(fetched_mib / RANKS)
    assert again["+PG"]["fetched_mib"] == pytest.approx(fetched_mib)
    assert mg["label"] == "hop:merge=off:pregather=false"


def test_bytes_of_interfaces_are_compared_with_the_bound() -> None:
    experiment = EXPERIMENTS["hopgnn-fig13"]
    record = make_record(experiment, experiment.grid.cells(OPTIONS)[0])
    for run in record["results"]["runs"]:
        counted = sum(epoch["bytes"][cause] for epoch in run["epochs"] for cause in CAUSES)
        run["nic_bytes"] = [counted // 2 + 3000, counted // 2 + 3000]
    bounds = cell_figures(record, ())["sides"]["model-centric"]["bounds"]
    epochs = 3 * experiment.epochs
    assert bounds["nic_feature_over_bound"] == pytest.approx(
        (4_000_000 * epochs + 3 * 6000) / (250 * ROW_BYTES * epochs)
    )
    assert bounds["nic_over_counted"] == pytest.approx(1 + 18_000 / (4_200_000 * epochs))


def test_the_summary_is_a_geometric_mean() -> None:
    def cell(mean: float | None, low: float | None) -> dict[str, Any]:
        ratio = {"role": "a", "baseline": "b", "mean": mean, "low": low, "high": None}
        return {"ratios": [ratio]}

    (summary,) = summarise([cell(1.0, 0.9), cell(4.0, 3.0), cell(None, None)])
    assert (summary["least"], summary["most"], summary["mean"]) == (1.0, 4.0, pytest.approx(2.0))
    assert (summary["cells"], summary["refused"], summary["above_one"]) == (2, 1, 1)


def test_the_rows_that_a_pass_holds_are_read_from_spans(tmp_path: Path) -> None:
    nothing = {"largest_pass_rows": None, "gathers": None, "learnable": None}
    assert read_held_rows(tmp_path) == nothing
    (tmp_path / "spans").mkdir()

    def span(iteration: int, **fields: Any) -> str:
        return json.dumps({"epoch": 0, "iteration": iteration, "span": "gather"} | fields) + "\n"

    # One iteration with pre-gathering (asked once), one of two passes without (asked twice).
    lines = span(0, operation="pregather") + span(0, rows=5) + span(0, rows=7)
    lines += span(1, rows=9) + span(1, rows=2)
    # A rank's own rows are asked of nobody.
    lines += span(2, rows=11, operation="own rows")
    lines += json.dumps({"span": "gather", "rows": 99}) + "\n"
    (tmp_path / "spans" / "rank-0.jsonl").write_text(lines)
    (tmp_path / "spans" / "rank-1.jsonl").write_text(span(0, rows=3))
    learnable = {"read": 0.0, "send": 0.0, "update": 0.0}
    assert read_held_rows(tmp_path) == {
        "largest_pass_rows": 11,
        "gathers": 4,
        "learnable": learnable,
    }


def test_seconds_of_learnable_rows_are_read_from_spans(tmp_path: Path) -> None:
    spans = tmp_path / "spans"
    spans.mkdir()
    for rank in range(2):
        lines = [
            {"span": span, "operation": "learnable rows", "epoch": epoch, "iteration": iteration,
             "seconds": seconds * (1 + rank)}
            for epoch in range(2) for iteration in range(2)
            for span, seconds in (("gather", 1.0), ("sync", 2.0), ("compute", 4.0))
        ]  # fmt: skip
        lines.append({"span": "compute", "epoch": 1, "iteration": 0, "seconds": 9.0})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (spans / f"rank-{rank}.jsonl").write_text(text)
    # Two ranks, two iterations after the first epoch: the mean of 1 and 2, and so on.
    assert read_held_rows(tmp_path)["learnable"] == {"read": 1.5, "send": 3.0, "update": 6.0}


def test_random_merging_puts_several_models_on_one_rank(
    tiny_config: Config, tiny_graph: PartitionedGraph
) -> None:
    ranks = 4
    values = tiny_config.model_copy(
        update={
            "cluster": tiny_config.cluster.model_copy(update={"ranks_per_server": 2}),
            "train": tiny_config.train.model_copy(update={"batch_size": 2}),
        }
    )
    result = workload(values, tiny_graph)
    assert set(result["workload"]) == {f"{s} {k}" for s in ("fewest", "random") for k in (1, 2)}
    for name, load in result["workload"].items():
        models = np.array(load["first"])
        dissolve = int(name.split()[1])
        assert models.shape == (ranks, ranks - dissolve)
        assert (models.sum(axis=0) == ranks).all()
        if name.startswith("fewest"):
            assert (models == 1).all()
            assert load["busiest"] == ranks - dissolve
        else:
            assert load["busiest"] > ranks - dissolve


def test_gpu_utilisation_counts_samples_between_two_moments() -> None:
    samples = [
        Sample(moment, busy) for moment, busy in ((0, 90), (1, 0), (2, 10), (3, 30), (9, 80))
    ]
    assert utilisation(samples, 1, 3) == {"samples": 3, "peak": 0.3, "busy": pytest.approx(2 / 3)}
    assert utilisation(samples, 4, 5) == {"samples": 0, "peak": None, "busy": None}


def test_half_an_interval_is_students_t_of_the_scores() -> None:
    assert half_interval([0.5]) is None
    # Student's t for 2 degrees of freedom is 4.3027.
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)


def test_tables_tell_how_far_sides_converge(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["heta-fig16"]
    result = assemble(experiment, tmp_path)
    (raf, vanilla, _), table = scores_table(result).rows[:3], equality_table(result)
    # 95 % of 0.63 is reached by the last epoch of the first two sides.
    assert raf[2:] == [
        *("70.00 ± 0.00", "63.00 ± 0.00", "63.00 ± 0.00", "50.00 ± 0.00"),
        *("1.00 ± 0.00", "3.00 ± 0.00", "3.00 ± 0.00", "2 of 2"),
    ]
    assert vanilla[-2:] == ["6.00 ± 0.00", "2 of 2"]
    # Local batches are approximate, so nothing is said of their being equal.
    cell = result["cells"][0]["name"]
    assert [row for row in table.rows if row[0] == cell] == [
        [cell, "vanilla, METIS", "all seeds", "4 of 6", "1.00", "4 of 6", "0.90"],
        [cell, "vanilla, METIS", "one, in float64", "2 of 3", "1.00", "2 of 3", "0.90"],
    ]
    run = result["cells"][0]["sides"]["vanilla, METIS"]["runs"][0]
    assert reach(run, 0.5) == run["points"][1]
    assert reach(run, 0.9) is None
    page = write_page(tmp_path, experiment, result).read_text()
    assert "5 seeds of 12 whole epochs" in page


def test_tables_tell_penalties_by_type(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["heta-fig7"]
    result = assemble(experiment, tmp_path)
    cell = result["cells"][0]["name"]
    remote = [row[2:] for row in penalty_table(result).rows if row[0] == cell][:3]
    assert remote == [
        ["narrow", "features", "7", "28", "3", "0.009", "0.009", "0.009", "0.252"],
        ["author", "learnable", "128", "1,536", "15", "0.005", "0.004", "0.006", "7.68"],
        ["paper", "features", "128", "512", "15", "0.0025", "0.002", "0.003", "1.28"],
    ]
    # Byte for byte, and row for row: 5 and 2.5 nanoseconds a byte.
    first = learnable_penalty_table(result).rows[0]
    assert first[2:] == ["author", "paper", "128", "2", "6"]
    page = write_page(tmp_path, experiment, result).read_text()
    assert "rounds: 3, in each of which every side is profiled over 2 epochs" in page


def test_loopback_and_hosts_are_told_apart(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["hopgnn-fig13"]
    cells = make_finished_cells(experiment)
    emulation = {
        "hosts": 4, "link_rate": "1gbit", "host_cpus": 0.5, "host_memory": None,
        "effective": True, "why_not": None,
    }  # fmt: skip
    for cell in cells:
        cell["emulation"] = emulation
    result = write_result(tmp_path, assemble_result(experiment, OPTIONS, cells, len(cells)))
    page = write_page(tmp_path, experiment, result).read_text()
    assert "4 emulated hosts, links of 1gbit in each direction, 0.5 CPUs each" in page
    assert "loopback" not in page
    for cell in result["cells"]:
        cell["emulation"] |= {"effective": False, "why_not": "no rights"}
    page = write_page(tmp_path, experiment, result).read_text()
    assert "on loopback, since hosts could not be emulated: no rights" in page
    assert "where moving bytes costs next to nothing" in page
    assert (tmp_path / PAGE_FILE).is_file()
