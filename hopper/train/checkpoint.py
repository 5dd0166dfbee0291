"""Checkpoints: everything from which a run continues bit for bit (design.md, invariant 6).

Draws, shuffling and dropout are counter-based, so the state is parameters, optimiser, the place in
the run and what was scored so far. A checkpoint is one safetensors file, written under a temporary
name and renamed; nothing in it is executable.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.optimizer import Optimizer
from hopper.errors import RequestError
from hopper.hetero.row_records import PickedRows
from hopper.ops import backend
from hopper.partition import PartitionedGraph
from hopper.train.results import replacing

CHECKPOINT_FILE = "checkpoint.safetensors"
BEST_MODEL_FILE = "best.safetensors"
PLACES: Final = ".places"
_VALUES_AT_ONCE: Final = 1 << 22
_FORMAT_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


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
    facts = _facts(path)
    _fill(_state(module), path)
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
    path: Path, identity: dict[str, Any], state: Mapping[str, Tensor | PickedRows], progress: Any
) -> None:
    """Write a checkpoint of any number of models; ``progress`` as JSON."""
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
    RequestError: as :func:`load_checkpoint`.
    """
    progress = read_progress(path, identity)
    _fill(state, path, partly=partly)
    return progress


def read_progress(path: Path, identity: dict[str, Any]) -> Any:
    """The progress that :func:`save_training` wrote.

    Raises
    ------
    RequestError: as :func:`load_checkpoint`.
    """
    facts = _facts(path)
    found = facts["identity"]
    for key, value in identity.items():
        if found.get(key) != value:
            raise RequestError(
                f"{path}: cannot resume: {key} was {found.get(key)!r}, now it is {value!r}"
            )
    return facts["progress"]


def run_identity(config: Config, graph: PartitionedGraph, cluster: Cluster) -> dict[str, Any]:
    """What must be equal for a run to continue another: all that decides its bits."""
    of_run = ("epochs", "run_dir", "resume", "checkpoint_every", "record_gradients", "replay")
    # What a machine makes of the last two is compared instead.
    free = {("train", key) for key in (*of_run, "device", "threads")}
    free |= {("learnable", "folder"), ("learnable", "storage"), ("sampler", "device")}
    values = config.model_dump()
    identity = {
        f"{section}.{key}": value
        for section in ("model", "sampler", "train", "hop", "cooperative", "raf", "learnable")
        for key, value in values[section].items()
        if (section, key) not in free
    }
    return identity | {
        "the graph's checksum": _checksum(graph.path / "graph.json"),
        "the partition's checksum": _checksum(graph.path / "partition.json"),
        "the number of ranks": cluster.world,
        "ranks a server": cluster.ranks_per_server,
        "CPU threads a rank": torch.get_num_threads(),
        "device": cluster.device.type,
        "messages through host memory": cluster.through_host,
        "kernels": backend(cluster.device),
        "torch": torch.__version__,
    }


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.state_dict())


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor | PickedRows],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write tensors, with facts about them as JSON; an older file stays whole until this one is.
    Picked rows are written as a tensor, and beside it, with :data:`PLACES` behind its name, where
    they belong.

    The format is safetensors'. Its own writer makes copies of all tensors before it writes any;
    this one copies a piece at a time, for tables that are larger than memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    header: dict[str, Any] = {"__metadata__": {"facts": json.dumps(dict(facts))}}
    end = 0
    written = dict(tensors)
    for name, value in tensors.items():
        if isinstance(value, PickedRows):
            written[f"{name}{PLACES}"] = value.places
    for name, value in written.items():
        start, end = end, end + value.shape.numel() * value.dtype.itemsize
        header[name] = {
            "dtype": _FORMAT_NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for value in written.values():
            rows = value.reshape(1) if isinstance(value, Tensor) and not value.dim() else value
            for part in rows.split(_rows_at_once(rows.shape)):
                # A tensor of one number may have any stride, which a view would trip over.
                piece = torch.empty(part.shape, dtype=part.dtype).copy_(part.detach())
                file.write(piece.view(-1).view(torch.uint8).numpy().data)


def _fill(state: Mapping[str, Tensor], path: Path, *, partly: bool = False) -> None:
    """Fill tensors in place, a piece at a time."""
    with _opened(path) as file, torch.no_grad():
        found = set(file.keys())
        named = {each for each in found if not each.endswith(PLACES)}
        if named - state.keys() or (state.keys() - named and not partly):
            raise RequestError(
                f"{path}: of another model: has {sorted(named)}, expected {sorted(state)}"
            )
        for name in sorted(named):
            target, stored = state[name], file.get_slice(name)
            shape, places = list(target.shape), None
            if f"{name}{PLACES}" in found:
                places = file.get_tensor(f"{name}{PLACES}").to(target.device)
                shape[0] = len(places)
            if shape != stored.get_shape():
                raise RequestError(
                    f"{path}: {name}: expected shape {tuple(shape)}, "
                    f"found {tuple(stored.get_shape())}"
                )
            if target.dim() == 0:
                target.copy_(file.get_tensor(name))
                continue
            rows = _rows_at_once(torch.Size(shape))
            for start in range(0, shape[0], rows):
                part = slice(start, start + rows)
                if places is None:
                    target[part] = stored[part]
                else:
                    target.index_copy_(0, places[part], stored[part].to(target.device))


def _rows_at_once(shape: torch.Size) -> int:
    return max(1, _VALUES_AT_ONCE * shape[0] // max(1, shape.numel()))


def _facts(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        facts: dict[str, Any] = json.loads((file.metadata() or {})["facts"])
        return facts


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of tensors; what is wrong with it is told as such."""
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: not a file that Hopper wrote: {error}") from error
