"""Checkpoints: everything from which a run continues bit for bit (design.md, invariant 6).

Draws, shuffling and dropout are counter-based, so the state is parameters, optimiser, the place in
the run and what was scored so far. A checkpoint is one safetensors file, written under a temporary
name and renamed; nothing in it is executable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.optimizer import Optimizer
from hopper.errors import RequestError
from hopper.ops import backend
from hopper.partition import PartitionedGraph
from hopper.train.results import publish

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
    tensors, facts = _read(path)
    _fill(_state(module), tensors, path)
    return facts


def save_checkpoint(
    path: Path,
    identity: dict[str, Any],
    module: nn.Module,
    optimizer: Optimizer,
    progress: Progress,
) -> None:
    """Write a checkpoint; an older one stays whole until this one is."""
    save_training(path, identity, training_state(module, optimizer), asdict(progress))


def load_checkpoint(
    path: Path, identity: dict[str, Any], module: nn.Module, optimizer: Optimizer
) -> Progress:
    """Restore module and optimiser in place; returns where the run goes on.

    Raises
    ------
    RequestError: there is no whole checkpoint, or it is of a run with another configuration
        (names the key).
    """
    return Progress(**load_training(path, identity, training_state(module, optimizer)))


def training_state(module: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """All tensors that a model's training depends on, by name; filling them restores it."""
    state = {f"model.{name}": value.detach() for name, value in _state(module).items()}
    return state | {f"optimizer.{name}": value for name, value in optimizer.state().items()}


def save_training(
    path: Path, identity: dict[str, Any], state: Mapping[str, Tensor], progress: Any
) -> None:
    """Write a checkpoint of any number of models; ``progress`` as JSON."""
    save_tensors(path, state, {"identity": identity, "progress": progress})


def load_training(path: Path, identity: dict[str, Any], state: Mapping[str, Tensor]) -> Any:
    """Fill tensors in place from what :func:`save_training` wrote; returns its progress.

    Raises
    ------
    RequestError: as :func:`load_checkpoint`.
    """
    tensors, facts = _read(path)
    found = facts["identity"]
    for key, value in identity.items():
        if found.get(key) != value:
            raise RequestError(
                f"{path}: cannot resume: {key} was {found.get(key)!r}, now it is {value!r}"
            )
    _fill(state, tensors, path)
    return facts["progress"]


def run_identity(config: Config, graph: PartitionedGraph, cluster: Cluster) -> dict[str, Any]:
    """What must be equal for a run to continue another: all that decides its bits."""
    free = {"epochs", "run_dir", "resume", "checkpoint_every", "record_gradients", "replay"}
    # What a machine makes of these is compared instead.
    free |= {"device", "threads"}
    values = config.model_dump()
    identity = {
        f"{section}.{key}": value
        for section in ("model", "sampler", "train", "hop", "cooperative", "raf", "learnable")
        for key, value in values[section].items()
        if not (section == "train" and key in free)
    }
    return identity | {
        "the graph's checksum": _checksum(graph.path / "graph.json"),
        "the partition's checksum": _checksum(graph.path / "partition.json"),
        "the number of ranks": cluster.world,
        "ranks a server": cluster.ranks_per_server,
        "CPU threads a rank": torch.get_num_threads(),
        "device": cluster.device.type,
        "kernels": backend(cluster.device),
        "torch": torch.__version__,
    }


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.state_dict())


def _fill(state: Mapping[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    if state.keys() != tensors.keys():
        raise RequestError(
            f"{path}: of another model: has {sorted(tensors)}, expected {sorted(state)}"
        )
    with torch.no_grad():
        for name, target in state.items():
            if target.shape != tensors[name].shape:
                raise RequestError(
                    f"{path}: {name}: expected shape {tuple(target.shape)}, "
                    f"found {tuple(tensors[name].shape)}"
                )
            target.copy_(tensors[name])


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write tensors, with facts about them as JSON; an older file stays whole until this one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(on_cpu, str(unfinished), metadata={"facts": json.dumps(dict(facts))})
    publish(unfinished, path)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: not a file that Hopper wrote: {error}") from error
