"""What a result was measured on: machine, versions, commit."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import psutil

import hopper

PACKAGES: Final = ("torch", "numpy", "dgl", "grpcio", "numba")


def machine() -> dict[str, Any]:
    """CPU model, logical cores, memory in GiB, and the kernel."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count() or 1,
        "usable_cores": len(psutil.Process().cpu_affinity() or []) or None,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def tell_machine(told: Mapping[str, Any]) -> str:
    """What :func:`machine` found, in words: "AMD EPYC, 2 cores, 23.5 GiB"."""
    return f"{told['cpu']}, {told['cores']} cores, {told['memory_gib']:g} GiB"


def versions() -> dict[str, str | None]:
    """Versions of Python, Hopper and of what it computes with; None for what is not installed."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "hopper": hopper.__version__,
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def benchmark_header(name: str) -> dict[str, Any]:
    """How the result of a benchmark begins: what was measured, when, where and with what."""
    return {
        "schema": 1,
        "benchmark": name,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def commit() -> str:
    """The checkout's commit, with "+" where files differ from it; else the package's version."""
    root = Path(hopper.__file__).resolve().parent.parent
    if (root / ".git").exists():
        describe = ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        try:
            done = subprocess.run(  # nosec B607 # the user's own git, as their PATH has it
                ["git", "-C", str(root), *describe],
                capture_output=True,
                text=True,
                check=False,
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0:
            return done.stdout.strip()
    return hopper.__version__


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
