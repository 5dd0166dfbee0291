"""Checkpoints: all state that a run needs to continue bit for bit.

Draws, shuffling and dropout are functions of counters. The state is therefore only the parameters,
the optimiser, the progress of the run and the scores so far. A checkpoint is one file of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from cache_server.sampling_spec import VERSION
from hopper.cluster import Cluster
from hopper.config import Config, make_config
from hopper.engines import TrainState, find_engine
from hopper.engines.optimizer import Optimizer
from hopper.errors import RequestError
from hopper.graph.columns import (
    columns_from_json,
    columns_to_json,
    find_class_difference,
    find_column_difference,
)
from hopper.graph.schema_json import schema_fingerprint
from hopper.hetero.row_records import PickedRows
from hopper.migrate.flat_model import FlatModel
from hopper.ops import backend
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division
from hopper.train.tensor_file import fill_tensors, read_facts, save_tensors

BEST_MODEL_FILE = "best.safetensors"
RANKS: Final = "the number of ranks"
"""A key of ``run_identity``."""
_COLUMNS: Final = "columns of features"
_CLASSES: Final = "names of classes"


@dataclass
class Progress:
    """The progress of a run: the next iteration, and the losses and scores so far."""

    epoch: int = 0
    iteration: int = 0
    step: int = 0
    """Iterations of the whole run so far."""
    losses: list[float] = field(default_factory=list)
    """Losses of the epoch so far."""
    best_score: float | None = None
    best_epoch: int | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    """Scores of the best epoch, by metric."""
    epochs_without_gain: int = 0
    left_out: int = 0
    """Iterations of the epoch so far whose update was left out."""
    diverged: str = ""
    """Why the model is trained no further: what was not finite, and where."""


def save_model(path: Path, module: nn.Module, **facts: Any) -> None:
    """Write a module's parameters and buffers, with facts about it as JSON."""
    save_tensors(path, _state(module), facts)


def load_model(path: Path, module: nn.Module) -> dict[str, Any]:
    """Copy saved parameters into a module in place, and return the facts saved with them.

    Raises
    ------
    RequestError: the file is missing, broken or of another model.
    """
    facts = read_facts(path)
    fill_tensors(_state(module), path)
    return facts


