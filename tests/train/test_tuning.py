"""Settings take turns before a run: which leaves when, and why; the choice is kept and repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.errors import RequestError
from hopper.timing.paired_ratio import Ratio
from hopper.train.results import EPOCHS_FILE
from hopper.train.tuning import (
    LEAST_ROUNDS,
    MOST_ROUNDS,
    MOST_SECONDS,
    TUNING_FILE,
    Candidate,
    Try,
    race,
    sort_by_speed,
)

# So small that models outweigh rows.
BATCH = 2
MERGE = "hop.merge"
ADAPTIVE = ("--hop.merge=adaptive", f"--train.batch_size={BATCH}")


class Timed(Candidate):
    """A setting whose turns take the given seconds, over and over; a text refuses it."""

    def __init__(self, race: Race, name: str, seconds: Sequence[float] | str) -> None:
        reads: Any = SimpleNamespace(reads=SimpleNamespace(tables=race.tables))
        super().__init__(reads, race.cluster, pytest.fail)
        self._race, self._name = race, name
        self._next = seconds if isinstance(seconds, str) else cycle(seconds)
        self.closed = 0

    def train(self, round_number: int) -> tuple[float, int]:
        if isinstance(self._next, str):
            raise RequestError(self._next)
        self._race.turns.append((self._name, round_number))
        return next(self._next), 10

    def close(self) -> None:
        self.closed += 1


class Race:
    """A race of settings with given seconds."""

    def __init__(
        self, seconds: Mapping[str, Sequence[float] | str], tables: tuple[str, ...] = ()
    ) -> None:
        self.cluster, self.tables = Cluster(0, 1, 1, torch.device("cpu"), 1.0), tables
        self.turns: list[tuple[str, int]] = []
        self.lines: list[str] = []
        self.settings = {name: Timed(self, name, each) for name, each in seconds.items()}

    def run(self, *, first_stays: bool = False) -> list[Try]:
        tries = race(self.settings, self.cluster, self.lines.append, first_stays=first_stays)
        assert all(setting.closed for setting in self.settings.values())
        return tries


def test_a_slower_setting_leaves_as_soon_as_the_rounds_show_it():
    slow_race = Race({"slow": [3.0, 3.1, 3.2], "even": [1.0, 1.3], "best": [1.1, 1.0]})
    best, even, slow = slow_race.run()
    assert [best.setting, even.setting, slow.setting] == ["best", "even", "slow"]
    assert slow_race.lines == ["tuning: slow is slower than best"]
    assert len(slow.round_seconds) == LEAST_ROUNDS
    assert len(even.round_seconds) == len(best.round_seconds) == MOST_ROUNDS
    assert slow.times_as_long is not None
    assert slow.times_as_long.low is not None
    assert slow.times_as_long.low > 1
    assert even.times_as_long is not None
    assert not even.times_as_long.is_shown
    assert best.times_as_long is None
    assert (best.seconds, best.bytes) == (pytest.approx(1.05), 10)


def test_settings_train_the_same_batches_in_a_round_and_take_turns_to_be_first():
    two = Race({"a": [1.0, 1.1, 0.9], "b": [2.0, 2.2, 1.9]})
    assert two.run()[0].setting == "a"
    # The race ends once the best is shown to be faster.
    assert two.turns == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]


@pytest.mark.parametrize(
    ("first", "second", "chosen", "rounds"),
    [
        ([1.0, 1.1, 0.9], [0.5, 0.6, 0.5], "second", LEAST_ROUNDS),
        # It is faster in the mean, but that is not shown.
        ([1.0, 1.6], [1.1, 1.1], "first", MOST_ROUNDS),
        # It gains less than the margin: no more rounds.
        ([1.0, 1.1, 0.9], [1.0, 1.1, 0.89], "first", LEAST_ROUNDS),
    ],
)
def test_an_option_stays_unless_another_is_shown_to_be_faster(first, second, chosen, rounds):
    tries = Race({"first": first, "second": second}).run(first_stays=True)
    assert tries[0].setting == chosen
    assert len(tries[0].round_seconds) == rounds


def test_a_setting_that_is_refused_is_left_out():
    assert [each.setting for each in Race({"a": [1.0], "b": "not with this"}).run()] == ["a"]
    with pytest.raises(RequestError, match="not with that one either"):
        Race({"a": "not with this", "b": "not with that one either"}).run()


def test_no_round_begins_after_the_limit():
    short = Race({"a": [1.0, 1.0], "b": [1.5, 1.0]})
    moments = iter([0.0, 1.0, MOST_SECONDS + 1])
    short.cluster.clock = lambda: next(moments)
    tries = short.run()
    assert [str(each) for each in tries] == [
        "a 1 s, 1e-05 MB",
        "b 1.5 s, 1e-05 MB, takes 1.50x the time (one round, no interval)",
    ]


def test_trials_with_learnable_rows_are_closed_after_each_turn():
    learned = Race({"a": [1.0, 1.1, 0.9], "b": [2.0, 2.2, 1.9]}, tables=("paper",))
    assert learned.run()[0].setting == "a"
    assert learned.settings["a"].closed > LEAST_ROUNDS


def test_settings_are_ranked_by_the_geometric_mean_of_their_rounds():
    assert sort_by_speed({"a": [1.0, 16.0], "b": [3.0, 3.0], "c": [2.0, 5.0]}) == ["b", "c", "a"]


def test_a_try_is_printed_with_its_interval():
    rounds = (0.1, 0.2, 0.4)
    line = str(Try("hop", 0.2, 1_500_000, rounds, Ratio(1.5, 1.2, 1.875, 3)))
    assert line == "hop 0.2 s, 1.5 MB, takes 1.50x the time (1.20 to 1.88)"
    assert str(Try("hop", 0.2, 0, (0.2,), Ratio(1.5, None, None, 1))).endswith("no interval)")
    assert str(Try("hop", 0.2, 0, rounds)) == "hop 0.2 s, 0 MB"


@pytest.fixture(scope="module")
def auto_run(runs) -> Any:
    return runs.train_to_end("auto", engine="auto", batch_size=BATCH, epochs=2, checkpoint_every=4)


def read_choice(run: Any) -> dict[str, Any]:
    choice: dict[str, Any] = json.loads((run.run_dir / TUNING_FILE).read_text())
    return choice


def chosen_words(choice: Mapping[str, Any]) -> list[str]:
    options = [f"--{name}={value}" for name, value in choice["options"].items()]
    return [f"--train.engine={choice['engine']}", *options]


def test_engines_and_then_the_options_of_the_best_are_tried(auto_run):
    choice = read_choice(auto_run)
    names = [attempt["setting"] for attempt in choice["tries"]]
    assert sorted(names[:4]) == ["cooperative", "hop", "model_centric", "zero_hop"]
    assert names[0] == choice["engine"]
    assert choice["options"]["pipeline.depth"] in (25, 0)
    assert {"pipeline.depth = 25", "pipeline.depth = 0"} <= set(names[4:])
    assert len(choice["reasons"]) == 1 + (len(names) - 4) // 2
    for reason in choice["reasons"]:
        assert f"tuning: {choice['engine']}: {reason}" in auto_run.stdout
    assert {epoch["engine"] for epoch in auto_run.epochs()} == {choice["engine"]}
    # What cooperative exchanges is the least here, and models are the most.
    sent = {attempt["setting"]: attempt["bytes"] for attempt in choice["tries"][:4]}
    assert sent["hop"] > max(sent["model_centric"], sent["zero_hop"])
    assert min(sent["model_centric"], sent["zero_hop"]) > sent["cooperative"] > 0


def test_tuning_does_not_change_training(auto_run, runs):
    words = chosen_words(read_choice(auto_run))
    run = runs.train_to_end("named", *words, batch_size=BATCH, epochs=2)
    assert not (run.run_dir / TUNING_FILE).exists()
    assert run.losses() == auto_run.losses()
    for key in ("bytes", "rows"):
        assert [epoch[key] for epoch in run.epochs()] == [epoch[key] for epoch in auto_run.epochs()]


def test_a_resumed_run_keeps_the_choice(auto_run, runs):
    before = read_choice(auto_run)
    options = {"batch_size": BATCH, "epochs": 3, "checkpoint_every": 4}
    run = runs.train_to_end("auto", engine="auto", resume=True, **options)
    assert read_choice(run) == before
    assert {epoch["engine"] for epoch in run.epochs()} == {before["engine"]}
    assert "tuning" not in run.stdout


def test_merging_is_chosen_before_the_run_and_replayed(runs):
    """Two ranks can dissolve one time step or none. A cache is filled and kept all the same."""
    run = runs.train_to_end("merged", *ADAPTIVE, epochs=2)
    choice = read_choice(run)
    assert choice["engine"] == "hop"
    assert choice["options"] == {MERGE: choice["options"][MERGE]}
    assert choice["options"][MERGE] in (0, 1)
    assert {attempt["setting"] for attempt in choice["tries"]} == {"hop.merge = 0", "hop.merge = 1"}
    other = {**choice, "options": {MERGE: 1 - choice["options"][MERGE]}}
    folder = run.run_dir.parent / "other"
    folder.mkdir()
    (folder / TUNING_FILE).write_text(json.dumps(other))
    for source, is_same in ((run.run_dir, True), (folder, False)):
        name = f"replayed-{is_same}"
        replayed = runs.train_to_end(name, "--replay", str(source), *ADAPTIVE, epochs=2)
        assert (replayed.losses() == run.losses()) == is_same
        assert read_choice(replayed)["reasons"] == ["replayed"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--hop.merge=2"], "hop.merge: expected at most 1, one less than the 2 ranks"),
        (["--train.replay=."], "train.replay: this configuration leaves nothing to be chosen"),
        (["--train.replay=.", "--hop.merge=adaptive"], "expected what was chosen in tuning.json"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run(runs, words, text):
    refused = runs.try_to_train("refused", *words)
    assert refused.code == 1
    assert text in refused.stderr
    assert not (refused.run_dir / EPOCHS_FILE).exists()
