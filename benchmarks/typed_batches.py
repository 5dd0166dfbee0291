"""What benchmarks of a typed model's layers have in common: options, configuration, and record."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from hopper.bench.machine import commit, machine, versions
from hopper.config import Config, make_config

FANOUTS: Final = [25, 20]
BATCH_SIZE: Final = 1024


def layer_config(path: Path, model: str, hidden: int, *, merge: bool) -> Config:
    """Two layers on a partitioned graph; R-GCN without root weight, as PyG's is compared."""
    root = {"root_weight": False} if model == "rgcn" else {}
    return make_config(
        {
            "data": {"partitioned": str(path)},
            "model": {"name": model, "layers": 2, "hidden": hidden, "merge": merge} | root,
            "sampler": {"fanouts": FANOUTS},
            "train": {"engine": "model_centric", "batch_size": BATCH_SIZE},
        }
    )


def header(device: torch.device, rounds: int) -> dict[str, Any]:
    """When, where and with what something was measured."""
    return {
        "schema": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "device": device.type if device.type == "cpu" else torch.cuda.get_device_name(),
        "rounds": rounds,
        "fanouts": FANOUTS,
    }


def make_parser(
    description: str, *, models: str, rounds: int, batches: int
) -> argparse.ArgumentParser:
    """The options, with their defaults."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("partitioned", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=models)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--batches", type=int, default=batches, help="0: a whole epoch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser
