"""What benchmarks of a typed model's layers have in common: options, configuration, and record."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

import torch

from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.config import Config, make_config
from hopper.device_choice import choose_device
from hopper.whole_files import write_text

FANOUTS: Final = [25, 20]
BATCH_SIZE: Final = 1024


def layer_configs(path: Path, model: str, hidden: int) -> dict[bool, Config]:
    """Return two layers on a partitioned graph, by ``model.merge``; R-GCN without root weight, as
    PyG's is compared."""
    root = {"root_weight": False} if model == "rgcn" else {}
    return {
        merge: make_config(
            {
                "data": {"partitioned": str(path)},
                "model": {"name": model, "layers": 2, "hidden": hidden, "merge": merge} | root,
                "sampler": {"fanouts": FANOUTS},
                "train": {"engine": "model_centric", "batch_size": BATCH_SIZE},
            }
        )
        for merge in (False, True)
    }


def header(device: torch.device, rounds: int) -> dict[str, Any]:
    """Return when, where and with what something was measured."""
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


@dataclass(frozen=True)
class MeasureRequest:
    """The options of a measurement: what is measured, how often, and where results go."""

    partitioned: list[Path]
    models: list[str]
    out: Path
    hidden: int
    rounds: int
    batches: int
    """of each graph; 0 = a whole epoch"""
    device: torch.device

    def cells(self) -> Iterator[tuple[Path, str]]:
        """Yield every graph with every model."""
        return product(self.partitioned, self.models)

    def write(self, file: str, result: Mapping[str, Any]) -> None:
        """Write a result, whole or not at all."""
        self.out.mkdir(parents=True, exist_ok=True)
        write_text(self.out / file, format_result(result))


def ask(
    arguments: Sequence[str] | None, description: str, *, models: str, rounds: int, batches: int
) -> MeasureRequest:
    """Read the options, with these defaults."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("partitioned", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=models)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--batches", type=int, default=batches, help="0: a whole epoch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = vars(parser.parse_args(arguments))
    return MeasureRequest(
        **options
        | {"models": options["models"].split(","), "device": choose_device(options["device"])}
    )
