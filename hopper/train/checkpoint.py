"""Checkpoints: everything from which a run continues bit for bit (design.md, invariant 6).

Draws, shuffling and dropout are counter-based, so the state is parameters, optimiser, the place in
the run and what was scored so far. A checkpoint is one file of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cache_server import draw
from hopper.cluster import Cluster
from hopper.config import Config, make_config
from hopper.engines.optimizer import Optimizer
from hopper.errors import RequestError
from hopper.hetero.row_records import PickedRows
from hopper.ops import backend
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division
from hopper.train.tensor_file import fill_tensors, read_facts, save_tensors

CHECKPOINT_FILE = "checkpoint.safetensors"
BEST_MODEL_FILE = "best.safetensors"


@dataclass
class Progress:
    """The place in a run: the next iteration, and what came before it."""

    epoch: int = 0
    iteration: int = 0
    step: int = 0
    """iterations over the whole run"""
    losses: list[float] = field(default_factory=list)
    """of the epoch so far"""
    best_score: float | None = None
    best_epoch: int | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    """of that epoch, by metric"""
    epochs_without_gain: int = 0
    decisions: dict[str, Any] = field(default_factory=dict)
    """what the engine's next decisions depend on"""


def save_model(path: Path, module: nn.Module, **facts: Any) -> None:
    """Write a module's parameters and buffers, with facts about it as JSON."""
    save_tensors(path, _state(module), facts)


def load_model(path: Path, module: nn.Module) -> dict[str, Any]:
    """Copy saved parameters into a module, in place; returns the facts saved with them.

    Raises
    ------
    RequestError: the file is missing, broken or of another model.
    """
    facts = read_facts(path)
    fill_tensors(_state(module), path)
    return facts


def training_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """All tensors that a model's training depends on, by name; filling them restores it."""
    state = {f"model.{name}": value.detach() for name, value in _state(module).items()}
    return state | {f"optimizer.{name}": value for name, value in optimizer.state().items()}


def save_training(
    path: Path, identity: dict[str, Any], state: Mapping[str, Tensor | PickedRows], progress: Any
) -> None:
    """Write a checkpoint of any number of models; an older one stays whole until this one is.

    Parameters
    ----------
    progress: where training goes on, as JSON.
    """
    save_tensors(path, state, {"identity": identity, "progress": progress})


def load_training(
    path: Path, identity: dict[str, Any], state: Mapping[str, Tensor], *, partly: bool = False
) -> Any:
    """Fill tensors in place from what :func:`save_training` wrote; returns its progress.

    Parameters
    ----------
    partly: whether the file may lack some tensors.

    Raises
    ------
    RequestError: as :func:`read_progress`, or the file's tensors are others.
    """
    progress = read_progress(path, identity)
    fill_tensors(state, path, partly=partly)
    return progress


def read_progress(path: Path, identity: dict[str, Any]) -> Any:
    """The progress that :func:`save_training` wrote.

    A key of the configuration that was not there yet when it wrote had its default.

    Raises
    ------
    RequestError: there is no whole checkpoint, or it is of a run with another configuration
        (names the key).
    """
    facts = read_facts(path)
    found = _defaults() | facts["identity"]
    for key, value in identity.items():
        if found.get(key) != value:
            raise RequestError(
                f"{path}: cannot resume: {key} was {found.get(key)!r}, now it is {value!r}"
            )
    return facts["progress"]


def run_identity(config: Config, graph: PartitionedGraph, cluster: Cluster) -> dict[str, Any]:
    """What must be equal for a run to continue another: all that decides its bits."""
    of_run = (
        *("epochs", "run_dir", "resume", "checkpoint_every", "record_gradients", "replay"),
        *("init_from", "loggers", "loggers_options", "score_training", "gradient_norms"),
    )
    # What a machine makes of device and threads is compared instead.
    free = {("train", key) for key in (*of_run, "device", "threads")}
    free |= {("learnable", "folder"), ("learnable", "storage"), ("sampler", "device")}
    values = config.model_dump()
    identity = {
        f"{section}.{key}": value
        for section in Config.model_fields
        if section not in ("data", "cache", "cluster", "pipeline")
        for key, value in values[section].items()
        if (section, key) not in free
    }
    return identity | {
        "data.features": values["data"]["features"],
        "data.features_options": values["data"]["features_options"],
        "the version of draws": draw.VERSION,
        "the division of the graph": read_division(graph.path),
        "the number of ranks": cluster.world,
        "ranks a server": cluster.ranks_per_server,
        "nodes of a server": graph.placement(cluster.ranks_per_server).dealing.name,
        "CPU threads a rank": torch.get_num_threads(),
        "device": cluster.device.type,
        "messages through host memory": cluster.through_host,
        "kernels": backend(cluster.device),
        "torch": torch.__version__,
    }


def _defaults() -> dict[str, Any]:
    """By "section.key", what a key is where a configuration does not name it."""
    values = make_config({"data": {"partitioned": "any"}}).model_dump()
    return {
        f"{section}.{key}": value for section, keys in values.items() for key, value in keys.items()
    }


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.state_dict())
