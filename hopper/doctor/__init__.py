"""What is wrong with a configuration, this machine and the cluster, found before anyone trains.

Nothing is started, and nothing is written: checks only look. Little is imported here: versions are
looked at before what needs them is imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from hopper.doctor.finding import STATES, Finding, State, warning
from hopper.doctor.versions import check_versions

DEFAULT_LIMIT: Final = 10.0
"""seconds"""

__all__ = ["DEFAULT_LIMIT", "STATES", "Finding", "State", "examine", "worst_of"]


def examine(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    checksums: bool = False,
    limit: float = DEFAULT_LIMIT,
) -> Iterator[Finding]:
    """Look at a configuration, this machine and the servers that it names.

    Parameters
    ----------
    path, overrides: as of :func:`hopper.config.load_config`.
    checksums: whether every file of the graph is compared with its checksum, or its size alone.
    limit: seconds that all servers together have to answer in, and again to send rows in.
    """
    versions = check_versions()
    yield from versions
    if any(each.state == "wrong" for each in versions):
        yield warning("all else", "not looked at: it may not even be imported")
        return
    from hopper.doctor.checks import check_all

    yield from check_all(path, overrides, checksums, limit)


def worst_of(findings: Sequence[Finding]) -> State:
    """The worst state of some findings."""
    return max((each.state for each in findings), key=STATES.index, default="fine")
