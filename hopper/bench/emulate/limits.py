"""Bounds on a host's CPU time and memory, by cgroups of version 1 or 2."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from hopper.bench.emulate.network import NotAvailable, is_leftover, is_ours, own_name

# A short period lets a host that has used up its share wait a few milliseconds, not tens of them.
_PERIOD_MICROSECONDS: Final = 20_000
_REMOVE_SECONDS: Final = 5.0


class _Hierarchy(NamedTuple):
    """A mounted hierarchy of cgroups: its version (1 or 2), its controllers, where it is mounted,
    and the group of this process."""

    version: int
    controllers: Sequence[str]
    mount: Path
    group: Path


def bound_hosts(hosts: int, cpus: float | None, memory: int | None) -> tuple[tuple[Path, ...], ...]:
    """Make the cgroups of every host, which :func:`remove_limits` removes.

    A host may use a number of CPUs and of bytes; None = no bound. Returned are, by host, the groups
    that its processes must enter.
    """
    bounds = {}
    if cpus is not None:
        quota, period = str(round(cpus * _PERIOD_MICROSECONDS)), str(_PERIOD_MICROSECONDS)
        bounds["cpu"] = {
            1: {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota},
            2: {"cpu.max": f"{quota} {period}"},
        }
    if memory is not None:
        bounds["memory"] = {
            1: {"memory.limit_in_bytes": str(memory)},
            2: {"memory.max": str(memory)},
        }
    parents = {controller: _find_parent(controller) for controller in bounds}
    groups: list[dict[Path, None]] = [{} for _ in range(hosts)]
    for controller, (version, parent) in parents.items():
        for index, host in enumerate(groups):
            group = parent / own_name(f"host{index}")
            try:
                group.mkdir(exist_ok=True)
                for file, text in bounds[controller][version].items():
                    (group / file).write_text(text)
            except OSError as error:
                raise NotAvailable(f"cgroup {group}: cannot bound {controller}: {error}") from error
            host[group] = None
    return tuple(tuple(host) for host in groups)


def remove_limits(chosen: Callable[[str], bool] = is_ours) -> list[str]:
    """Remove the cgroups whose names are chosen, and return these names.

    All processes in them must have ended.
    """
    groups = [path for path in _groups() if chosen(path.name)]
    deadline = time.monotonic() + _REMOVE_SECONDS
    for group in groups:
        while group.exists():
            try:
                group.rmdir()
            except OSError as error:
                # Killed processes take a moment to leave the group.
                if time.monotonic() > deadline:
                    raise NotAvailable(f"cgroup {group}: cannot remove it: {error}") from error
                time.sleep(0.02)
    return [group.name for group in groups]


def ran_out_of_memory(cgroups: Sequence[Path]) -> bool:
    """Return whether the kernel has killed a process of these groups for lack of memory."""
    for file in (group / name for group in cgroups for name in _KILLS):
        if file.exists():
            words = file.read_text().split()
            counts = dict(zip(words[::2], words[1::2], strict=False))
            if int(counts.get("oom_kill", "0")) > 0:
                return True
    return False


_KILLS: Final = ("memory.oom_control", "memory.events")
"""The files in which a group of version 1 or 2 counts processes that the kernel killed."""


def _find_parent(controller: str) -> tuple[int, Path]:
    """Return the version of cgroups, and a group that can have children with this controller.

    If possible it is this process's own group, whose bounds then hold for the children too.
    """
    for hierarchy in _hierarchies():
        if controller not in hierarchy.controllers:
            continue
        group = hierarchy.group
        if not os.access(group, os.W_OK):
            raise NotAvailable(f"cgroup {group} (controller {controller}) is not writable")
        if hierarchy.version == 1:
            return 1, group
        # In version 2 a group cannot have both processes and bounded children.
        for parent in (group, *group.parents):
            try:
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                return 2, parent
            except OSError:
                if parent == hierarchy.mount:
                    break
    raise NotAvailable(f"no cgroup hierarchy here offers the controller {controller!r}")


def _hierarchies() -> Iterator[_Hierarchy]:
    """Yield the hierarchies that are mounted here."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        # Version 2 has an empty list of controllers.
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    for mounted in psutil.disk_partitions(all=True):
        if mounted.fstype not in ("cgroup", "cgroup2"):
            continue
        mount, version = Path(mounted.mountpoint), 1 if mounted.fstype == "cgroup" else 2
        controllers = mounted.opts.split(",") if version == 1 else [""]
        path = next((own[name] for name in controllers if name in own), "/")
        group = mount / path.lstrip("/")
        if not group.is_dir():
            # In a container the group itself is what is mounted.
            group = mount
        if version == 2:
            listing = group / "cgroup.controllers"
            controllers = listing.read_text().split() if listing.exists() else []
        yield _Hierarchy(version, controllers, mount, group)


def _groups() -> list[Path]:
    """Return all cgroups with names of the emulator, of this process and of ended ones."""
    return [
        Path(folder) / name
        for hierarchy in _hierarchies()
        if hierarchy.version == 2 or {"cpu", "memory"}.intersection(hierarchy.controllers)
        for folder, children, _files in os.walk(hierarchy.mount)
        for name in children
        if is_ours(name) or is_leftover(name)
    ]
