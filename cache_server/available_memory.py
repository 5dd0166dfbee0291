"""How much memory this process can still have.

Control groups bound it, and so does ``HOPPER_MEMORY_LIMIT`` (bytes of this process), which who
starts it may set where it cannot see its groups, as on emulated hosts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

LIMIT_VARIABLE: Final = "HOPPER_MEMORY_LIMIT"
_CONTROL_GROUPS: Final = Path("/sys/fs/cgroup")
_LIMIT_FILES: Final = (
    ("memory.max", "memory.current", "file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)
"""of version 2 and 1: the limit, what is used, and what of that is a cache of files"""


def available_memory(groups: Sequence[Path] | None = None) -> int:
    """Bytes that can still be had: of the machine, or of a control group that this process is in,
    if that is less. What caches files counts as free.

    Parameters
    ----------
    groups: folders of control groups; None = this process's own, and those above it.
    """
    found = own_groups() if groups is None else groups
    known = [left for group in found if (left := _left(group)) is not None]
    limit = os.environ.get(LIMIT_VARIABLE, "")
    if limit.isdecimal():
        used = psutil.Process().memory_info()
        # Pages of mapped files are among the resident ones, and free as those of a cache are.
        known.append(max(0, int(limit) - (used.rss - getattr(used, "shared", 0))))
    return min([int(psutil.virtual_memory().available), *known])


def own_groups() -> list[Path]:
    """The control groups of this process, and those above them; of both versions."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: dict[Path, None] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [_CONTROL_GROUPS, _CONTROL_GROUPS / "unified"]
        elif "memory" in controllers.split(","):
            mounts = [_CONTROL_GROUPS / "memory"]
        else:
            continue
        for mount in mounts:
            found |= dict.fromkeys(_up_to(mount, path))
    return list(found)


def _up_to(mount: Path, path: str) -> Iterator[Path]:
    """A group and those above it. A container may see a part of the path alone, or nothing."""
    parts = Path(path.lstrip("/")).parts
    seen = (mount.joinpath(*parts[first:]) for first in range(len(parts) + 1))
    group = next((each for each in seen if each.is_dir()), mount)
    yield group
    yield from (each for each in group.parents if each == mount or mount in each.parents)


def _left(group: Path) -> int | None:
    for limit_file, used_file, cache in _LIMIT_FILES:
        try:
            limit = (group / limit_file).read_text().strip()
            used = int((group / used_file).read_text())
            stat = (group / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue
        if limit == "max":
            return None
        cached = dict(line.split() for line in stat if len(line.split()) == 2).get(cache, "0")
        return max(0, int(limit) - used + int(cached))
    return None
