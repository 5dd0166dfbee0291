"""The page for users of PyTorch Geometric: its code and its commands run as they stand."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

import hopper
from tests.docs.markdown_pages import read_code

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "from-pyg.md"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with ``config.toml`` and ``data.pt``: two communities with different features."""
    generator = torch.Generator().manual_seed(0)
    community = torch.arange(60) % 2
    edges = torch.randint(0, 60, (2, 600), generator=generator)
    edges = edges[:, community[edges[0]] == community[edges[1]]]
    draw = torch.rand(60, generator=generator)
    data = {
        "x": torch.randn(60, 4, generator=generator) + community[:, None],
        "y": community,
        "edge_index": edges,
        "train_mask": draw < 0.5,
        "val_mask": (draw >= 0.5) & (draw < 0.75),
        "test_mask": draw >= 0.75,
    }
    torch.save(data, tmp_path / "data.pt")
    (tmp_path / "config.toml").write_text(
        "data = {partitioned = 'parts'}\nmodel = {name = 'sage', layers = 2, hidden = 8}\n"
        "train = {epochs = 2, batch_size = 8, engine = 'zero_hop'}\n"
    )
    return tmp_path


def test_the_code_runs_as_it_stands(folder, monkeypatch, capsys):
    pytest.importorskip("pandas", reason="pandas is not installed")
    [code] = read_code(PAGE, "python")
    assert len(code.strip().splitlines()) <= 15
    (folder / "script.py").write_text(code)
    monkeypatch.chdir(folder)
    runpy.run_path("script.py")
    printed = capsys.readouterr().out
    assert re.search(r"\n59 +59 +[01]\n", printed), printed


def test_the_commands_run_as_they_stand(folder, runs, monkeypatch):
    monkeypatch.chdir(folder)
    commands = read_code(PAGE, "")[0].strip().splitlines()
    assert len(commands) == 4
    for number, command in enumerate(commands):
        words = shlex.split(command)
        assert words[0] == "hopper"
        runs.call_to_end(f"step {number}", *words[1:])
    predictions = hopper.Predictions.open(folder / "labels")
    np.testing.assert_array_equal(predictions.ids, np.arange(60))
    assert set(predictions.values) <= {0, 1}


def test_a_model_of_pyg_convolutions_trains(folder, runs, rank_pool, monkeypatch):
    pytest.importorskip("torch_geometric", reason="PyG is not installed")
    rank_pool.import_ahead("torch_geometric.nn")
    hopper.GraphDirectory.from_pyg(
        torch.load(folder / "data.pt", weights_only=True), folder / "graph"
    )
    hopper.divide_graph(hopper.GraphDirectory.open(folder / "graph"), folder / "parts", 2, "random")
    monkeypatch.chdir(folder)
    losses = []
    for engine in ("zero_hop", "model_centric"):
        words = ("--model.name=pyg_model:PygSage", f"--train.engine={engine}")
        runs.call_to_end(engine, "train", "config.toml", f"--train.run_dir={engine}", *words)
        losses.append([epoch.loss for epoch in hopper.RunResult.open(folder / engine).epochs])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_blocks_convert_to_pyg_and_dgl(parts):
    config = hopper.make_config(
        {
            "data": {"partitioned": str(parts)},
            "model": {"layers": 1},
            "sampler": {"fanouts": [3]},
        }
    )
    graph = hopper.PartitionedGraph.open(parts)
    sampler = hopper.make_sampler(hopper.Request(config, graph))
    [block] = sampler.sample(np.array([0, 5, 9]), 0, 0).blocks()
    index = block.to_pyg()
    assert index.shape == (2, block.num_edges)
    features = torch.randn(block.num_src, 2)
    expected = torch.zeros(3, 2).index_add(0, index[1], features[index[0]])
    for row in range(3):
        sources = block.indices[block.indptr[row] : block.indptr[row + 1]]
        torch.testing.assert_close(expected[row], features[sources].sum(0))
    dgl = pytest.importorskip("dgl", reason="DGL is not installed")
    dgl_block = block.to_dgl()
    dgl_block.srcdata["h"] = features
    dgl_block.update_all(dgl.function.copy_u("h", "m"), dgl.function.sum("m", "h"))
    torch.testing.assert_close(dgl_block.dstdata["h"], expected)
