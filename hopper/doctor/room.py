"""Room for a run: memory, and space on disks. What a run takes is an estimate."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cache_server.available_memory import available_memory
from hopper.config import Config
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.doctor.sizes import Sizes
from hopper.hetero.cache_plan import parse_cache_size
from hopper.partition.memory import format_bytes
from hopper.rehearsal.memory import process_bytes

_SPARE: Final = 1 << 30
"""of a disk: of less than this beyond what a run writes, a warning is given"""


def check_memory(case: Case, sizes: Sizes) -> Iterator[Finding]:
    """Free memory against what the ranks of this machine hold."""
    config, ranks, free = case.config, case.ranks_here, available_memory()
    parts = {
        "interpreter": process_bytes(),
        "model": sizes.parameters + sizes.gradients + sizes.state,
        "learnable rows": _records_in_memory(case, sizes) // case.known.ranks,
        "cache": _cache_bytes(config),
    }
    each, waiting = sum(parts.values()), _waiting_bytes(config)
    told = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    found = (
        f"{format_bytes(free)} free; an estimate for {case.told_ranks}: {format_bytes(each)} each "
        f"({told}), and up to {format_bytes(waiting)} each that waits in [pipeline]; not counted: "
        "what an iteration computes with, and pages of the graph's files"
    )
    advice = "`hopper plan` rehearses a few iterations to tell a rank's memory"
    if ranks * each > free:
        yield warning("memory", found, f"fewer ranks, or a smaller cache; {advice}")
    elif ranks * (each + waiting) > free:
        yield warning("memory", found, f"a smaller pipeline.memory; {advice}")
    else:
        yield fine("memory", found)


def _records_in_memory(case: Case, sizes: Sizes) -> int:
    return 0 if case.config.learnable.storage == "mmap" else sizes.records


def _cache_bytes(config: Config) -> int:
    """Of a rank's cache in host memory; 0 where its size is a share of what is not known yet."""
    if config.cache.policy == "none" or config.cache.memory == "device":
        return 0
    size = parse_cache_size(config.cache.size)
    return size if isinstance(size, int) else 0


def _waiting_bytes(config: Config) -> int:
    """Bounds of what is prepared ahead, of plans and again of rows."""
    own = config.pipeline
    if not own.depth:
        return 0
    return 2 * own.nbytes + (own.lookahead_nbytes if own.lookahead else 0)


def check_disk(case: Case, sizes: Sizes) -> Iterator[Finding]:
    """Free space for what a run writes, and whether it may write there."""
    config, train = case.config, case.config.train
    checkpoints = train.keep_checkpoints + 1 if train.checkpoint_every else 0
    whole = sizes.models * (sizes.parameters + sizes.state) + sizes.records
    ends = sizes.models * sizes.parameters + sizes.rows
    wanted = {Path(train.run_dir or "runs"): ("train.run_dir", checkpoints * whole + ends)}
    if config.learnable.storage == "mmap" and sizes.records:
        share = sizes.records * case.ranks_here // case.known.ranks
        folder = Path(config.learnable.folder or train.run_dir or "runs")
        before = wanted.get(folder, ("", 0))[1]
        wanted[folder] = ("learnable.folder", before + share)
    for folder, (key, size) in wanted.items():
        yield _check_folder(key, folder, size)


def _check_folder(key: str, folder: Path, needed: int) -> Finding:
    subject = f"disk of {key}"
    there = _nearest(folder)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        advice = f"name another folder in {key}"
        return wrong(subject, f"{folder}: {there} cannot be written to", advice)
    free = shutil.disk_usage(there).free
    found = (
        f"{folder}: {format_bytes(free)} free; a run writes about {format_bytes(needed)} (an "
        "estimate) besides its logs"
    )
    if free < needed:
        return wrong(subject, found, f"make room, or name another folder in {key}")
    if free < needed + _SPARE:
        return warning(subject, found, "make room: a full disk ends a run")
    return fine(subject, found)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return next(each for each in (folder, *folder.parents) if each.exists())
