"""The work of each layer and rank is read from spans."""

import json
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.layer_work import MEASURES, read_layer_work, unevenness
from hopper.errors import RequestError

from .report_folders import write_lines


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
