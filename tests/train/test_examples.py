"""The examples run and print what their texts say."""

import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hopper
from hopper.train.tensor_file import read_tensors

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example(monkeypatch, capsys) -> Callable[[str, Path], str]:
    """Run an example in this process; returns what it printed."""

    def run(name: str, folder: Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, str(folder)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_the_heterogeneous_example_learns(run_example, tmp_path):
    printed = run_example("heterogeneous.py", tmp_path)
    assert "server 0 aggregates paper/cites/paper" in printed
    match = re.search(r"test accuracy (0\.\d+); features of two papers: \(2, 128\)", printed)
    assert match is not None, printed
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


def test_the_example_of_training_from_python_learns(run_example, tmp_path):
    printed = run_example("train_from_python.py", tmp_path)
    assert len(re.findall(r"^epoch \d: loss [\d.]+ in .* sent feature", printed, re.M)) == 4
    [run_accuracy] = re.findall(r"test accuracy of the run (0\.\d+)", printed)
    [loaded_accuracy] = re.findall(r"test accuracy of the loaded model (0\.\d+)", printed)
    assert run_accuracy == loaded_accuracy
    # A guess is right once in 40 times.
    assert float(run_accuracy) > 0.3
    assert "├── hop 0 edge: node " in printed
    assert "logits torch.Size([1, 40])" in printed
