"""Table and picture of an A/B show results that were made by hand."""

import json
from pathlib import Path
from typing import Any

from matplotlib.image import imread

import hopper
from hopper.bench.machine import commit, machine, versions
from hopper.bench.picture import draw
from hopper.bench.results import format_result, write_results

from .conftest import make_results, make_run, print_to_text
from .report_folders import SOUND


def results_of(rounds: int, **hop: Any) -> dict[str, Any]:
    runs = []
    for index in range(rounds):
        runs.append(make_run("model_centric", index, [9.0, 4.0], feature_bytes=40_000_000))
        runs.append(make_run("hop", index, [9.0, 2.0], model_bytes=1_500_000, **hop))
    return make_results(runs, SOUND)


def test_table_tells_everything_within_80_columns():
    text = print_to_text(results_of(2), [])
    # Nothing is cut off.
    assert "…" not in text
    for phrase in (
        "2 rounds of 1 measured epoch",
        "faster than",
        "(2.00-2.00)",
        "3.0e-07",
        "10.00 x",
        " 1.50 ",
        "A processor, 2 cores, 8 GiB; tiny: 240 nodes, 1,900 edges; metis over 2 servers",
        "cut 11.0%, R_micro 80.0%, R_sub 50.0%",
    ):
        assert phrase in text
    assert "topology" not in text


def test_sentences_tell_what_the_rounds_show():
    text = print_to_text(results_of(3), [], width=200)
    assert (
        "hop is 2.00x (in every round) faster than model_centric; "
        "hop sends 7.05x (in every round) fewer bytes than model_centric; "
        "same gradient, within 3.0e-07"
    ) in text
    runs = []
    for index, seconds in enumerate((2.0, 7.0)):
        runs.append(make_run("model_centric", index, [4.0]))
        runs.append(make_run("hop", index, [seconds]))
    text = print_to_text(make_results(runs, SOUND), [], width=200)
    assert "no difference shown in time between hop and model_centric" in text
    assert "no difference shown in bytes between hop and model_centric" in text


def test_one_round_is_said_to_have_no_interval():
    text = print_to_text(results_of(1), [])
    assert " 2.00 " in text
    assert "(2.00-" not in text
    assert "One round only" in text


def test_problems_refuse_speed_ups_but_hide_nothing():
    results = results_of(2)
    results["parity"]["max_relative_gradient_difference"]["hop"] = "nan"
    text = print_to_text(results, ["hop: gradients differ by nan"])
    assert "2.00 (" not in text
    assert "10.00 x" not in text
    assert text.count("refused") == 2
    assert "nan" in text
    assert "hop: gradients differ by nan" in text
    assert "2.0e-07" in text


def test_without_a_baseline_or_bytes_nothing_is_divided():
    text = print_to_text(make_results([make_run("hop", 0, [1.0])], {"hop": 0.0}), [])
    assert "faster than" not in text
    assert "reduced" not in text
    assert "none sent" in print_to_text(results_of(2, feature_bytes=0), [])


def test_picture_can_be_read_with_and_without_bytes(tmp_path):
    silent = make_run("hop", 0, [1.0], feature_bytes=0)
    silent["epochs"][0]["bytes"]["gradient"] = 0
    for results in (results_of(2), make_results([silent], {"hop": 0.0})):
        draw(results, tmp_path / "ab.png")
        height, width, _ = imread(tmp_path / "ab.png").shape
        assert width > 2 * height > 400
    assert [path.name for path in tmp_path.iterdir()] == ["ab.png"]


def test_nan_and_infinity_are_written_as_texts(tmp_path):
    path = write_results(tmp_path, {"a": [float("nan"), 1.0], "b": {"c": -float("inf")}})
    text = path.read_text().replace(" ", "").replace("\n", "")
    assert text == '{"a":["nan",1.0],"b":{"c":"-inf"}}'


def test_a_result_has_a_line_for_every_entry_that_holds_others():
    result = {
        "date": "2026-11-23",
        "machine": {"cpu": "x" * 90, "cores": 2},
        "cells": [{"name": "a", "seconds": 1 / 3, "bytes": 12345678901}, {"name": "b" * 90}],
        "ratios": {"hop": {"mean": 2 / 3}, "zero_hop": {"mean": "c" * 90}},
    }
    text = format_result(result, digits=4)
    lines = text.splitlines()
    assert '{"name":"a","seconds":0.3333,"bytes":12345678901},' in lines
    assert '"hop": {"mean":0.6667},' in lines
    assert len(lines) == 2 + 1 + 1 + 4 + 4
    assert json.loads(format_result(result)) == result


def test_machine_versions_and_commit_are_recorded():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line for line in lines if "model name" in line]
    assert not models or models[0].endswith(f": {machine()['cpu']}")
    facts = machine()
    assert facts["cores"] >= 1
    assert facts["memory_gib"] > 0
    assert facts["cpu"]
    assert versions()["hopper"] == hopper.__version__
    assert versions()["torch"]
    text = commit()
    assert text == hopper.__version__ or len(text.removesuffix("+")) == 40
