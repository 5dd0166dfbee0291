"""Names that tell whose a namespace or cgroup is, so that what a dead process left is recognised.

A name is ``hopper-<pid>-<start>-<part>``: the process that made it, the moment that process started
(clock ticks since boot, since a pid is given out again), and what it is a part of.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"hopper-(\d+)-(\d+)-[a-z]+\d*")
_ENDED = ("Z", "X")


def own_name(part: str) -> str:
    """The name of a part that this process makes, such as ``host0``."""
    pid = os.getpid()
    started = _start_of(pid)
    if started is None:
        raise RuntimeError("/proc tells nothing of this process")
    return f"hopper-{pid}-{started}-{part}"


def is_ours(name: str) -> bool:
    """Whether this process made what bears that name."""
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) == os.getpid() and not is_leftover(name)


def is_leftover(name: str) -> bool:
    """Whether a process made it that has ended since; no for any name of another form."""
    match = _NAME.fullmatch(name)
    return match is not None and _start_of(int(match[1])) != int(match[2])


def _start_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none that still runs."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold anything; what follows does not.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _ENDED else int(fields[19])
