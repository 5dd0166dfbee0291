"""The machine, the versions and the commit of a measurement."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

import hopper

_PACKAGES: Final = ("torch", "numpy", "dgl", "grpcio", "numba")


def machine() -> dict[str, Any]:
    """Describe this machine: CPU model, logical cores, memory in GiB, and the kernel."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count() or 1,
        "usable_cores": len(psutil.Process().cpu_affinity() or []) or None,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def tell_machine(facts: Mapping[str, Any]) -> str:
    """Describe the result of :func:`machine` in words: "AMD EPYC, 2 cores, 23.5 GiB"."""
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']:g} GiB"


def versions() -> dict[str, str | None]:
    """Return the versions of Python, Hopper and its main packages; None for a package that is
    missing."""
    result: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            result[package] = version(package)
    return {"python": platform.python_version(), "hopper": hopper.__version__} | result


def commit() -> str:
    """Return the checkout's commit, with "+" if files differ from it; without git, Hopper's
    version."""
    root = Path(hopper.__file__).resolve().parent.parent
    if (root / ".git").exists():
        describe = ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(
                ["git", "-C", str(root), *describe],  # noqa: S607 # as the user's PATH has it
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            ).stdout.strip()
    return hopper.__version__


def short_commit(text: str) -> str:
    """Return a commit's first 12 digits, with its "+"."""
    return text[:12] + "+" * text.endswith("+")


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
