"""Bounds on a host's CPU time and memory, by cgroups of version 1 or 2."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopper.bench.emulate.commands import NotAvailable
from hopper.bench.emulate.owner import is_leftover, is_ours, own_name

CPU: Final = "cpu"
MEMORY: Final = "memory"

# A short period lets a host that has used up its share wait a few milliseconds, not tens of them.
_PERIOD_MICROSECONDS: Final = 20_000
_REMOVE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class _Mount:
    """A cgroup hierarchy.

    Attributes
    ----------
    version: 1 or 2.
    path: its mount point.
    group: the group of this process.
    """

    version: int
    path: Path
    group: Path


def bound_hosts(hosts: int, cpus: float | None, memory: int | None) -> tuple[tuple[Path, ...], ...]:
    """Make the cgroups of every host, which :func:`remove_limits` removes.

    Parameters
    ----------
    cpus: CPUs that a host may use; None = no bound.
    memory: bytes that a host may use; None = no bound.

    Returns
    -------
    By host, the groups that its processes must enter.

    Raises
    ------
    NotAvailable: names the controller that is missing or cannot be used.
    """
    limits = {CPU: cpus, MEMORY: memory}
    controllers = [name for name, bound in limits.items() if bound is not None]
    parents = {name: _find_parent(name) for name in controllers}
    return tuple(_make_groups(own_name(f"host{i}"), parents, cpus, memory) for i in range(hosts))


def remove_limits() -> None:
    """Remove the cgroups of this process. All processes in them must have ended.

    Raises
    ------
    NotAvailable: a group could not be removed.
    """
    _remove([path for path in _groups() if is_ours(path.name)])


def remove_leftover_limits() -> list[str]:
    """Remove the cgroups that ended processes have left; return their names."""
    leftovers = [path for path in _groups() if is_leftover(path.name)]
    _remove(leftovers)
    return sorted({path.name for path in leftovers})


def ran_out_of_memory(cgroups: Sequence[Path]) -> bool:
    """Return whether the kernel has killed a process of these groups for lack of memory."""
    for group in cgroups:
        for name in ("memory.oom_control", "memory.events"):
            try:
                lines = (group / name).read_text().splitlines()
            except OSError:
                continue
            counts = dict(line.split() for line in lines if len(line.split()) == 2)
            if int(counts.get("oom_kill", "0")) > 0:
                return True
    return False


def _make_groups(
    name: str, parents: dict[str, tuple[int, Path]], cpus: float | None, memory: int | None
) -> tuple[Path, ...]:
    """Make a host's cgroups and set their bounds."""
    groups: list[Path] = []
    for controller, (version, parent) in parents.items():
        group = parent / name
        try:
            group.mkdir(exist_ok=True)
            if controller == CPU and cpus is not None:
                _bound_cpus(group, version, cpus)
            if controller == MEMORY and memory is not None:
                file = "memory.limit_in_bytes" if version == 1 else "memory.max"
                (group / file).write_text(str(memory))
        except OSError as error:
            raise NotAvailable(f"cgroup {group}: cannot bound {controller}: {error}") from error
        if group not in groups:
            groups.append(group)
    return tuple(groups)


def _bound_cpus(group: Path, version: int, cpus: float) -> None:
    quota = round(cpus * _PERIOD_MICROSECONDS)
    if version == 2:
        (group / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def _find_parent(controller: str) -> tuple[int, Path]:
    """Return the version of cgroups, and a group that can have children with this controller.

    If possible it is this process's own group, whose bounds then hold for the children too.
    """
    for mount in _mounts(controller):
        if not os.access(mount.group, os.W_OK):
            raise NotAvailable(f"cgroup {mount.group} (controller {controller}) is not writable")
        if mount.version == 1:
            return 1, mount.group
        # In version 2 a group cannot have both processes and bounded children.
        for parent in (mount.group, *mount.group.parents):
            try:
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                return 2, parent
            except OSError:
                if parent == mount.path:
                    break
    raise NotAvailable(f"no cgroup hierarchy here offers the controller {controller!r}")


def _mounts(controller: str) -> Iterator[_Mount]:
    """Yield the hierarchies that have a controller. Usual systems have at most one."""
    own_paths = _own_paths()
    for version, names, root, path in _cgroup_mounts():
        if version == 2:
            folder = _below(path, root, own_paths.get("", "/"))
            try:
                names = (folder / "cgroup.controllers").read_text().split()
            except OSError:
                names = []
        if controller in names:
            yield _Mount(version, path, _below(path, root, own_paths.get(
                controller if version == 1 else "", "/")))  # fmt: skip


def _cgroup_mounts() -> Iterator[tuple[int, list[str], str, Path]]:
    """Yield the version, controllers (of version 1 only), root and mount point of each
    hierarchy."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        mount, _, details = line.partition(" - ")
        root, path = mount.split()[3:5]
        filesystem, _source, options = details.split(maxsplit=2)
        if filesystem in ("cgroup", "cgroup2"):
            version = 1 if filesystem == "cgroup" else 2
            yield version, options.split(","), root, Path(path)


def _own_paths() -> dict[str, str]:
    """Return this process's path in its hierarchy by controller; "" stands for version 2."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            paths[name] = path
    return paths


def _below(mount: Path, root: str, cgroup: str) -> Path:
    """Return the folder of a path in a hierarchy; the mount point if the path is outside of the
    mount."""
    relative = cgroup.removeprefix(root) if root != "/" else cgroup
    path = mount / relative.lstrip("/")
    return path if path.is_dir() else mount


def _groups() -> list[Path]:
    """Return all cgroups with names of the emulator, of this process and of others."""
    groups: list[Path] = []
    for version, names, _root, path in _cgroup_mounts():
        if version == 1 and not {CPU, MEMORY} & set(names):
            continue
        for folder, children, _files in os.walk(path):
            groups += [
                Path(folder) / name for name in children if is_ours(name) or is_leftover(name)
            ]
    return groups


def _remove(groups: Sequence[Path]) -> None:
    deadline = time.monotonic() + _REMOVE_SECONDS
    for group in groups:
        while True:
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError as error:
                # Killed processes take a moment to leave the group.
                if time.monotonic() > deadline:
                    raise NotAvailable(f"cgroup {group}: cannot remove it: {error}") from error
                time.sleep(0.02)
