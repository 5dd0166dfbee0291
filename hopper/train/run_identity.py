"""What decides the bits of a run, and how it may differ from the checkpoint that it continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from cache_server.draws.spec import VERSION
from hopper.cluster.cluster import Cluster
from hopper.config import Config
from hopper.engines import find_engine
from hopper.errors import RequestError
from hopper.graph.columns import (
    columns_from_json,
    find_class_difference,
    find_column_difference,
    to_plain,
)
from hopper.graph.schema_json import schema_fingerprint
from hopper.ops import backend
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division

RANKS: Final = "the number of ranks"
_DIVISION: Final = "the division of the graph"
_EXACT: Final = "whether the engine is exact"
_COLUMNS: Final = "columns of features"
_CLASSES: Final = "names of classes"
_NOT_COMPARED: Final = {
    "train": {
        "epochs",
        "run_dir",
        "resume",
        "checkpoint_every",
        "record_gradients",
        "replay",
        "keep_checkpoints",
        "checkpoint_copy",
        "init_from",
        "loggers",
        "loggers_options",
        "score_training",
        "gradient_norms",
        "on_nonfinite",
        # The actual device and number of threads are compared, not the configured ones.
        "device",
        "threads",
    },
    "learnable": {"folder", "storage"},
    "sampler": {"device"},
}
_MOVABLE: Final = frozenset(
    {
        "train.engine",
        "train.batch_size",
        "train.micro_batch",
        "hop.migrate",
        "hop.pregather",
        "hop.merge",
        "hop.merge_selection",
        "raf.reduce",
        _DIVISION,
        RANKS,
        "ranks a server",
        "nodes of a server",
        "CPU threads a rank",
        "device",
        "messages through host memory",
        "kernels",
        "torch",
    }
)
"""Keys that change only the rounding of an exact run, as long as its global batch is the same."""


def run_identity(config: Config, graph: PartitionedGraph, cluster: Cluster) -> dict[str, Any]:
    """Return all facts that decide the bits of a run, compared when a run continues a
    checkpoint."""
    values = config.model_dump()
    identity = {
        f"{section}.{key}": value
        for section in Config.model_fields
        if section not in ("data", "cache", "cluster", "pipeline")
        for key, value in values[section].items()
        if key not in _NOT_COMPARED.get(section, ())
    }
    return identity | {
        "data.features": values["data"]["features"],
        "data.features_options": values["data"]["features_options"],
        "the version of draws": VERSION,
        "the graph": schema_fingerprint(graph.schema),
        _COLUMNS: {name: to_plain(of) for name, of in graph.schema.columns.items()},
        _CLASSES: graph.class_names(),
        _DIVISION: read_division(graph.path),
        "the roots of an iteration": "all"
        if config.sampler.kind == "full"
        else config.train.batch_size * cluster.world,
        _EXACT: not find_engine(config).kind.spec.approximations(config),
        RANKS: cluster.world,
        "ranks a server": cluster.ranks_per_server,
        "nodes of a server": graph.placement(cluster.ranks_per_server).dealing,
        "CPU threads a rank": torch.get_num_threads(),
        "device": cluster.device.type,
        "messages through host memory": cluster.through_host,
        "kernels": backend(cluster.device),
        "torch": torch.__version__,
    }


def find_differences(saved: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, str]:
    """Describe each difference between a run's identity and a checkpoint's, by key."""
    return {
        key: f"{key} was {saved.get(key)!r}, now it is {value!r}"
        for key, value in identity.items()
        if saved.get(key) != value
    }


def find_moves(path: Path, saved: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Describe the differences between a run and the checkpoint in ``path`` that it continues;
    refuse those that change more than the rounding."""
    encoding = _find_encoding_difference(saved, identity)
    if encoding:
        raise RequestError(
            f"{path}: cannot resume: {encoding}; import the new data with --encode-like, given the "
            "graph of the run"
        )
    moved = find_differences(saved, identity)
    fixed = [key for key in moved if key not in _MOVABLE]
    if moved and not (_is_movable(saved) and _is_movable(identity)):
        fixed += moved
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


def _is_movable(identity: Mapping[str, Any]) -> bool:
    """Return whether a run trains one model, the same under every exact engine and on any
    servers."""
    return bool(
        identity.get(_EXACT)
        and identity.get("hop.replicas") == "synchronous"
        and identity.get("learnable.tables") != "per_server_table"
    )
