"""``engine = "auto"``: exact engines are tried, the fastest trains, and its choice is kept."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

from hopper.paired_ratio import Ratio
from hopper.train.auto_engine import ENGINE_FILE, LEAST_ROUNDS, MOST_ROUNDS, Try, sort_by_speed

# So small that models outweigh rows.
BATCH = 2


@pytest.fixture(scope="module")
def chosen(runs: Any) -> Any:
    return runs.finished("auto", engine="auto", batch_size=BATCH, epochs=2, checkpoint_every=4)


def choice_of(run: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.run_dir / ENGINE_FILE).read_text())
    return found


def test_the_fastest_of_those_tried_trains(chosen: Any) -> None:
    choice = choice_of(chosen)
    tries = {each["engine"]: each for each in choice["tries"]}
    assert tuple(tries) == ("cooperative", "zero_hop", "hop", "model_centric")
    best = tries[choice["engine"]]
    rounds = len(best["iteration_seconds"])
    assert 1 <= rounds <= MOST_ROUNDS
    assert best["times_as_long"] is None
    for name, each in tries.items():
        assert each["seconds"] == median(each["iteration_seconds"])
        if name == choice["engine"]:
            continue
        ratio, own = each["times_as_long"], len(each["iteration_seconds"])
        assert ratio["rounds"] == own <= rounds
        # Who is left at the end was no faster; who left before had been slower for some rounds.
        assert ratio["mean"] >= 1 if own == rounds else own >= LEAST_ROUNDS
        assert f"{name} {each['seconds']:.3g} s" in chosen.stdout
        assert f"{ratio['mean']:.2f} times as long (" in chosen.stdout
    assert {epoch["engine"] for epoch in chosen.epochs()} == {choice["engine"]}
    assert f"engine auto: {choice['engine']}: {rounds} round" in chosen.stdout
    assert f" of an iteration each: {choice['engine']} {best['seconds']:.3g} s" in chosen.stdout
    # Means are over different numbers of rounds, within which model_centric and zero_hop change
    # places: features are 10 floats wide, hidden rows 8. Models outweigh both, and what
    # cooperative exchanges is the least in every round.
    sent = {name: each["bytes"] for name, each in tries.items()}
    assert sent["hop"] > max(sent["model_centric"], sent["zero_hop"])
    assert min(sent["model_centric"], sent["zero_hop"]) > sent["cooperative"] > 0


def test_engines_are_ranked_by_the_geometric_mean_of_their_rounds() -> None:
    assert sort_by_speed({"a": [1.0, 16.0], "b": [3.0, 3.0], "c": [2.0, 5.0]}) == ["b", "c", "a"]


def test_a_try_tells_its_interval() -> None:
    rounds = (0.1, 0.2, 0.4)
    told = str(Try("hop", 0.2, 1_500_000, rounds, Ratio(1.5, 1.2, 1.875, 3)))
    assert told == "hop 0.2 s, 1.5 MB, 1.50 times as long (1.20 to 1.88)"
    assert str(Try("hop", 0.2, 0, (0.2,), Ratio(1.5, None, None, 1))).endswith("no interval)")
    assert str(Try("hop", 0.2, 0, rounds)) == "hop 0.2 s, 0 MB"


def test_trying_leaves_no_trace_in_training(chosen: Any, runs: Any) -> None:
    engine = choice_of(chosen)["engine"]
    named = runs.finished("named", engine=engine, batch_size=BATCH, epochs=2)
    assert named.losses() == chosen.losses()
    assert [epoch["bytes"] for epoch in named.epochs()] == [
        epoch["bytes"] for epoch in chosen.epochs()
    ]
    assert [epoch["rows"] for epoch in named.epochs()] == [
        epoch["rows"] for epoch in chosen.epochs()
    ]


def test_a_resumed_run_keeps_the_engine(chosen: Any, runs: Any) -> None:
    before = choice_of(chosen)
    options = {"batch_size": BATCH, "epochs": 3, "checkpoint_every": 4}
    run = runs.finished("auto", engine="auto", resume=True, **options)
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
