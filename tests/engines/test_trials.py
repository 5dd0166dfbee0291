"""Trials trained at once equal the same trials trained alone.

Guards against: a model that meets a group twice or never, another trial's dropout, shape or
learning rate, gradients averaged over trials, updates away from home, divisors of another batch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hopper.config import load_config, make_config
from hopper.train.checkpoint_files import CheckpointFiles

from .features import Case, Sections, World, case_of, merged

BASE: Sections = {
    "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sampler": {"fanouts": [4, 3]},
    "train": {"batch_size": 15, "epochs": 2, "iterations_per_epoch": 0, "clip_norm": 0.0}
    | {"weight_decay": 0.0, "evaluate_every": 1, "record_gradients": []}
    | {"checkpoint_every": 10_000},
}


@dataclass(frozen=True)
class Sweep:
    """Trials that are trained together.

    Attributes
    ----------
    trials: what each of them overrides, by ``section.key``.
    sections: the configuration of all; hop: what is said of training them together.
    feature: a key of features.FEATURES. servers, ranks: who trains them.
    """

    trials: Sequence[dict[str, Any]]
    sections: Sections = field(default_factory=dict)
    hop: dict[str, Any] = field(default_factory=dict)
    feature: str = "node"
    servers: int = 2
    ranks: int = 1

    @property
    def case(self) -> Case:
        """The case whose graph and division are used."""
        world = World(self.servers, self.ranks)
        return replace(case_of(self.feature, "hop", world), sections={})

    def base(self, **train: Any) -> dict[str, Any]:
        """The configuration that all trials share."""
        few = {"iterations_per_epoch": 2} if self.feature in ("links", "labels") else {}
        return merged(BASE, {"train": few}, self.sections, {"train": train})

    def together(self, **train: Any) -> tuple[Case, Sections]:
        """Ask for a run that trains all trials at once."""
        hop = {"replicas": "independent", "trials": list(self.trials)} | self.hop
        return self.case, merged(self.base(**train), {"hop": hop})

    def alone(self, overrides: dict[str, Any], **train: Any) -> tuple[Case, Sections]:
        """Ask for a run that trains one trial by itself."""
        values = self.base(**train, engine="zero_hop")
        for name, value in overrides.items():
            section, _, key = name.partition(".")
            values = merged(values, {section: {key: value}})
        return self.case, values


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
        [
            {},
            {"model.name": "rgat", "model.heads": 2, "train.model_seed": 8},
            {"model.name": "hgt"},
        ],
        {"model": {"name": "rgcn"}},
        feature="types",
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
        feature="links",
    ),
    "links, own draws": Sweep(
        [{"train.seed": 5}, {"train.seed": 6, "task.dim": 3}],
        {"task": {"negatives": "in_batch", "num_negatives": 3, "corrupt": "tail"}},
        {"share_sampling": False},
        "links",
        ranks=2,
    ),
    "labels": Sweep(
        [{"model.hidden": 5}, {"task.decoder": "bilinear"}, {"model.dropout": 0.5}],
        {"train": {"more_metrics": ["macro_f1"]}},
        feature="labels",
        ranks=2,
    ),
}


def final_parameters(run_dir: Path, prefix: str = "") -> dict[str, Any]:
    """Read the parameters of the checkpoint that the last epoch leaves behind."""
    tensors = load_file(CheckpointFiles(run_dir).newest)  # type: ignore[arg-type]
    start = f"{prefix}model."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_trial_equals_itself_trained_alone(name, train):
    """Shapes, draws, negatives, decoders, stops and scores are those of a run of its own."""
    sweep = SWEEPS[name]
    together, *runs = train([sweep.together(), *map(sweep.alone, sweep.trials)])
    epochs_run = set()
    for index, run in enumerate(runs):
        folder = together.folder / f"trial-{index}"
        epochs = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
        losses = [loss for epoch in epochs for loss in epoch["iteration_losses"]]
        assert losses == pytest.approx(run.result["losses"], rel=1e-9), index
        assert [epoch["val"] for epoch in epochs] == run.result["val"], index
        joint = final_parameters(together.folder, f"trial-{index}.")
        single = final_parameters(run.folder)
        assert joint.keys() == single.keys()
        for key, value in single.items():
            assert joint[key] == pytest.approx(value, rel=1e-7, abs=1e-10), (index, key)
        summary, single_summary = (
            json.loads((path / "summary.json").read_text()) for path in (folder, run.folder)
        )
        assert summary["scores"] == single_summary["scores"]
        assert summary["scores"]["test"]
        assert summary["best_epoch"] == single_summary["best_epoch"]
        epochs_run.add(len(epochs))
    assert (len(epochs_run) > 1) == (name == "some stop early")


def test_features_are_read_once_for_all_trials(train):
    sweep = Sweep(SWEEPS["more trials than ranks"].trials)
    own_draws = Sweep([{"train.seed": 3}, {"train.seed": 4}], hop={"share_sampling": False})
    runs = train([sweep.together(), sweep.alone({}), own_draws.together()])
    shared, zero_hop, own = (run.result for run in runs)
    # Six trials fetch what the engine that fetches least does for one.
    assert shared["bytes"]["feature"] == zero_hop["bytes"]["feature"] > 0
    assert shared["rows"] == zero_hop["rows"]
    assert own["bytes"]["feature"] > zero_hop["bytes"]["feature"]
    # Around the ring with parameters, gradients and loss; home without the parameters.
    trials = json.loads((runs[0].folder / "summary.json").read_text())["trials"]
    elements = sum((2 * t["parameters"] + 1) + t["parameters"] + 1 for t in trials)
    iterations = 3
    assert shared["bytes"]["model"] == iterations * 8 * elements
    assert shared["bytes"]["gradient"] == 0


def test_a_trial_s_folder_holds_its_ordinary_configuration(train, divided):
    sweep, seeds = Sweep(SWEEPS["more trials than ranks"].trials, servers=1), Sweep([], servers=1)
    swept, seeded = train([sweep.together(epochs=1), seeds.together(epochs=1)])
    plain = sweep.case.values(divided(sweep.case), Path())
    for index, overrides in enumerate(sweep.trials):
        config = load_config(swept.folder / f"trial-{index}" / "config.json")
        _, own = sweep.alone(overrides, epochs=1, run_dir="")
        assert config == make_config(merged(plain, own)), index
    config = load_config(seeded.folder / "trial-0" / "config.json")
    assert (config.train.seed, config.train.model_seed) == (3, 3)
    assert not (seeded.folder / "trial-1").exists()
