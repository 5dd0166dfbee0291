"""The rounds of ``engine = "auto"`` with given times: which engine leaves when, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hopper.cluster import Cluster
from hopper.errors import RequestError
from hopper.train import auto_engine
from hopper.train.auto_engine import LEAST_ROUNDS, MOST_ROUNDS, MOST_SECONDS, Choice

Times = dict[str, list[float] | str]


class Engine:
    """A stand-in for an engine. Its times repeat; its warm-up is not timed."""

    def __init__(self, name: str, times: Iterator[float]) -> None:
        self.name, self.times, self.is_warm, self.is_closed = name, times, False, False

    def close(self) -> None:
        self.is_closed = True


class Bench:
    """Stands in for all that the rounds call. An engine with a text for times refuses with it."""

    def __init__(self, times: Times, tables: tuple[str, ...] = ()) -> None:
        self.cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
        self.turns: list[tuple[str, int]] = []
        self.engines: list[Engine] = []
        self.lines: list[str] = []
        self.tables = tables
        self._times = {
            name: seconds if isinstance(seconds, str) else cycle(seconds)
            for name, seconds in times.items()
        }

    def request(self, name: str) -> Any:
        reads = SimpleNamespace(tables=self.tables)
        return SimpleNamespace(config=name, reads=reads, under=self.request)

    def make_engine(self, request: Any) -> Any:
        times = self._times[request.config]
        if isinstance(times, str):
            raise RequestError(times)
        self.engines.append(Engine(request.config, times))
        return self.engines[-1]

    def measure(self, engine: Engine, _cluster: Cluster, batch: int) -> Any:
        if not engine.is_warm:
            engine.is_warm = True
            return SimpleNamespace(seconds=99.0, sent={"feature": 99})
        self.turns.append((engine.name, batch))
        return SimpleNamespace(seconds=next(engine.times), sent={"feature": 6, "gradient": 4})

    def choose(self, monkeypatch: pytest.MonkeyPatch) -> Choice:
        kind = SimpleNamespace(check=lambda _request: None)
        monkeypatch.setattr(auto_engine, "find_engine", lambda _config: SimpleNamespace(kind=kind))
        monkeypatch.setattr(auto_engine, "with_engine", lambda _config, name: name)
        monkeypatch.setattr(auto_engine, "measure_iteration", self.measure)
        candidates: Any = [SimpleNamespace(name=name) for name in self._times]
        batch_of: Any = lambda number: number  # noqa: E731
        return auto_engine._choose(
            *(self.request("auto"), candidates, self.cluster, batch_of, self.make_engine),
            self.lines.append,
        )


def test_a_slower_engine_leaves_as_soon_as_the_rounds_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench({"slow": [3.0, 3.1, 3.2], "even": [1.0, 1.3], "best": [1.1, 1.0]})
    choice = bench.choose(monkeypatch)
    assert choice.engine == "best"
    assert bench.lines == ["engine auto: slow is slower than best"]
    slow, even, best = choice.tries
    assert len(slow.iteration_seconds) == LEAST_ROUNDS
    assert len(even.iteration_seconds) == len(best.iteration_seconds) == MOST_ROUNDS
    assert slow.times_as_long is not None
    assert slow.times_as_long.low is not None
    assert slow.times_as_long.low > 1
    assert even.times_as_long is not None
    assert not even.times_as_long.is_shown
    assert best.times_as_long is None
    assert (best.seconds, best.bytes) == (pytest.approx(1.05), 10)
    assert choice.reason.startswith("12 rounds of an iteration each: best 1.05 s, 1e-05 MB; even")
    assert choice.reason.endswith("No difference is shown between best and even")
    assert all(engine.is_closed for engine in bench.engines)


def test_a_trial_ends_once_the_best_is_shown_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench({"a": [1.0, 1.1, 0.9], "b": [2.0, 2.2, 1.9]})
    choice = bench.choose(monkeypatch)
    assert choice.engine == "a"
    assert len(bench.turns) == 2 * LEAST_ROUNDS
    assert "No difference" not in choice.reason


def test_engines_train_the_same_batch_in_a_round_and_take_turns_to_be_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench({"a": [1.0, 1.1, 0.9], "b": [2.0, 2.2, 1.9]})
    bench.choose(monkeypatch)
    assert bench.turns == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 3), ("b", 3)]


def test_an_engine_that_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Bench({"a": [1.0], "b": "not with this model"}).choose(monkeypatch)
    assert [attempt.engine for attempt in choice.tries] == ["a"]
    assert choice.reason == "1 round of an iteration each: a 1 s, 1e-05 MB"
    with pytest.raises(RequestError, match="not with that one either"):
        Bench({"a": "not with this", "b": "not with that one either"}).choose(monkeypatch)


def test_no_round_begins_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench({"a": [1.0, 1.0], "b": [1.5, 1.0]})
    moments = iter([0.0, 1.0, MOST_SECONDS + 1])
    bench.cluster.clock = lambda: next(moments)
    choice = bench.choose(monkeypatch)
    assert choice.engine == "a"
    assert choice.reason.startswith(
        "1 round of an iteration each: a 1 s, 1e-05 MB; "
        "b 1.5 s, 1e-05 MB, 1.50 times as long (one round, no interval)"
    )


def test_engines_with_learnable_rows_are_closed_after_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench({"a": [1.0, 1.1, 0.9], "b": [2.0, 2.2, 1.9]}, tables=("paper",))
    assert bench.choose(monkeypatch).engine == "a"
    assert len(bench.engines) == 2 * LEAST_ROUNDS
    assert all(engine.is_closed for engine in bench.engines)
