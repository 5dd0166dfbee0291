"""Spans of all ranks are put on one axis of time, whatever their clocks; bad lines are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopper.bench.report.spans import Timeline, read_timelines
from hopper.errors import RequestError
from hopper.run_log import RunLog

from .report_folders import Line, lone_spans, opening_line, ring_spans, span, write_lines


def write(folder: Path, *ranks: list[Line]) -> Path:
    for rank, lines in enumerate(ranks):
        write_lines(folder / f"rank-{rank}.jsonl", lines)
    return folder


def starts(timeline: Timeline, stage: str) -> list[tuple[int, float]]:
    return [(s.rank, pytest.approx(s.start)) for s in timeline.spans if s.stage == stage]


def test_ranks_of_one_clock_are_aligned_by_it(tmp_path: Path) -> None:
    # Rank 1 opened its log 2 s later and computed at the same moment: its barrier ends 0.5 s later
    # than rank 0's, which must not be corrected away.
    write(
        tmp_path,
        [opening_line(100.0), span("compute", 5.0, 1.0), span("wait", 6.0, 0.5, operation="sync")],
        [opening_line(102.0), span("compute", 3.0, 1.0), span("wait", 4.0, 1.0, operation="sync")],
    )
    [timeline] = read_timelines(tmp_path)
    assert timeline.alignment == "clock"
    assert starts(timeline, "compute") == [(0, 0.0), (1, 0.0)]
    assert starts(timeline, "wait") == [(0, 1.0), (1, 1.0)]
    assert timeline.seconds == pytest.approx(2.0)


@pytest.mark.parametrize("clocks", [("one", "other"), ("", "")])
def test_ranks_of_several_clocks_are_aligned_by_barriers(
    tmp_path: Path, clocks: tuple[str, str]
) -> None:
    # The wall clocks are a minute apart; one iteration's barrier is 5 s off, the median is not.
    ranks: list[list[Line]] = []
    for rank, zero in enumerate((0.0, 70.0)):
        lines = [opening_line(7.0 * rank, 1e9 + 60 * rank, clocks[rank])]
        for iteration in range(5):
            late = 5.0 if (rank, iteration) == (1, 4) else 0.0
            at = zero + 10.0 * iteration
            lines.append(span("compute", at, 1.0 + rank, iteration))
            lines.append(
                span("wait", at + 1.0 + rank, 2.0 - rank + late, iteration, operation="sync")
            )
        ranks.append(lines)
    timeline = read_timelines(write(tmp_path, *ranks))[0]
    assert timeline.alignment == "barriers"
    assert starts(timeline, "compute") == [(0, 0.0), (1, 0.0)]
    assert starts(timeline, "wait") == [(0, 1.0), (1, 2.0)]


def test_logs_without_a_clock_and_barriers_are_said_to_be_unaligned(tmp_path: Path) -> None:
    write(tmp_path, [span("compute", 5.0, 1.0)], [span("compute", 3.0, 1.0)])
    [timeline] = read_timelines(tmp_path)
    assert timeline.alignment == "none"


def test_the_first_iterations_of_the_last_epoch_that_all_ranks_have(tmp_path: Path) -> None:
    def lines(epochs: int) -> list[Line]:
        return [
            span("compute", 100.0 * epoch + iteration, 0.5, iteration, epoch=epoch)
            for epoch in range(epochs) for iteration in range(6)
        ]  # fmt: skip

    write(tmp_path, [opening_line(0.0), *lines(3)], [opening_line(0.0), *lines(2)])
    timelines = read_timelines(tmp_path)
    assert [(timeline.epoch, timeline.iteration) for timeline in timelines] == [
        (1, 0),
        (1, 1),
        (1, 2),
    ]


def test_what_a_resumed_run_wrote_anew_replaces_the_old(tmp_path: Path) -> None:
    old = [opening_line(10.0), span("compute", 1.0, 1.0, 0), span("compute", 3.0, 1.0, 1)]
    new = [opening_line(500.0), span("compute", 1.0, 9.0, 1)]
    write(tmp_path, old + new)
    first, second = read_timelines(tmp_path)
    assert [s.seconds for s in first.spans] == [1.0]
    assert [s.seconds for s in second.spans] == [9.0]


def test_models_are_followed_from_rank_to_rank_also_through_empty_groups(tmp_path: Path) -> None:
    lines = [[opening_line(0.0), *ring_spans(rank, 0)] for rank in range(2)]
    # Model 0 finds no root on rank 1: it is sampled there, not computed.
    lines[1] = [
        line for line in lines[1] if not (line.get("span") == "compute" and line.get("model") == 0)
    ]
    [timeline] = read_timelines(write(tmp_path, *lines))
    assert [(p.model, p.step, p.source, p.target) for p in timeline.passages] == [
        (0, 1, 0, 1),
        (1, 1, 1, 0),
    ]
    for passage in timeline.passages:
        assert (passage.leaves, passage.arrives) == (pytest.approx(0.12), pytest.approx(0.14))


def test_engines_without_migration_have_no_passage(tmp_path: Path) -> None:
    [timeline] = read_timelines(
        write(tmp_path, *([opening_line(0.0), *lone_spans(r, 0)] for r in range(2)))
    )
    assert timeline.passages == ()
    assert {s.model for s in timeline.spans} == {None}


def test_what_a_run_log_writes_can_be_read(tmp_path: Path) -> None:
    for rank in range(2):
        log = RunLog(tmp_path / f"rank-{rank}.jsonl")
        log.event("started")
        log.within(epoch=0, iteration=0)
        with log.note_fields(model=rank, step=0), log.stage("compute", roots=5):
            pass
        log.close()
    [timeline] = read_timelines(tmp_path)
    assert [(s.rank, s.model, s.step, s.details) for s in timeline.spans] == [
        (0, 0, 0, {"roots": 5}),
        (1, 1, 0, {"roots": 5}),
    ]
    assert timeline.alignment == "clock"
    assert timeline.spans[0].start == 0
    assert 0 < timeline.spans[1].start < 10


def test_a_half_written_last_line_is_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, [opening_line(0.0), span("compute", 0.0, 1.0)]) / "rank-0.jsonl"
    path.write_text(path.read_text() + '{"epoch": 0, "iter')
    [timeline] = read_timelines(tmp_path)
    assert len(timeline.spans) == 1


def test_nothing_recorded_is_no_timeline(tmp_path: Path) -> None:
    assert read_timelines(tmp_path) == []
    write(tmp_path, [opening_line(0.0)])
    assert read_timelines(tmp_path) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (span("compute", "soon", 1.0), "line 2: start: expected a number, given 'soon'"),
        (span("compute", 0.0, float("nan")), "line 2: seconds: expected a number"),
        (span("compute", 0.0, 1.0, True), "line 2: iteration: expected an integer, given True"),
        (span("compute", 0.0, 1.0, model="<b>"), "line 2: model: expected an integer"),
        (span("dance", 0.0, 1.0), "line 2: span: expected sample, gather, compute"),
        (opening_line(0.0) | {"unix": None}, "line 2: unix: expected a number, given None"),
        ([1, 2], r"line 2: expected an object, given \[1, 2\]"),
    ],
)
def test_foreign_lines_are_named(tmp_path: Path, line: Any, message: str) -> None:
    write(tmp_path, [opening_line(0.0), line, span("compute", 0.0, 1.0)])
    with pytest.raises(RequestError, match=message) as caught:
        read_timelines(tmp_path)
    assert str(tmp_path / "rank-0.jsonl") in str(caught.value)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").write_text("{}\n{oops\n{}\n")
    with pytest.raises(RequestError, match="line 2: expected JSON"):
        read_timelines(tmp_path)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    write(tmp_path, [opening_line(0.0)])
    write_lines(tmp_path / "rank-2.jsonl", [opening_line(0.0)])
    with pytest.raises(RequestError, match=r"every rank from 0 on, found those of \[0, 2\]"):
        read_timelines(tmp_path)
