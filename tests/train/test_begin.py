"""``train.init_from``: a run begins with what another one learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hopper
from hopper.train.launch import prepare
from hopper.train.tensor_file import read_tensors

RGCN = ("--model.name=rgcn", "--learnable.dim=4", "--learnable.storage=mmap")


def test_parameters_and_rows_go_on(typed_runs: Any) -> None:
    """A run that learns nothing more ends with what it began with."""
    first = typed_runs.finished("first", *RGCN, epochs=2, engine="zero_hop")
    still = ("--train.learning_rate=1e-30", '--learnable.frozen=["author"]')
    begun = f"--train.init_from={first.run_dir}"
    again = typed_runs.finished("again", *RGCN, *still, begun, epochs=1, engine="model_centric")
    for name, value in read_tensors(first.run_dir / "best.safetensors").items():
        assert torch.equal(read_tensors(again.run_dir / "best.safetensors")[name], value)
    assert again.summary()["scores"]["val"] == first.summary()["scores"]["val"]
    rows = [hopper.RunResult.open(run.run_dir).load_learnable_rows() for run in (first, again)]
    assert torch.equal(rows[0]["author"], rows[1]["author"])


def test_what_cannot_be_begun_with_is_refused(reference: Any, runs: Any, tmp_path: Path) -> None:
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
