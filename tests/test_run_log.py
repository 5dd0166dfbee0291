"""Spans and events of a run: which lines are written, and which seconds are summed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hopper.run_log import STAGES, RunLog


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a log except those of its openings."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in records if line.get("event") != "opened"]


def read_openings(path: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in records if line.get("event") == "opened"]


def test_the_stages_are_those_of_the_results_schema() -> None:
    assert STAGES == ("sample", "gather", "compute", "migrate", "sync", "wait")


def test_a_span_has_name_start_and_seconds(tmp_path: Path) -> None:
    path = tmp_path / "spans" / "rank-0.jsonl"
    log = RunLog(path)
    with log.stage("sample", roots=3):
        time.sleep(0.02)
    with log.stage("gather"):
        pass
    log.close()
    first, second = read_lines(path)
    assert first.keys() == {"span", "start", "seconds", "cpu", "roots"}
    # Sleeping takes time and no processor.
    assert 0 <= first["cpu"] < first["seconds"]
    assert (first["span"], first["roots"], second["span"]) == ("sample", 3, "gather")
    assert 0.02 <= first["seconds"] < 2
    assert 0 <= first["start"] < first["start"] + first["seconds"] <= second["start"]


@pytest.mark.parametrize("torn_line", ['{"span": "gat', "x" * 200_000, ""])
def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path, torn_line: str) -> None:
    path = tmp_path / "log.jsonl"
    complete_line = '{"event": "before"}\n'
    path.write_text(complete_line + torn_line)
    log = RunLog(path, append=True)
    log.event("after")
    log.close()
    assert [line["event"] for line in read_lines(path)] == ["before", "after"]
    assert len(read_openings(path)) == 1
    path.write_text(torn_line)
    RunLog(path, append=True).close()
    assert read_lines(path) == []


def test_fields_can_be_added_within_a_stage(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    with log.stage("gather", rows=2) as fields:
        fields["bytes"] = 640
    log.close()
    [line] = read_lines(tmp_path / "log.jsonl")
    assert (line["rows"], line["bytes"]) == (2, 640)


def test_context_is_carried_until_it_changes(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.event("started")
    log.set_context(epoch=1, iteration=4)
    with log.stage("sync"):
        pass
    log.event("merged", steps=2)
    log.set_context(epoch=2)
    log.event("ended")
    log.close()
    started, sync, merged, ended = read_lines(tmp_path / "log.jsonl")
    assert "epoch" not in started
    assert (sync["epoch"], sync["iteration"]) == (1, 4)
    assert (merged["event"], merged["steps"], merged["iteration"]) == ("merged", 2, 4)
    assert ended["epoch"] == 2
    assert "iteration" not in ended


def test_stage_seconds_are_summed_and_taken() -> None:
    log = RunLog(None)
    for _ in range(3):
        with log.stage("compute"):
            time.sleep(0.01)
    with log.stage("wait"):
        pass
    seconds = log.take_stage_seconds()
    assert tuple(seconds) == STAGES
    assert 0.03 <= seconds["compute"] < 3
    assert seconds["sample"] == 0
    assert not any(log.take_stage_seconds().values())


def test_a_stage_that_fails_is_logged_and_its_error_kept(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    with pytest.raises(RuntimeError, match="lost"), log.stage("migrate", model=2):
        raise RuntimeError("lost")
    log.close()
    [line] = read_lines(tmp_path / "log.jsonl")
    assert (line["span"], line["model"]) == ("migrate", 2)


def test_flush_shows_what_was_logged(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.event("started")
    log.flush()
    assert len(read_lines(tmp_path / "log.jsonl")) == 1
    log.close()


def test_a_new_run_starts_anew_and_a_resumed_one_appends(tmp_path: Path) -> None:
    for name, append in (("before", False), ("started", False), ("resumed", True)):
        log = RunLog(tmp_path / "log.jsonl", append=append)
        log.event(name)
        log.close()
    assert [line["event"] for line in read_lines(tmp_path / "log.jsonl")] == ["started", "resumed"]


def test_after_closing_lines_are_dropped_and_seconds_kept(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.close()
    with log.stage("sample"):
        time.sleep(0.001)
    log.flush()
    log.close()
    assert read_lines(tmp_path / "log.jsonl") == []
    assert log.take_stage_seconds()["sample"] > 0


def test_the_first_line_records_the_opening_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    before = time.perf_counter(), time.time()
    log = RunLog(path)
    after = time.perf_counter(), time.time()
    log.set_context(epoch=0)
    with log.stage("sync"):
        pass
    log.close()
    first, span = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["event"], first["start"]) == ("opened", 0)
    assert before[0] <= first["monotonic"] <= after[0]
    assert before[1] <= first["unix"] <= after[1]
    assert span["span"] == "sync"


def test_logs_of_one_machine_name_the_same_clock(tmp_path: Path) -> None:
    for name in ("rank-0", "rank-1"):
        RunLog(tmp_path / name).close()
        time.sleep(0.01)
    [first], [second] = read_openings(tmp_path / "rank-0"), read_openings(tmp_path / "rank-1")
    assert first["clock"] == second["clock"] != ""
    assert second["monotonic"] - first["monotonic"] >= 0.01


def test_without_a_boot_identifier_the_clock_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopper.run_log._BOOT_ID", tmp_path / "missing")
    RunLog(tmp_path / "log.jsonl").close()
    assert read_openings(tmp_path / "log.jsonl")[0]["clock"] == ""


def test_noted_fields_are_written_within_their_block_only(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.set_context(epoch=1)
    with log.note_fields(model=2, step=0):
        log.event("inside")
    log.event("outside")
    log.close()
    inside, outside = read_lines(tmp_path / "log.jsonl")
    assert (inside["epoch"], inside["model"], inside["step"]) == (1, 2, 0)
    assert outside.keys() == {"event", "start", "epoch"}


def test_a_resumed_log_records_its_opening_again(tmp_path: Path) -> None:
    for append in (False, True):
        RunLog(tmp_path / "log.jsonl", append=append).close()
    first, second = read_openings(tmp_path / "log.jsonl")
    assert second["monotonic"] > first["monotonic"]
