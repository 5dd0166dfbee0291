"""How much memory this process can still have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

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
            found |= dict.fromkeys(_up_to(mount, mount / path.lstrip("/")))
    return list(found)


def _up_to(mount: Path, group: Path) -> Iterator[Path]:
    # A container may see its own group as the root, whatever the path says.
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
