"""Names of namespaces and cgroups that say which process made them, to recognise leftovers.

A name is ``hopper-<pid>-<start>-<part>``: the id of the process that made it, the time at which
that process started, and the part of the emulated cluster. The start, in clock ticks since boot,
distinguishes processes that reuse an id.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_NAME = re.compile(r"hopper-(\d+)-(\d+)-[a-z]+\d*")
_ENDED = ("Z", "X")


def own_name(part: str) -> str:
    """Return the name of a part that this process makes, such as ``host0``."""
    pid = os.getpid()
    started = _start_of(pid)
    if started is None:
        raise RuntimeError("/proc has no entry for this process")
    return f"hopper-{pid}-{started}-{part}"


def is_ours(name: str) -> bool:
    """Return whether this process made the namespace or cgroup of a name."""
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) == os.getpid() and not is_leftover(name)


def is_leftover(name: str) -> bool:
    """Return whether the process that made it has ended. False for any name of another form."""
    match = _NAME.fullmatch(name)
    return match is not None and _start_of(int(match[1])) != int(match[2])


def _start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The process's name, in parentheses, may contain anything, so split only what follows it.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _ENDED else int(fields[19])
