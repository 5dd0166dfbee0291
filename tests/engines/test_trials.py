"""Trials trained at once equal the same trials trained alone.

Guards against: a model that meets a group twice or never, another trial's dropout, shape or
learning rate, gradients averaged over trials, updates away from home, divisors of another batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hopper.config import load_config, make_config
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles

from .conftest import Sections, merged
from .features import GRAPHS

pytestmark = pytest.mark.filterwarnings("ignore:split ")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]


@dataclass(frozen=True)
class Sweep:
    """Trials that are trained together.

    Attributes
    ----------
    trials: what each of them overrides, by ``section.key``.
    sections: the configuration of all; hop: what is said of training them together.
    graph: a key of features.GRAPHS. servers, ranks: who trains them.
    """

    trials: Sequence[dict[str, Any]]
    sections: Sections = field(default_factory=dict)
    hop: dict[str, Any] = field(default_factory=dict)
    graph: str = "items"
    servers: int = 2
    ranks: int = 1


# 83 training nodes: a short last batch; batches of 1 leave ranks without roots.
SWEEPS = {
    "more trials than ranks": Sweep(
        [
            {},
            {"model.hidden": 5, "train.learning_rate": 0.03, "train.weight_decay": 0.01},
            {"model.hidden": 12, "model.dropout": 0.6, "train.model_seed": 8},
            {"train.optimizer": "sgd", "train.learning_rate": 0.5, "model.dropout": 0.0},
            {"model.name": "gat", "model.heads": 2, "model.hidden": 4, "train.clip_norm": 0.5},
            {"model.name": "gcn", "train.model_seed": 4},
        ],
        ranks=2,
    ),
    "fewer roots than ranks": Sweep(
        [{"train.model_seed": 1}, {"model.hidden": 3}],
        {"train": {"batch_size": 1, "iterations_per_epoch": 3}},
        servers=4,
    ),
    "one trial, in passes": Sweep(
        [{"model.dropout": 0.5}], {"train": {"micro_batch": 3}}, servers=4
    ),
    "own draws, nothing pre-gathered": Sweep(
        [
            {"train.seed": 5, "train.model_seed": 2},
            {"train.seed": 6, "model.hidden": 5},
            {"train.model_seed": 5},
        ],
        {"train": {"micro_batch": 5}},
        {"share_sampling": False, "pregather": False},
    ),
    "some stop early": Sweep(
        [{}, {"train.learning_rate": 1e-9}, {"train.model_seed": 7}],
        {"train": {"patience": 1, "epochs": 4, "batch_size": 20}},
    ),
    "of several types": Sweep(
        [{}, {"model.name": "rgat", "model.heads": 2}, {"model.name": "hgt"}],
        {"model": {"name": "rgcn"}},
        graph="typed",
    ),
    # Rows of other widths, and decoders of their own.
    "links": Sweep(
        [
            {},
            {"model.hidden": 6, "task.decoder": "distmult"},
            {"task.decoder": "mlp", "task.dim": 5, "train.learning_rate": 0.03},
            {"model.name": "gat", "model.heads": 2, "model.hidden": 4, "train.model_seed": 8},
        ],
        {
            "task": {"negatives": "joint", "num_negatives": 3},
            "train": {"micro_batch": 5, "more_metrics": ["hits@3"]},
        },
        graph="links",
    ),
    "links, own draws": Sweep(
        [{"train.seed": 5}, {"train.seed": 6, "task.dim": 3}],
        {"task": {"negatives": "in_batch", "num_negatives": 3, "corrupt": "tail"}},
        {"share_sampling": False},
        "links",
        ranks=2,
    ),
    "links, at their times": Sweep(
        [{"model.hidden": 5}, {"task.decoder": "distmult"}],
        {
            "task": {"negatives": "uniform", "num_negatives": 3},
            "sampler": {"kind": "temporal"},
        },
        graph="links",
        servers=3,
    ),
    "labels": Sweep(
        [{"model.hidden": 5}, {"task.decoder": "bilinear"}, {"model.dropout": 0.5}],
        {"train": {"more_metrics": ["macro_f1"]}},
        graph="labels",
        ranks=2,
    ),
}


@pytest.fixture(scope="module")
def parts_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Divide a graph over servers, once for all sweeps."""
    folder = tmp_path_factory.mktemp("parts")

    def parts(name: str, servers: int) -> Path:
        out, graph = folder / f"{name} {servers}", folder / name
        if not out.exists():
            opened = GraphDirectory.open(graph) if graph.exists() else GRAPHS[name](graph)
            partition_graph(opened, out, servers, "random")
        return out

    return parts


def base(sweep: Sweep, parts: Path, run_dir: str | Path, **train: Any) -> dict[str, Any]:
    """Configure what all trials of a sweep share."""
    values = {
        "data": {"partitioned": str(parts)},
        "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
        "sampler": {"fanouts": [4, 3]},
        "train": {"batch_size": 15, "epochs": 2, "learning_rate": 0.01, "dtype": "float64"}
        | {"seed": 3, "checkpoint_every": 10_000, "run_dir": str(run_dir)},
        "cluster": {"ranks_per_server": sweep.ranks},
    }
    if "links" in str(parts) or "labels" in str(parts):
        values["train"] |= {"iterations_per_epoch": 2}
    return merged(values, sweep.sections, {"train": train})


