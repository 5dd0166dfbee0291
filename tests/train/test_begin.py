"""``train.init_from``: a run begins with what another one learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hopper
from hopper.launch.run import prepare
from hopper.train.tensor_file import read_tensors

RGCN = ("--model.name=rgcn", "--learnable.dim=4", "--learnable.storage=mmap")


def test_a_run_begins_with_parameters_and_rows_of_another(typed_runs: Any) -> None:
    """A run whose learning rate is almost 0 ends with the values that it began with."""
    first = typed_runs.train_to_end("first", *RGCN, epochs=2, engine="zero_hop")
    unchanging = ("--train.learning_rate=1e-30", '--learnable.frozen=["author"]')
    init_from = f"--train.init_from={first.run_dir}"
    second = typed_runs.train_to_end(
        "again", *RGCN, *unchanging, init_from, epochs=1, engine="model_centric"
    )
    for name, value in read_tensors(first.run_dir / "best.safetensors").items():
        assert torch.equal(read_tensors(second.run_dir / "best.safetensors")[name], value)
    assert second.summary()["scores"]["val"] == first.summary()["scores"]["val"]
    rows = [hopper.RunResult.open(run.run_dir).load_learnable_rows() for run in (first, second)]
    assert torch.equal(rows[0]["author"], rows[1]["author"])


def test_an_unusable_run_to_begin_with_is_refused(
    reference: Any, runs: Any, tmp_path: Path
) -> None:
    file = runs.config("not begun")
    for words, match in (
        ([f"--train.init_from={tmp_path}"], "train.init_from: .*expected the folder of a finished"),
        (
            [f"--train.init_from={reference.run_dir}", "--model.hidden=5"],
            "init_from: .*expected sh",
        ),
    ):
        with pytest.raises(hopper.RequestError, match=match):
            prepare(hopper.load_config(file, words))
