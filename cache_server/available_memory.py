"""The memory that this process can still allocate.

Control groups limit it. So does the environment variable ``HOPPER_MEMORY_LIMIT`` (bytes), by which
a launcher divides a machine among its servers and their ranks. On emulated hosts it is the host's.
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
    ("memory.max", "memory.current", "file", "shmem"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
)
"""of versions 2 and 1: the files with the limit and the usage, and the keys of the cached part and
of tmpfs's share of it in ``memory.stat``"""


def available_memory(groups: Sequence[Path] | None = None) -> int:
    """Return the bytes that this process can still allocate.

    This is the least of what the machine, its control groups (``groups``: their folders) and
    ``HOPPER_MEMORY_LIMIT`` leave. Pages that cache files count as free; those of tmpfs do not,
    since they have no file behind them.
    """
    searched = own_groups() if groups is None else groups
    limits = [left for group in searched if (left := _left(group)) is not None]
    limit = os.environ.get(LIMIT_VARIABLE, "")
    if limit.isdecimal():
        used = psutil.Process().memory_info()
        # Resident pages of mapped files can be dropped at any time, so they count as free.
        limits.append(max(0, int(limit) - (used.rss - getattr(used, "shared", 0))))
    return min([int(psutil.virtual_memory().available), *limits])


def memory_share(servers: int) -> dict[str, str]:
    """Return the environment variable that gives each of several servers on this machine, and each
    of its ranks, an equal share of the memory that is available now.

    So processes that read the same files of features decide alike whether all of them fit. A limit
    that the environment has already stays.
    """
    return {LIMIT_VARIABLE: os.environ.get(LIMIT_VARIABLE) or str(available_memory() // servers)}


def own_groups() -> list[Path]:
    """Return the folders of this process's control groups and their ancestors, in both versions."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups: dict[Path, None] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = [_CONTROL_GROUPS, _CONTROL_GROUPS / "unified"]
        elif "memory" in controllers.split(","):
            mounts = [_CONTROL_GROUPS / "memory"]
        else:
            continue
        for mount in mounts:
            groups |= dict.fromkeys(_with_ancestors(mount, path))
    return list(groups)


def _with_ancestors(mount: Path, path: str) -> Iterator[Path]:
    """Yield a group's folder and its ancestors'. A container may see the path's end only."""
    parts = Path(path.lstrip("/")).parts
    candidates = (mount.joinpath(*parts[first:]) for first in range(len(parts) + 1))
    group = next((folder for folder in candidates if folder.is_dir()), mount)
    yield group
    yield from (parent for parent in group.parents if parent == mount or mount in parent.parents)


def _left(group: Path) -> int | None:
    """Return the bytes that a control group's limit leaves; None if it has no limit."""
    for limit_file, used_file, cache, tmpfs in _LIMIT_FILES:
        try:
            limit = (group / limit_file).read_text().strip()
            used = int((group / used_file).read_text())
            stat = (group / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue
        if limit == "max":
            return None
        pages = dict(line.split() for line in stat if len(line.split()) == 2)
        cached = int(pages.get(cache, "0")) - int(pages.get(tmpfs, "0"))
        return max(0, int(limit) - used + cached)
    return None
