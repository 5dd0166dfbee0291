"""The examples run as their texts say."""

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


def test_a_relational_model_of_one_s_own_learns(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "heterogeneous.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "server 0 aggregates paper/cites/paper" in done.stdout
    found = re.search(r"test accuracy (0\.\d+); features of two papers: \(2, 128\)", done.stdout)
    assert found is not None, done.stdout
    # A guess is right once in 349 times.
    assert float(found[1]) > 0.3
    result = hopper.RunResult.open(tmp_path / "run")
    assert "GatedAggregation" in str(result.load_model())
    counts = {name: kind.count for name, kind in _schema(tmp_path).node_types.items()}
    learned = result.load_learnable_rows()
    assert sorted(learned) == ["author", "field", "institution"]
    for name, rows in learned.items():
        assert rows.shape == (counts[name], 32)
        for rank in range(2):
            shard = read_tensors(result.run_dir / f"learnable-rank-{rank}.safetensors")
            assert torch.equal(rows[shard[f"{name}.ids"]], shard[name])
    (result.run_dir / "learnable-rank-1.safetensors").unlink()
    with pytest.raises(hopper.RequestError, match=r"learnable-rank-1\.safetensors: no such file"):
        result.load_learnable_rows()


def _schema(folder: Path) -> hopper.GraphSchema:
    return hopper.PartitionedGraph.open(folder / "parts").schema


def test_training_from_python(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_from_python.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^epoch \d: loss [\d.]+ in .* sent feature", done.stdout, re.M)) == 4
    [run] = re.findall(r"test accuracy of the run (0\.\d+)", done.stdout)
    [loaded] = re.findall(r"test accuracy of the loaded model (0\.\d+)", done.stdout)
    assert run == loaded
    # A guess is right once in 40 times.
    assert float(run) > 0.3
    assert "├── hop 0 edge: node " in done.stdout
    assert "logits torch.Size([1, 40])" in done.stdout