def together(sweep: Sweep, values: dict[str, Any]) -> dict[str, Any]:
    """Configure a run that trains all trials at once."""
    hop = {"replicas": "independent", "trials": list(sweep.trials)} | sweep.hop
    return merged(values, {"train": {"engine": "hop"}, "hop": hop})


def alone(overrides: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Configure a run that trains one trial by itself."""
    values = merged(values, {"train": {"engine": "zero_hop"}})
    for name, value in overrides.items():
        section, _, key = name.partition(".")
        values = merged(values, {section: {key: value}})
    return values


def final_parameters(run_dir: Path, prefix: str) -> dict[str, Any]:
    """Read the parameters of the checkpoint that the last epoch leaves behind."""
    tensors = load_file(CheckpointFiles(run_dir).newest)  # type: ignore[arg-type]
    start = f"{prefix}model."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_trial_equals_itself_trained_alone(
    name: str,
    parts_of: Callable[[str, int], Path],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """Shapes, draws, negatives, decoders, stops and scores are those of a run of its own."""
    sweep = SWEEPS[name]
    parts = parts_of(sweep.graph, sweep.servers)
    configs = [together(sweep, base(sweep, parts, tmp_path / "all"))]
    for index, overrides in enumerate(sweep.trials):
        configs.append(alone(overrides, base(sweep, parts, tmp_path / f"{index}")))
    _, *results = train_cases(configs, sweep.servers * sweep.ranks, tmp_path)
    epochs_run = set()
    for index, expected in enumerate(results):
        folder = tmp_path / f"all/trial-{index}"
        epochs = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
        losses = [loss for epoch in epochs for loss in epoch["iteration_losses"]]
        assert losses == pytest.approx(expected["losses"], rel=1e-9), index
        assert [epoch["val"] for epoch in epochs] == expected["val"], index
        joint = final_parameters(tmp_path / "all", f"trial-{index}.")
        single = final_parameters(tmp_path / f"{index}", "")
        assert joint.keys() == single.keys()
        for key, value in single.items():
            assert joint[key] == pytest.approx(value, rel=1e-7, abs=1e-10), (index, key)
        summary, single_summary = (
            json.loads((path / "summary.json").read_text())
            for path in (folder, tmp_path / f"{index}")
        )
        assert summary["scores"] == single_summary["scores"]
        assert summary["scores"]["test"]
        assert summary["best_epoch"] == single_summary["best_epoch"]
        epochs_run.add(len(epochs))
    assert (len(epochs_run) > 1) == (name == "some stop early")


def test_features_are_read_once_for_all_trials(
    parts_of: Callable[[str, int], Path], train_cases: TrainCases, tmp_path: Path
) -> None:
    sweep, parts = Sweep(SWEEPS["more trials than ranks"].trials), parts_of("items", 2)
    own_draws = Sweep([{"train.seed": 3}, {"train.seed": 4}], hop={"share_sampling": False})
    configs = [
        together(sweep, base(sweep, parts, tmp_path / "shared")),
        alone({}, base(sweep, parts, tmp_path / "zero_hop")),
        together(own_draws, base(own_draws, parts, tmp_path / "own")),
    ]
    shared, zero_hop, own = train_cases(configs, 2, tmp_path)
    # Six trials fetch what the engine that fetches least does for one.
    assert shared["bytes"]["feature"] == zero_hop["bytes"]["feature"] > 0
    assert shared["rows"] == zero_hop["rows"]
    assert own["bytes"]["feature"] > zero_hop["bytes"]["feature"]
    # Around the ring with parameters, gradients and loss; home without the parameters.
    trials = json.loads((tmp_path / "shared" / "summary.json").read_text())["trials"]
    elements = sum((2 * t["parameters"] + 1) + t["parameters"] + 1 for t in trials)
    iterations = 3
    assert shared["bytes"]["model"] == iterations * 8 * elements
    assert shared["bytes"]["gradient"] == 0


def test_a_trial_s_folder_holds_its_ordinary_configuration(
    parts_of: Callable[[str, int], Path], train_cases: TrainCases, tmp_path: Path
) -> None:
    sweep, parts = Sweep(SWEEPS["more trials than ranks"].trials), parts_of("items", 1)
    seeds = Sweep([])
    configs = [
        together(sweep, base(sweep, parts, tmp_path / "run", epochs=1)),
        together(seeds, base(seeds, parts, tmp_path / "seeds", epochs=1)),
    ]
    train_cases(configs, 1, tmp_path)
    for index, overrides in enumerate(sweep.trials):
        config = load_config(tmp_path / "run" / f"trial-{index}" / "config.json")
        assert config == make_config(alone(overrides, base(sweep, parts, "", epochs=1))), index
    seeded = load_config(tmp_path / "seeds" / "trial-0" / "config.json")
    assert (seeded.train.seed, seeded.train.model_seed) == (3, 3)
    assert not (tmp_path / "seeds" / "trial-1").exists()
