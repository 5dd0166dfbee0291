"""Spans of all ranks are put on one axis of time, whatever their clocks, and tell the work of each
layer; bad lines are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.layer_work import MEASURES, read_layer_work, unevenness
from hopper.bench.report.charts import timeline as draw
from hopper.bench.report.spans import Timeline, read_timeline
from hopper.errors import RequestError
from hopper.timing.run_log import RunLog

from .report_folders import Line, opening_line, ring_spans, span, write_lines, write_spans


def read(folder: Path, *ranks: list[Any]) -> Timeline:
    timeline = read_timeline(write_spans(folder, *ranks))
    assert timeline is not None
    return timeline


def starts(timeline: Timeline, stage: str) -> list[tuple[int, float]]:
    return [(s.rank, pytest.approx(s.start)) for s in timeline.spans if s.stage == stage]


def test_ranks_of_one_clock_are_aligned_by_it(tmp_path):
    # Rank 1 opened its log 2 s later and computed at the same moment: its barrier ends 0.5 s later
    # than rank 0's, which must not be corrected away.
    timeline = read(
        tmp_path,
        [opening_line(100.0), span("compute", 5.0, 1.0), span("wait", 6.0, 0.5, operation="sync")],
        [opening_line(102.0), span("compute", 3.0, 1.0), span("wait", 4.0, 1.0, operation="sync")],
    )
    assert timeline.alignment == "clock"
    assert starts(timeline, "compute") == [(0, 0.0), (1, 0.0)]
    assert starts(timeline, "wait") == [(0, 1.0), (1, 1.0)]
    assert timeline.seconds == pytest.approx(2.0)
    assert timeline.waiting(0) == pytest.approx(0.25)
    assert timeline.waiting(1) == pytest.approx(0.5)


@pytest.mark.parametrize("clocks", [("one", "other"), ("", "")])
def test_ranks_of_several_clocks_are_aligned_by_barriers(tmp_path, clocks):
    # One iteration's barrier is 5 s off, the median is not.
    ranks: list[list[Line]] = []
    for rank, zero in enumerate((0.0, 70.0)):
        lines = [opening_line(7.0 * rank, clocks[rank])]
        for iteration in range(5):
            late = 5.0 if (rank, iteration) == (1, 4) else 0.0
            at, work = zero + 10.0 * iteration, 1.0 + rank
            lines.append(span("compute", at, work, iteration))
            lines.append(span("wait", at + work, 3.0 - work + late, iteration, operation="sync"))
        ranks.append(lines)
    timeline = read(tmp_path, *ranks)
    assert timeline.alignment == "barriers"
    assert timeline.iterations == {1: 0.0, 2: 10.0, 3: 20.0}
    assert starts(timeline, "compute")[::3] == [(0, 0.0), (1, 0.0)]
    assert starts(timeline, "wait")[::3] == [(0, 1.0), (1, 2.0)]


def test_logs_without_a_clock_and_barriers_are_said_to_be_unaligned(tmp_path):
    ranks = [span("compute", 5.0, 1.0)], [span("compute", 3.0, 1.0)]
    assert read(tmp_path, *ranks).alignment == "none"


def test_three_iterations_of_the_last_epoch_that_all_ranks_have(tmp_path):
    def lines(epochs: int) -> list[Line]:
        return [
            span("compute", 100.0 * epoch + iteration, 0.5, iteration, epoch=epoch)
            for epoch in range(epochs) for iteration in range(60)
        ]  # fmt: skip

    timeline = read(tmp_path, [opening_line(0.0), *lines(3)], [opening_line(0.0), *lines(2)])
    assert (timeline.epoch, timeline.ranks) == (1, 2)
    # The first one fills the pipeline.
    assert timeline.iterations == {1: 0.0, 2: 1.0, 3: 2.0}
    assert timeline.seconds == 2.5
    assert {span.iteration for span in timeline.spans} == {1, 2, 3}


def test_what_a_resumed_run_wrote_anew_replaces_the_old(tmp_path):
    old = [opening_line(10.0), span("compute", 1.0, 1.0, 0), span("compute", 3.0, 1.0, 1)]
    new = [opening_line(500.0), span("compute", 1.0, 9.0, 1)]
    timeline = read(tmp_path, old + new)
    assert [span.seconds for span in timeline.spans] == [9.0]
    assert timeline.iterations == {1: 0.0}


def test_work_ahead_is_cut_to_what_is_shown(tmp_path):
    ahead = [span("gather", at, 2.0, 9, thread="read") for at in (7.0, 9.0, 11.5, 12.0)]
    timeline = read(tmp_path, [opening_line(3.0), span("compute", 10.0, 2.0), *ahead])
    shown = [(s.start, s.seconds) for s in timeline.spans if s.thread]
    assert shown == [(0.0, 1.0), (1.5, 0.5)]
    assert timeline.seconds == 2.0


def test_a_drawn_timeline_names_ranks_models_and_iterations(tmp_path):
    lines = [[opening_line(0.0), *ring_spans(rank, 0)] for rank in range(2)]
    drawn = draw("Timeline", read(tmp_path, *lines))
    for text in ("iteration 0", "rank 1", "waits 19%", "m0", "m1", "100 ms"):
        assert f">{text}</text>" in drawn, text
    assert drawn.count(">m0<") == drawn.count(">m1<") == 2
    for colour in ("sky", "blue", "green", "red", "pink", "pale"):
        assert f"var(--{colour})" in drawn
    # Each of the two models moves once.
    assert len([p for p in drawn.split("<path ") if "stroke: var(--soft)" in p]) == 2 + 1


def test_what_a_run_log_writes_can_be_read(tmp_path):
    for rank in range(2):
        log = RunLog(tmp_path / f"rank-{rank}.jsonl")
        log.event("started")
        log.set_context(epoch=0, iteration=0)
        with log.note_fields(model=rank, step=0), log.stage("compute", roots=5):
            pass
        log.close()
    timeline = read_timeline(tmp_path)
    assert timeline is not None
    spans = [(s.rank, s.model, s.stage) for s in timeline.spans]
    assert spans == [(0, 0, "compute"), (1, 1, "compute")]
    assert timeline.alignment == "clock"
    assert 0 == timeline.spans[0].start < timeline.spans[1].start < 10


def test_a_half_written_last_line_is_dropped(tmp_path):
    path = write_spans(tmp_path, [opening_line(0.0), span("compute", 0.0, 1.0)]) / "rank-0.jsonl"
    path.write_text(path.read_text() + '{"epoch": 0, "iter')
    timeline = read_timeline(tmp_path)
    assert timeline is not None
    assert len(timeline.spans) == 1


def test_nothing_recorded_is_no_timeline(tmp_path):
    assert read_timeline(tmp_path) is None
    assert read_timeline(write_spans(tmp_path, [opening_line(0.0)])) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (span("compute", "soon", 1.0), "line 2: start: Input should be a valid number; given soon"),
        (span("compute", 0.0, float("nan")), "line 2: seconds: Input should be a finite number"),
        (span("compute", 0.0, 1.0, True), "line 2: iteration: Input should be a valid integer"),
        (span("compute", 0.0, 1.0, model="<b>"), "line 2: model: Input should be a valid integer"),
        (span("dance", 0.0, 1.0), "line 2: span: Input should be 'sample', 'gather', 'compute'"),
        (opening_line(0.0) | {"monotonic": None}, "line 2: monotonic: .* valid number; given None"),
        ([1, 2], r"line 2: expected an object, given \[1, 2\]"),
    ],
)
def test_foreign_lines_are_named(tmp_path, line, message):
    write_spans(tmp_path, [opening_line(0.0), line, span("compute", 0.0, 1.0)])
    with pytest.raises(RequestError, match=message) as caught:
        read_timeline(tmp_path)
    assert str(tmp_path / "rank-0.jsonl") in str(caught.value)


def test_a_line_that_is_no_json_and_a_missing_rank_are_named(tmp_path):
    (tmp_path / "rank-0.jsonl").write_text("{}\n{oops\n{}\n")
    with pytest.raises(RequestError, match="line 2: expected JSON"):
        read_timeline(tmp_path)
    write_lines(tmp_path / "rank-2.jsonl", [opening_line(0.0)])
    with pytest.raises(RequestError, match=r"every rank from 0 on, found those of \[0, 2\]"):
        read_timeline(tmp_path)


# The work of each layer and rank


def layer(edges: int, own: int = 10) -> dict[str, Any]:
    return dict.fromkeys(MEASURES, 1) | {"edges": edges, "own": own, "rows": "projected"}


def write(folder: Path, rank: int, *iterations: list[dict[str, Any]]) -> None:
    lines: list[dict[str, Any]] = [{"event": "opened", "start": 0}]
    for number, layers in enumerate(iterations):
        moment = {"epoch": 0, "iteration": number}
        lines.append({**moment, "span": "sample", "start": 0, "seconds": 1, "layers": layers})
        lines.append({**moment, "span": "gather", "start": 1, "seconds": 1, "rows": 5})
    write_lines(folder / f"rank-{rank}.jsonl", lines)


def test_work_is_averaged_over_iterations_in_order_of_rank(tmp_path):
    # Ten and more ranks: names sort otherwise.
    for rank in range(11):
        write(tmp_path, rank, [layer(100 + rank), layer(5)], [layer(200 + rank), layer(7)])
    first, second = read_layer_work(tmp_path)
    assert first.edges == [150 + rank for rank in range(11)]
    assert second.edges == [6] * 11
    assert first.own == [10] * 11


def test_spans_without_layers_give_no_work(tmp_path):
    (tmp_path / "rank-0.jsonl").write_text('{"span": "sample", "start": 0, "seconds": 1}\n')
    assert read_layer_work(tmp_path) == []
    assert read_layer_work(tmp_path / "nothing") == []


def test_repeated_iterations_count_once_and_torn_lines_not_at_all(tmp_path):
    write(tmp_path, 0, [layer(100)], [layer(200)])
    file = tmp_path / "rank-0.jsonl"
    again = {"epoch": 0, "iteration": 1, "span": "sample", "layers": [layer(300)]}
    file.write_text(file.read_text() + json.dumps(again) + '\n{"span": "sample", "layers": [{')
    (work,) = read_layer_work(tmp_path)
    assert work.edges == [200]


def test_invalid_layers_are_refused_and_the_line_is_named(tmp_path):
    for text in ('{"layers": 5}', '{"layers": [{"own": 1}]}', '{"layers": ["own"]}'):
        (tmp_path / "rank-0.jsonl").write_text(text + "\n")
        with pytest.raises(RequestError, match=r"rank-0\.jsonl: line 1: layers: expected own"):
            read_layer_work(tmp_path)


def test_ranks_that_disagree_are_refused(tmp_path):
    write(tmp_path, 0, [layer(100)])
    write(tmp_path, 1, [layer(100), layer(100)])
    with pytest.raises(RequestError, match="expected as many of every rank"):
        read_layer_work(tmp_path)


def test_unevenness_is_the_largest_over_the_mean():
    assert unevenness([3.0, 1.0]) == pytest.approx(1.5)
    assert unevenness([0.0, 0.0]) is None