def training_state(packed: FlatModel, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return all tensors that a model's training depends on, by name. Filling them restores
    training."""
    state = {f"model.{name}": value.detach() for name, value in _state(packed.module).items()}
    state |= {f"optimizer.{name}": value for name, value in optimizer.state().items()}
    return state | packed.scale.state()


def training_states(models: Sequence[TrainState]) -> dict[str, Tensor]:
    """Return :func:`training_state` of all models, by the model's name where there are several."""
    return {
        f"{model.name}.{name}" if model.name else name: tensor
        for model in models
        for name, tensor in training_state(model.packed, model.optimizer).items()
    }


def save_training(
    path: Path, identity: dict[str, Any], state: Mapping[str, Tensor | PickedRows], progress: Any
) -> None:
    """Write a checkpoint of any number of models. It replaces an older file only once complete.

    Parameters
    ----------
    progress: the progress of the models, as JSON.
    """
    save_tensors(path, state, {"identity": identity, "progress": progress})


def load_training(
    path: Path, identity: dict[str, Any], state: Mapping[str, Tensor], *, partly: bool = False
) -> Any:
    """Fill tensors in place from a checkpoint of :func:`save_training`; return its progress.

    Parameters
    ----------
    partly: whether the file may lack some tensors.

    Raises
    ------
    RequestError: as :func:`read_progress` does, or the file has other tensors.
    """
    progress = read_progress(path, identity)
    fill_tensors(state, path, partly=partly)
    return progress


def read_progress(path: Path, identity: dict[str, Any]) -> Any:
    """Read the progress from a checkpoint of :func:`save_training`.

    Raises
    ------
    RequestError: the file is not a whole checkpoint, or this run cannot continue its run.
    """
    facts = read_facts(path)
    find_moves(path, facts["identity"], identity)
    return facts["progress"]


def find_differences(saved: dict[str, Any], identity: dict[str, Any]) -> dict[str, str]:
    """Describe each difference between a run's identity and a checkpoint's, by key.

    A configuration key that the checkpoint lacks is newer than it, and counts with its default.
    Encodings that it lacks are not compared.

    Parameters
    ----------
    saved: identity of the checkpoint.
    identity: identity of the run.
    """
    saved = _defaults() | {key: identity.get(key) for key in (_COLUMNS, _CLASSES)} | saved
    return {
        key: f"{key} was {saved.get(key)!r}, now it is {value!r}"
        for key, value in identity.items()
        if saved.get(key) != value
    }


def find_moves(path: Path, saved: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    """Find the allowed differences between a run and the checkpoint that it continues.

    An exact run may move to other servers, ranks, threads or another engine: it stays the same
    except for rounding.

    Parameters
    ----------
    path: file of the checkpoint, for errors.
    saved: identity of the checkpoint.
    identity: identity of the run.

    Returns
    -------
    A text for each difference.

    Raises
    ------
    RequestError: a difference is not allowed; names the key.
    """
    encoding = _find_encoding_difference(saved, identity)
    if encoding:
        raise RequestError(
            f"{path}: cannot resume: {encoding}; import the new data with --encode-like, given the "
            "graph of the run"
        )
    moved = find_differences(saved, identity)
    fixed = [key for key in moved if key not in _MOVABLE]
    if not fixed and moved and not (_is_movable(saved) and _is_movable(identity)):
        fixed = list(moved)
    if fixed:
        raise RequestError(f"{path}: cannot resume: {moved[fixed[0]]}")
    return list(moved.values())


def _find_encoding_difference(saved: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """Describe how features or classes were encoded otherwise; "" if they were not."""
    columns = [
        {table: columns_from_json(of, table) for table, of in one.get(_COLUMNS, {}).items()}
        for one in (saved, identity)
    ]
    difference = find_column_difference(*columns)
    return difference or find_class_difference(saved.get(_CLASSES, {}), identity.get(_CLASSES, {}))


_MOVABLE: Final = frozenset(
    {
        *("train.engine", "train.batch_size", "train.micro_batch", "hop.migrate", "hop.pregather"),
        *("hop.merge", "hop.merge_selection", "raf.reduce", "the division of the graph"),
        *(RANKS, "ranks a server", "nodes of a server", "CPU threads a rank"),
        *("device", "messages through host memory", "kernels", "torch"),
    }
)
"""Keys that change only the rounding of an exact run, as long as its global batch is the same."""


def _is_movable(identity: Mapping[str, Any]) -> bool:
    """Return whether a run trains one model, the same under every exact engine and on any
    servers."""
    return bool(
        identity.get("whether the engine is exact")
        and identity.get("hop.replicas") == "synchronous"
        and identity.get("learnable.tables") != "per_server_table"
    )


def run_identity(config: Config, graph: PartitionedGraph, cluster: Cluster) -> dict[str, Any]:
    """Return all facts that decide the bits of a run, compared when a run continues a
    checkpoint."""
    not_compared = (
        *("epochs", "run_dir", "resume", "checkpoint_every", "record_gradients", "replay"),
        *("keep_checkpoints", "checkpoint_copy"),
        *("init_from", "loggers", "loggers_options", "score_training", "gradient_norms"),
        "on_nonfinite",
    )
    # The actual device and number of threads are compared, not the configured ones.
    free = {("train", key) for key in (*not_compared, "device", "threads")}
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
        "the version of draws": VERSION,
        "the graph": schema_fingerprint(graph.schema),
        _COLUMNS: {name: columns_to_json(of) for name, of in graph.schema.columns.items()},
        _CLASSES: graph.class_names(),
        "the division of the graph": read_division(graph.path),
        "the roots of an iteration": "all"
        if config.sampler.kind == "full"
        else config.train.batch_size * cluster.world,
        "whether the engine is exact": not find_engine(config).kind.spec.approximations(config),
        RANKS: cluster.world,
        "ranks a server": cluster.ranks_per_server,
        "nodes of a server": graph.placement(cluster.ranks_per_server).dealing,
        "CPU threads a rank": torch.get_num_threads(),
        "device": cluster.device.type,
        "messages through host memory": cluster.through_host,
        "kernels": backend(cluster.device),
        "torch": torch.__version__,
    }


def _defaults() -> dict[str, Any]:
    """Return the default of every key, by "section.key"."""
    values = make_config({"data": {"partitioned": "any"}}).model_dump()
    return {
        f"{section}.{key}": value for section, keys in values.items() for key, value in keys.items()
    }


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.state_dict())
