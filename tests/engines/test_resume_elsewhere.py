"""A run goes on under other servers, ranks or another engine as if it had been there from the
start, but for rounding; its learnable rows are dealt out anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import read_tensors

from .test_typed_parity import case_config
from .typed_cases import LEARNABLE, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
ROOTS = 8
WHOLE, HALF = 5, 2
"""epochs"""


@pytest.fixture
def case(
    tmp_path: Path, serve_partitions: Callable[[Path, int], list[str]]
) -> Callable[..., dict[str, Any]]:
    """Configure R-GCN on a graph with learnable rows."""
    graph = make_graph(tmp_path / "graph", WITH_FEATURES)
    addresses: dict[int, list[str]] = {}

    def make(
        run: str, engine: str, servers: int, ranks: int = 1, epochs: int = WHOLE, **train: Any
    ) -> dict[str, Any]:
        parts = tmp_path / f"parts-{servers}"
        if servers not in addresses:
            partition_graph(graph, parts, servers, "random", seed=servers)
            addresses[servers] = serve_partitions(parts, servers) if servers > 1 else []
        values = case_config(engine, "rgcn", "node", parts, tmp_path / run)
        values["train"] |= {
            "batch_size": ROOTS // (servers * ranks),
            "epochs": epochs,
            "iterations_per_epoch": 3,
            "evaluate_every": 1,
            "checkpoint_every": 2,
            "record_gradients": [],
        } | train
        values["learnable"] = LEARNABLE
        values["cluster"] = {"servers": addresses[servers], "ranks_per_server": ranks}
        return values

    return make


def test_any_exact_engine_resumes_what_another_began(
    case: Callable[..., dict[str, Any]], train_cases: TrainCases, tmp_path: Path
) -> None:
    cases = [case("whole", "hop", 2), case("begun", "hop", 2, epochs=HALF)]
    full_run, _ = train_cases(cases, 2, tmp_path)
    copies = str(tmp_path / "copies")
    for run, engine, servers, ranks in (
        ("one", "zero_hop in passes", 1, 1),
        ("several", "cooperative", 2, 2),
    ):
        shutil.copytree(tmp_path / "begun", tmp_path / run)
        (tmp_path / run / "summary.json").unlink()
        more = {"resume": True, "checkpoint_copy": copies, "keep_checkpoints": 3}
        values = case(run, engine, servers, ranks, **more)
        [result] = train_cases([values], servers * ranks, tmp_path)
        assert result["losses"] == pytest.approx(full_run["losses"], rel=1e-9), run
        assert result["val"] == pytest.approx(full_run["val"], rel=1e-9), run
        # Nothing of the ranks before is left, and every copy is whole.
        files = CheckpointFiles(tmp_path / run)
        owners = {file.name.split("-")[2] for file in files.folder.glob("learnable-*")}
        assert owners == {str(rank) for rank in range(servers * ranks)}
        assert len(files.steps) == 3
        for file in files.folder.iterdir():
            assert (Path(copies) / file.name).read_bytes() == file.read_bytes()
        assert len(list(Path(copies).iterdir())) == len(list(files.folder.iterdir()))
        shutil.rmtree(copies)
    expected = read_tensors(CheckpointFiles(tmp_path / "whole").newest)  # type: ignore[arg-type]
    for run in ("one", "several"):
        tensors = read_tensors(CheckpointFiles(tmp_path / run).newest)  # type: ignore[arg-type]
        assert tensors.keys() == expected.keys()
        for name, value in expected.items():
            assert tensors[name].numpy() == pytest.approx(value.numpy(), rel=1e-7, abs=1e-9), name
