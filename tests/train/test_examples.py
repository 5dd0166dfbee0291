"""The examples run and print what their texts say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hopper
from hopper.train.tensor_file import read_tensors

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_heterogeneous_example_learns(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "heterogeneous.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "server 0 aggregates paper/cites/paper" in run.stdout
    match = re.search(r"test accuracy (0\.\d+); features of two papers: \(2, 128\)", run.stdout)
    assert match is not None, run.stdout
    # A guess is right once in 349 times.
    assert float(match[1]) > 0.3
    result = hopper.RunResult.open(tmp_path / "run")
    assert "GatedAggregation" in str(result.load_model())
    counts = {name: kind.count for name, kind in _schema(tmp_path).node_types.items()}
    learnable_rows = result.load_learnable_rows()
    assert sorted(learnable_rows) == ["author", "field", "institution"]
    for name, rows in learnable_rows.items():
        assert rows.shape == (counts[name], 32)
        for rank in range(2):
            shard = read_tensors(result.run_dir / f"learnable-rank-{rank}.safetensors")
            assert torch.equal(rows[shard[f"{name}.ids"]], shard[name])
    (result.run_dir / "learnable-rank-1.safetensors").unlink()
    with pytest.raises(hopper.RequestError, match=r"learnable-rank-1\.safetensors: no such file"):
        result.load_learnable_rows()


def _schema(folder: Path) -> hopper.GraphSchema:
    return hopper.PartitionedGraph.open(folder / "parts").schema


def test_the_example_of_training_from_python_learns(tmp_path: Path) -> None:
    example = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_from_python.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert example.returncode == 0, example.stderr
    assert len(re.findall(r"^epoch \d: loss [\d.]+ in .* sent feature", example.stdout, re.M)) == 4
    [run_accuracy] = re.findall(r"test accuracy of the run (0\.\d+)", example.stdout)
    [loaded_accuracy] = re.findall(r"test accuracy of the loaded model (0\.\d+)", example.stdout)
    assert run_accuracy == loaded_accuracy
    # A guess is right once in 40 times.
    assert float(run_accuracy) > 0.3
    assert "├── hop 0 edge: node " in example.stdout
    assert "logits torch.Size([1, 40])" in example.stdout
