"""Ranks whose connections are cut connect again, and train the same model as without cuts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hopper import divide_graph
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph
from tests.rank_pool import RankPool
from tests.train.conftest import Runs
from tests.train.cutting import cutting_callback

BEST = "best.safetensors"
# Epoch and iteration: within an epoch, and a first one.
MOMENTS = ([0, 3], [2, 0])
ON_DISK = (
    *("--model.name=rgcn", "--learnable.storage=mmap"),
    *("--cache.policy=benefit", "--cache.size=30%", "--cache.decline=false"),
)


def assert_same_training(run: Any, uncut: Any) -> None:
    assert run.finish() == 0, run.stderr
    assert run.losses() == uncut.losses()
    assert [epoch["val"] for epoch in run.epochs()] == [epoch["val"] for epoch in uncut.epochs()]
    assert (run.run_dir / BEST).read_bytes() == (uncut.run_dir / BEST).read_bytes()
    run.assert_nothing_remains()


def test_no_iteration_is_lost(runs: Any, reference: Any) -> None:
    run = runs.train("cut", checkpoint_every=7, **cutting_callback(1, MOMENTS))
    assert_same_training(run, reference)
    messages = [line for line in run.stderr.splitlines() if "meet again" in line]
    assert [line[-19:] for line in messages] == [f"reconnection {count} of 3" for count in (1, 2)]
    # The fourth iteration is finished by all ranks or by none.
    assert re.search("after iteration [34]:", messages[0])


@pytest.mark.parametrize(
    ("engine", "words", "moment"),
    [("zero_hop", ON_DISK, [1, 4]), ("raf", ("--model.name=rgcn",), [0, 3])],
)
def test_learnable_rows_are_restored_to_the_same_iteration(
    papers: GraphDirectory,
    tmp_path: Path,
    rank_pool: RankPool,
    engine: str,
    words: tuple[str, ...],
    moment: list[int],
) -> None:
    if engine == "raf":
        divide_graph(papers, tmp_path / "parts", 2, "meta", layers=2)
    else:
        partition_graph(papers, tmp_path / "parts", 2, "random")
    runs = Runs(tmp_path / "parts", tmp_path, rank_pool)
    try:
        options: dict[str, Any] = {"engine": engine, "epochs": 3}
        run = runs.train(
            "cut", *words, **options, **cutting_callback(0, [moment]), checkpoint_every=3
        )
        uncut = runs.train_to_end("never cut", *words, **options)
        assert_same_training(run, uncut)
        assert "reconnection 1 of 3" in run.stderr
    finally:
        runs.kill()


def test_more_cuts_than_reconnects_end_the_run(runs: Any) -> None:
    run = runs.train("cut too often", "--cluster.reconnects=1", **cutting_callback(0, MOMENTS))
    assert run.finish() == 1
    assert "reconnection 1 of 1" in run.stderr
    assert re.search("^error: .*lost another rank: ", run.stderr, re.MULTILINE)
    run.assert_nothing_remains()
