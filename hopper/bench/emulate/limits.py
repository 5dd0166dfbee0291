"""What a host may use of this machine: CPU quota and memory, by cgroups of version 1 or 2."""

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

# Short, so that a host that has used its share waits some milliseconds, and not some tens of them.
_PERIOD_MICROSECONDS: Final = 20_000
_REMOVE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class _Mount:
    """A cgroup hierarchy. version: 1 or 2; path: its mount point; own: this process's group."""

    version: int
    path: Path
    own: Path


def bound_hosts(hosts: int, cpus: float | None, memory: int | None) -> tuple[tuple[Path, ...], ...]:
    """Make the cgroups of every host; :func:`remove_limits` ends them.

    Parameters
    ----------
    cpus: CPUs that a host may use; None = no bound.
    memory: bytes that a host may use; None = no bound.

    Returns
    -------
    Per host, the groups that its processes have to enter.

    Raises
    ------
    NotAvailable: names the controller that is missing or cannot be used.
    """
    wanted = {CPU: cpus, MEMORY: memory}
    controllers = [name for name, bound in wanted.items() if bound is not None]
    places = {name: _find_place(name) for name in controllers}
    return tuple(_bound(own_name(f"host{i}"), places, cpus, memory) for i in range(hosts))


def remove_limits() -> None:
    """Remove the cgroups of this process; whatever ran in them has to have ended.

    Raises
    ------
    NotAvailable: one could not be removed.
    """
    _remove([path for path in _groups() if is_ours(path.name)])


def remove_leftover_limits() -> list[str]:
    """Remove the cgroups of processes that have ended; returns their names."""
    left = [path for path in _groups() if is_leftover(path.name)]
    _remove(left)
    return sorted({path.name for path in left})


def ran_out_of_memory(cgroups: Sequence[Path]) -> bool:
    """Whether the kernel ended a process of these groups for want of memory."""
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


def _bound(
    name: str, places: dict[str, tuple[int, Path]], cpus: float | None, memory: int | None
) -> tuple[Path, ...]:
    groups: list[Path] = []
    for controller, (version, parent) in places.items():
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


def _find_place(controller: str) -> tuple[int, Path]:
    """The version, and the group below which groups with this controller can be made.

    Below this process's own group where that can be, so that the bounds it is under still hold.
    """
    for mount in _mounts(controller):
        if not os.access(mount.own, os.W_OK):
            raise NotAvailable(f"cgroup {mount.own} (controller {controller}) is not writable")
        if mount.version == 1:
            return 1, mount.own
        # In version 2 a group has either processes or bounded children.
        for parent in (mount.own, *mount.own.parents):
            try:
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                return 2, parent
            except OSError:
                if parent == mount.path:
                    break
    raise NotAvailable(f"no cgroup hierarchy here offers the controller {controller!r}")


def _mounts(controller: str) -> Iterator[_Mount]:
    """The hierarchies that have a controller; none or one, on any usual system."""
    own_paths = _own_paths()
    for version, names, root, path in _cgroup_mounts():
        if version == 2:
            own = _below(path, root, own_paths.get("", "/"))
            try:
                names = (own / "cgroup.controllers").read_text().split()
            except OSError:
                names = []
        if controller in names:
            yield _Mount(version, path, _below(path, root, own_paths.get(
                controller if version == 1 else "", "/")))  # fmt: skip


def _cgroup_mounts() -> Iterator[tuple[int, list[str], str, Path]]:
    """Version, controllers (of version 1), root within the hierarchy and mount point of each."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        place, _, kind = line.partition(" - ")
        root, path = place.split()[3:5]
        filesystem, _source, options = kind.split(maxsplit=2)
        if filesystem in ("cgroup", "cgroup2"):
            version = 1 if filesystem == "cgroup" else 2
            yield version, options.split(","), root, Path(path)


def _own_paths() -> dict[str, str]:
    """This process's path in each hierarchy, by controller; "" is version 2."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            found[name] = path
    return found


def _below(mount: Path, root: str, own: str) -> Path:
    """Where a path of a hierarchy is found; the mount point where it lies outside of the mount."""
    relative = own.removeprefix(root) if root != "/" else own
    path = mount / relative.lstrip("/")
    return path if path.is_dir() else mount


def _groups() -> list[Path]:
    """Every cgroup that bears a name of ours, of whatever process."""
    found: list[Path] = []
    for version, names, _root, path in _cgroup_mounts():
        if version == 1 and not {CPU, MEMORY} & set(names):
            continue
        for folder, children, _files in os.walk(path):
            found += [
                Path(folder) / name for name in children if is_ours(name) or is_leftover(name)
            ]
    return found


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
                # What was killed in it is not gone at once.
                if time.monotonic() > deadline:
                    raise NotAvailable(f"cgroup {group}: cannot remove it: {error}") from error
                time.sleep(0.02)
