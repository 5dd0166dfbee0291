"""An update whose loss or gradient is not finite is left out on every rank alike.

Guards against: ranks that disagree, learnable rows or parameters of one server that are updated
all the same, and loss scales that differ from torch's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines.reference import Reference
from hopper.graph.directory import GraphDirectory
from hopper.hetero.write_partition import partition_by_relation
from hopper.migrate.flat_model import LossScale
from hopper.partition import PartitionedGraph, partition_graph

from .typed_cases import LEARNABLE, MODELS, TRAIN, WITH_FEATURES, make_graph

ITERATIONS = 4


def test_every_engine_leaves_out_the_same_update_on_all_ranks(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """The loss is NaN once on rank 1. All later gradients are those of one process."""
    typed, columns = make_graph(tmp_path / "typed", WITH_FEATURES), tmp_path / "columns"
    partition_graph(typed, tmp_path / "nodes", 2, "random")
    partition_by_relation(typed, tmp_path / "relations", 2, layers=2)
    partition_graph(community_graph, columns, 2, "random", features="by-dimension")
    addresses = {folder: serve_partitions(tmp_path / folder, 2) for folder in ("nodes", "columns")}
    cases = []
    for engine in ("model_centric", "hop", "cooperative", "raf", "p3"):
        parts = {"raf": "relations", "p3": "columns"}.get(engine, "nodes")
        train = TRAIN | {
            "engine": BASELINES.get(engine, engine),
            "iterations_per_epoch": ITERATIONS,
            "batch_size": 4,
        }
        train |= {"on_nonfinite": "skip", "gradient_norms": True, "run_dir": f"{tmp_path / engine}"}
        train |= {"loss": "own_parts:NanOnce", "loss_options": {"rank": 1, "call": 2}}
        train |= {"record_gradients": list(range(ITERATIONS)), "evaluate_every": 0}
        cases.append(
            {
                "data": {"partitioned": str(tmp_path / parts)},
                "model": {"name": "sage", "layers": 2} if engine == "p3" else MODELS["rgcn"],
                "sampler": {"fanouts": [4, 3]},
                "train": train,
                "hop": {"merge": "off"},
                "learnable": {} if engine == "p3" else LEARNABLE,
                "cluster": {"servers": addresses.get(parts, [])},
            }
        )
    train_cases(cases, 2, tmp_path / "work")
    for values in cases:
        config = make_config(values)
        (epoch,) = [
            json.loads(line, parse_constant=pytest.fail)
            for line in Path(config.train.run_dir, "epochs.jsonl").read_text().splitlines()
        ]
        losses = epoch["iteration_losses"]
        number = losses.index("nan")
        assert [losses.count("nan"), epoch["left_out"]] == [1, 1], config.train.engine
        assert epoch["gradient_norms"][number] == "nan"
        finite = [loss for loss in losses if loss != "nan"]
        assert epoch["loss"] == pytest.approx(sum(finite) / len(finite))
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        for name, parameter in recorded[number].parameters.items():
            if not name.startswith("learnable."):
                assert torch.equal(parameter, recorded[number + 1].parameters[name])
        reference = Reference(config, PartitionedGraph.open(config.data.partitioned), 2)
        later = [gradient for gradient in recorded if gradient.step != number]
        parity = check_engine(config.train.engine, "float64", reference, later)
        assert max(gradient.largest for gradient in parity.gradients) < 1e-10


def test_the_loss_scale_is_that_of_torch() -> None:
    ours, theirs = LossScale(is_on=True), torch.amp.GradScaler("cpu", init_scale=1024)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])
    generator = torch.Generator().manual_seed(0)
    factors = []
    for step in range(9000):
        is_finite = step > 3000 or float(torch.rand(1, generator=generator)) > 0.002
        parameter.grad = torch.tensor([1.0 if is_finite else torch.inf])
        theirs.scale(torch.zeros(1))
        theirs.unscale_(optimizer)
        theirs.update()
        ours.update(is_finite)
        assert ours.factor == theirs.get_scale(), step
        factors.append(ours.factor)
    assert 1.0 < min(factors) < factors[-1]
