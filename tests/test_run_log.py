"""Spans and events of a run: which lines are written, and which seconds are summed."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hopper.timing.run_log import STAGES, RunLog


class Clock:
    """Shows the seconds that a test has let pass."""

    now = 5.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "spans" / "rank-0.jsonl"


def read_lines(file: Path, *, openings: bool = False) -> list[dict[str, Any]]:
    """All lines of a log except those of its openings, or only these."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if (line.get("event") == "opened") == openings]


def test_a_span_has_name_start_seconds_and_fields_and_counts_apart_from_its_inner_ones(file):
    assert STAGES == ("sample", "gather", "compute", "migrate", "sync", "wait")
    clock = Clock()
    log = RunLog(file, clock=clock)
    clock.now = 6.0
    with log.stage("gather", rows=2) as fields:
        clock.now = 6.5
        fields["bytes"] = 640
        with log.stage("wait"):
            clock.now = 8.5
    with suppress(ZeroDivisionError), log.stage("gather", model=2):
        clock.now = 8.75
        _ = 1 / 0
    expected = {"gather": 0.75, "wait": 2.0}
    sums = log.take_stage_seconds()
    assert tuple(sums) == STAGES
    assert {stage: seconds for stage, seconds in sums.items() if seconds} == expected
    assert not any(log.take_stage_seconds().values())
    assert log.total_seconds() == sums
    log.close()
    wait, gather, failed = read_lines(file)
    assert wait.keys() == {"span", "start", "seconds", "cpu"}
    assert [wait[key] for key in ("span", "start", "seconds")] == ["wait", 1.5, 2.0]
    keys = ("span", "start", "seconds", "rows", "bytes")
    assert [gather[key] for key in keys] == ["gather", 1.0, 2.5, 2, 640]
    assert (failed["span"], failed["model"]) == ("gather", 2)


def test_the_seconds_of_a_span_on_the_processor_leave_out_its_sleep(file):
    log = RunLog(file)
    with log.stage("sample"):
        time.sleep(0.02)
    log.flush()
    [span] = read_lines(file)
    log.close()
    assert 0 <= span["cpu"] < span["seconds"]


def test_context_is_carried_until_it_changes(file):
    log = RunLog(file)
    log.event("started")
    log.set_context(epoch=1, iteration=4)
    with log.stage("sync"):
        pass
    with log.note_fields(model=2, step=0):
        log.event("inside", steps=2)
    log.event("outside")
    log.set_context(epoch=2)
    log.event("ended")
    log.close()
    lines = [
        {key: line[key] for key in line.keys() - {"span", "start", "seconds", "cpu", "event"}}
        for line in read_lines(file)
    ]
    context = {"epoch": 1, "iteration": 4}
    inside = context | {"model": 2, "step": 0, "steps": 2}
    assert lines == [{}, context, inside, context, {"epoch": 2}]


@pytest.mark.parametrize("torn_line", ['{"span": "gat', "x" * 200_000, ""])
def test_a_torn_line_does_not_spoil_the_next(file, torn_line):
    file.parent.mkdir()
    for before, events in ((f'{{"event": "before"}}\n{torn_line}', ["before"]), (torn_line, [])):
        file.write_text(before)
        log = RunLog(file, append=True)
        log.event("after")
        log.close()
        assert [line["event"] for line in read_lines(file)] == [*events, "after"]
        assert len(read_lines(file, openings=True)) == 1


def test_a_new_run_starts_anew_and_a_resumed_one_appends(file):
    for name, append in (("before", False), ("started", False), ("resumed", True)):
        log = RunLog(file, append=append)
        log.event(name)
        log.close()
    assert [line["event"] for line in read_lines(file)] == ["started", "resumed"]
    first, second = read_lines(file, openings=True)
    assert second["monotonic"] > first["monotonic"]


def test_after_closing_lines_are_dropped_and_seconds_kept(file):
    clock = Clock()
    log = RunLog(file, clock=clock)
    log.close()
    with log.stage("sample"):
        clock.now += 1
    log.flush()
    log.close()
    assert read_lines(file) == []
    assert log.take_stage_seconds()["sample"] == 1


def test_the_first_line_records_the_opening_on_the_machine_s_own_clock(tmp_path, monkeypatch):
    before = time.perf_counter(), time.time()
    for name in ("rank-0", "rank-1"):
        log = RunLog(tmp_path / name)
        log.set_context(epoch=0)
        log.close()
    after = time.perf_counter(), time.time()
    monkeypatch.setattr("hopper.timing.run_log._BOOT_ID", tmp_path / "missing")
    RunLog(tmp_path / "rank-2").close()
    first, second, third = (
        json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(3)
    )
    assert (first["event"], first["start"]) == ("opened", 0)
    assert before[0] <= first["monotonic"] < second["monotonic"] <= after[0]
    assert before[1] <= first["unix"] <= second["unix"] <= after[1]
    assert first["clock"] == second["clock"] != third["clock"] == ""
