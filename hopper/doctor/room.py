"""Checks of the memory and disk space for a run. The needs of the run are estimates."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from cache_server.available_memory import available_memory
from hopper.config import Config
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.build import make_learning
from hopper.engines.learnable_tables import make_tables
from hopper.engines.training_parts import make_optimizer
from hopper.engines.trial_configs import all_configs
from hopper.features.cache_plan import parse_cache_size
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.migrate.flat_model import FlatModel
from hopper.partition.memory import format_bytes

_SPARE: Final = 1 << 30
"""Bytes that a disk should have free besides those that a run writes."""


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes, and the number of models.

    Attributes
    ----------
    models: number of models.
    parameters, gradients, state: sizes of the largest model; state is that of its optimiser.
    rows: learnable rows of all ranks.
    records: learnable rows with their optimiser's state and the best rows so far.
    """

    models: int
    parameters: int
    gradients: int
    state: int
    rows: int
    records: int


def measure_sizes(request: Request) -> Sizes:
    """Make each model once and measure it; raises the errors of :func:`make_model`."""
    configs = all_configs(request.config, request.ranks)
    by_model = [_measure_model(request.under(config)) for config in configs]
    learning, rows, records = make_learning(request), 0, 0
    for table in make_tables(request):
        size = int(table.offsets[-1]) * learning.dim * learning.dtype.itemsize
        rows += size
        copies = OPTIMIZERS[learning.optimizer].parts + learning.keeps
        records += size * (1 if table.frozen else 1 + copies)
    return Sizes(len(configs), *max(by_model, key=sum), rows, records)


def _measure_model(request: Request) -> tuple[int, int, int]:
    packed = FlatModel(make_model(request))
    state = make_optimizer(request.config, packed, iterations=1).state().values()
    parameters = packed.parameters.nbytes
    return parameters, packed.buffer.nbytes - parameters, sum(tensor.nbytes for tensor in state)


def check_memory(case: Case, sizes: Sizes) -> Iterator[Finding]:
    """Compare free memory with what the ranks of this machine need."""
    config, ranks, free = case.config, case.ranks_here, available_memory()
    records = 0 if config.learnable.storage == "mmap" else sizes.records
    parts = {
        "interpreter": psutil.Process().memory_info().rss,
        "model": sizes.parameters + sizes.gradients + sizes.state,
        "learnable rows": records // case.graph_request.ranks,
        "cache": _cache_bytes(config),
    }
    rank_bytes, waiting = sum(parts.values()), _waiting_bytes(config)
    parts_text = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    text = (
        f"{format_bytes(free)} free; an estimate for {case.ranks_text}: {format_bytes(rank_bytes)} "
        f"each ({parts_text}), and up to {format_bytes(waiting)} each that waits in [pipeline]; "
        "not counted: what an iteration computes with, and pages of the graph's files"
    )
    advice = "`hopper plan` rehearses a few iterations to tell a rank's memory"
    # Ranks that are forked share most of an interpreter.
    least = parts["interpreter"] + ranks * (rank_bytes - parts["interpreter"])
    if least > free:
        advice = f"expected {format_bytes(least)} at least; fewer ranks, or a smaller cache"
        yield wrong("memory", text, advice)
    elif ranks * rank_bytes > free:
        yield warning("memory", text, f"fewer ranks, or a smaller cache; {advice}")
    elif ranks * (rank_bytes + waiting) > free:
        yield warning("memory", text, f"a smaller pipeline.memory; {advice}")
    else:
        yield fine("memory", text)


def _cache_bytes(config: Config) -> int:
    """Return the bytes of a rank's cache in host memory; 0 if its size is a share of an unknown
    number."""
    if config.cache.policy == "none" or config.cache.memory == "device":
        return 0
    size = parse_cache_size(config.cache.size)
    return size if isinstance(size, int) else 0


def _waiting_bytes(config: Config) -> int:
    """Return the most bytes that the pipeline holds ahead: plans, and as many bytes of rows."""
    pipeline = config.pipeline
    if not pipeline.depth:
        return 0
    return 2 * pipeline.nbytes + (pipeline.lookahead_nbytes if pipeline.lookahead else 0)


def check_disk(case: Case, sizes: Sizes) -> Iterator[Finding]:
    """Check the free space and the permission for what a run writes."""
    config, train = case.config, case.config.train
    checkpoints = train.keep_checkpoints + 1 if train.checkpoint_every else 0
    checkpoint_bytes = sizes.models * (sizes.parameters + sizes.state) + sizes.records
    result_bytes = sizes.models * sizes.parameters + sizes.rows
    run_bytes = checkpoints * checkpoint_bytes + result_bytes
    folders = {Path(train.run_dir or "runs"): ("train.run_dir", run_bytes)}
    if config.learnable.storage == "mmap" and sizes.records:
        share = sizes.records * case.ranks_here // case.graph_request.ranks
        folder = Path(config.learnable.folder or train.run_dir or "runs")
        before = folders.get(folder, ("", 0))[1]
        folders[folder] = ("learnable.folder", before + share)
    for folder, (key, size) in folders.items():
        yield _check_folder(key, folder, size)


def _check_folder(key: str, folder: Path, required: int) -> Finding:
    subject = f"disk of {key}"
    absolute = folder.absolute()
    existing = next(place for place in (absolute, *absolute.parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        advice = f"name another folder in {key}"
        return wrong(subject, f"{folder}: {existing} cannot be written to", advice)
    free = shutil.disk_usage(existing).free
    text = (
        f"{folder}: {format_bytes(free)} free; a run writes about {format_bytes(required)} (an "
        "estimate) besides its logs"
    )
    if free < required:
        return wrong(subject, text, f"make room, or name another folder in {key}")
    if free < required + _SPARE:
        return warning(subject, text, "make room: a full disk ends a run")
    return fine(subject, text)
