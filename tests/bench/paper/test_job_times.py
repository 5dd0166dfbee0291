"""The time of a training job is divided into its parts at the right moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper.job_times import first_iteration, seconds_to_best
from hopper.errors import RequestError


def write_spans(run_dir: Path, rank: int, *lines: dict[str, Any]) -> None:
    (run_dir / "spans").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "spans" / f"rank-{rank}.jsonl").write_text(text)


def test_the_last_rank_begins_the_first_iteration(tmp_path: Path) -> None:
    opened = {"event": "opened", "start": 0.0, "unix": 100.0}
    # A span is written when it ends: those of threads that work ahead may come out of order.
    later, earlier = ({"span": "s", "iteration": 0, "start": start} for start in (3.0, 2.0))
    write_spans(tmp_path, 0, opened, {"span": "wait", "start": 1.0}, later, earlier)
    write_spans(tmp_path, 1, opened | {"unix": 100.5}, {"span": "s", "iteration": 0, "start": 2.5})
    assert first_iteration(tmp_path, 1) == 102.0
    assert first_iteration(tmp_path, 2) == 103.0
    write_spans(tmp_path, 1, opened)
    with pytest.raises(RequestError, match=r"rank-1\.jsonl: no iteration in it"):
        first_iteration(tmp_path, 2)


def test_training_ends_with_the_best_epoch() -> None:
    epochs = [{"epoch": epoch, "seconds": 2.0, "evaluation_seconds": 0.5} for epoch in range(5)]
    assert seconds_to_best(epochs, 1) == 5.0
