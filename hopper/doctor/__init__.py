"""Checks of a configuration, this machine and the cluster before training.

The checks start no process and write no file. This module imports little, because versions must be
checked before the packages that need them are imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from hopper.doctor.finding import STATES, Finding, State, warning
from hopper.doctor.versions import check_versions

DEFAULT_LIMIT: Final = 10.0
"""Default time limit of the servers' answers, in seconds."""

__all__ = ["DEFAULT_LIMIT", "STATES", "Finding", "State", "examine", "worst_of"]


def examine(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    checksums: bool = False,
    limit: float = DEFAULT_LIMIT,
) -> Iterator[Finding]:
    """Check a configuration, this machine and the servers that the configuration names.

    Parameters
    ----------
    path: file of the configuration.
    overrides: arguments that replace keys of the configuration.
    checksums: whether to compare files of the graph with their checksums, or only their sizes.
    limit: seconds within which all servers together must answer, and again send rows.
    """
    versions = check_versions()
    yield from versions
    if any(finding.state == "wrong" for finding in versions):
        yield warning("all else", "not looked at: it may not even be imported")
        return
    from hopper.doctor.checks import run_checks

    errors = set[str]()
    for finding in run_checks(path, overrides, checksums, limit):
        # Several checks may find the same error.
        if finding.state != "wrong" or finding.found not in errors:
            yield finding
        errors.add(finding.found)


def worst_of(findings: Sequence[Finding]) -> State:
    """Return the worst state of some findings."""
    return max((finding.state for finding in findings), key=STATES.index, default="fine")
