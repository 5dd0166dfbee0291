"""Runs ``hopper bench ab`` in another process, for benchmarks that compare by it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.bench.results import RESULTS_FILE

LOOPBACK = "loopback"
"""A link rate that means no emulated hosts."""


def compare_engines(
    config: Path,
    contenders: Sequence[str],
    out: Path,
    *,
    rounds: int,
    hosts: int,
    link_rate: str,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Run ``hopper bench ab``, unless its results are already there, and return them.

    Parameters
    ----------
    contenders: the engines, each as ``ENGINE[:KEY=VALUE]...``.
    out: the folder of the comparison's files.
    hosts: number of emulated hosts, which need root.
    link_rate: the rate of their links, or :data:`LOOPBACK`.
    overrides: words ``--section.key=value``.

    Returns
    -------
    The content of results.json.

    Raises
    ------
    CalledProcessError: the comparison failed, or gradients differ.
    """
    results = out / RESULTS_FILE
    if not results.exists():
        command = [sys.executable, "-m", "hopper.cli", "bench", "ab", str(config)]
        command += ["--engines", ",".join(contenders), "--out", str(out), "--rounds", str(rounds)]
        if link_rate != LOOPBACK:
            command += ["--emulate", str(hosts), "--link-rate", link_rate]
        subprocess.run([*command, *overrides], check=True)
    content: dict[str, Any] = json.loads(results.read_text())
    return content
