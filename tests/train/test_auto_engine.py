"""``engine = "auto"``: exact engines are tried, the fastest trains, and its choice is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hopper.train.auto_engine import ENGINE_FILE


@pytest.fixture(scope="module")
def chosen(runs: Any) -> Any:
    return runs.finished("auto", engine="auto", epochs=2, checkpoint_every=4)


def choice_of(run: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.run_dir / ENGINE_FILE).read_text())
    return found


def test_the_fastest_of_those_tried_trains(chosen: Any) -> None:
    choice = choice_of(chosen)
    tries = {each["engine"]: each for each in choice["tries"]}
    assert tuple(tries) == ("cooperative", "zero_hop", "hop", "model_centric")
    assert choice["engine"] == min(tries, key=lambda name: tries[name]["seconds"])
    assert {epoch["engine"] for epoch in chosen.epochs()} == {choice["engine"]}
    assert f"engine auto: {choice['engine']}: an iteration each: " in chosen.stdout
    # Features are 10 floats wide, hidden rows 8: little is saved, but model_centric moves most.
    assert tries["model_centric"]["bytes"] > tries["zero_hop"]["bytes"] > 0


def test_trying_leaves_no_trace_in_training(chosen: Any, runs: Any) -> None:
    engine = choice_of(chosen)["engine"]
    named = runs.finished("named", engine=engine, epochs=2)
    assert named.losses() == chosen.losses()
    assert [epoch["bytes"] for epoch in named.epochs()] == [
        epoch["bytes"] for epoch in chosen.epochs()
    ]
    assert [epoch["rows"] for epoch in named.epochs()] == [
        epoch["rows"] for epoch in chosen.epochs()
    ]


def test_a_resumed_run_keeps_the_engine(chosen: Any, runs: Any) -> None:
    before = choice_of(chosen)
    run = runs.finished("auto", engine="auto", epochs=3, checkpoint_every=4, resume=True)
    assert choice_of(run) == before
    assert {epoch["engine"] for epoch in run.epochs()} == {before["engine"]}
    assert "engine auto" not in run.stdout


def test_a_replayed_run_takes_the_other_run_s_engine(runs: Any) -> None:
    first = runs.finished("centric", engine="model_centric", epochs=1)
    again = runs.finished("again", engine="auto", epochs=1, replay=str(first.run_dir))
    assert choice_of(again) == {"engine": "model_centric", "reason": "replayed", "tries": []}
    assert again.losses() == first.losses()


def test_resuming_without_a_choice_says_what_to_do(runs: Any) -> None:
    run = runs.train("unsettled", engine="auto", resume=True)
    assert run.finish() == 1
    assert "expected the engine that was chosen in engine.json" in run.stderr
    assert "name it as train.engine" in run.stderr
