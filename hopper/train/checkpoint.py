"""Checkpoints: everything from which a run continues bit for bit (design.md, invariant 6).

Draws, shuffling and dropout are counter-based, so the state is parameters, optimiser, the place in
the run and what was scored so far. A checkpoint is one file of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from cache_server import draw
from hopper.cluster import Cluster
from hopper.config import Config, make_config
from hopper.engines import find_engine
from hopper.engines.optimizer import Optimizer
from hopper.errors import RequestError
from hopper.graph.schema_json import schema_fingerprint
from hopper.hetero.row_records import PickedRows
from hopper.ops import backend
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division
from hopper.train.tensor_file import fill_tensors, read_facts, save_tensors

BEST_MODEL_FILE = "best.safetensors"
RANKS: Final = "the number of ranks"
"""a key of ``run_identity``"""


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

    Raises
    ------
    RequestError: there is no whole checkpoint, or it is of a run that this one cannot go on from.
    """
    facts = read_facts(path)
    find_moves(path, facts["identity"], identity)
    return facts["progress"]


def differences(found: dict[str, Any], identity: dict[str, Any]) -> dict[str, str]:
    """By key, what is another in a run than in a checkpoint, as words; see :func:`find_moves`."""
    found = _defaults() | found
    return {
        key: f"{key} was {found.get(key)!r}, now it is {value!r}"
        for key, value in identity.items()
        if found.get(key) != value
    }


def find_moves(path: Path, found: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    """In what a run differs from the checkpoint that it goes on from: other servers, ranks, threads
    or another engine, under which an exact run is the same but for rounding; a line for each.

    A key of the configuration that was not there yet when it was written had its default.

    Parameters
    ----------
    path: of the checkpoint, for errors. found: its identity. identity: the run's.

    Raises
    ------
    RequestError: anything else differs, or may not where both do not train the same (names the
        key).
    """
    moved = differences(found, identity)
    fixed = [key for key in moved if key not in _MOVABLE]
    if not fixed and moved and not all(_is_movable(each) for each in (found, identity)):
        fixed = list(moved)
    if fixed:
        raise RequestError(f"{path}: cannot resume: {moved[fixed[0]]}")
    return list(moved.values())


_MOVABLE: Final = frozenset(
    {
        *("train.engine", "train.batch_size", "train.micro_batch", "hop.migrate", "hop.pregather"),
        *("hop.merge", "hop.merge_selection", "raf.reduce", "the division of the graph"),
        *(RANKS, "ranks a server", "nodes of a server", "CPU threads a rank"),
        *("device", "messages through host memory", "kernels", "torch"),
    }
)
"""what decides how an exact run rounds, and nothing else of it, as long as its global batch is the
same"""


def _is_movable(identity: Mapping[str, Any]) -> bool:
    """Whether a run is one model's, the same under every exact engine and on any servers."""
    return bool(
        identity.get("whether the engine is exact")
        and identity.get("hop.replicas") == "synchronous"
        and identity.get("learnable.tables") != "per_server_table"
    )


def run_identity(config: Config, graph: PartitionedGraph, cluster: Cluster) -> dict[str, Any]:
    """What is compared when a run continues another: all that decides its bits."""
    of_run = (
        *("epochs", "run_dir", "resume", "checkpoint_every", "record_gradients", "replay"),
        *("keep_checkpoints", "checkpoint_copy"),
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
        "the graph": schema_fingerprint(graph.schema),
        "the division of the graph": read_division(graph.path),
        "the roots of an iteration": "all"
        if config.sampler.kind == "full"
        else config.train.batch_size * cluster.world,
        "whether the engine is exact": find_engine(config).kind.is_exact(config),
        RANKS: cluster.world,
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
