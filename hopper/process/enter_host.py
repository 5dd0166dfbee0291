"""Processes on emulated hosts: in a network namespace, and in cgroups that bound them.

``python -m hopper.process.enter_host PARENT NAMESPACE [CGROUP]... -- COMMAND...`` enters a host and
replaces itself by the command, which gets SIGTERM when the process PARENT, which started it, ends.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cache_server.process import end_with_parent

NAMESPACES: Final = Path("/run/netns")
_SYSTEM_FOLDERS: Final = ("/usr/sbin", "/sbin")
_CLONE_NEWNET: Final = 0x40000000


def enter_host(namespace: str, *cgroups: str) -> None:
    """Move this process to a host. An OSError says why that is impossible."""
    _enter_groups(cgroups)
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), file.name)


def enter_words(host: Sequence[str]) -> tuple[str, ...]:
    """Return the words in front of a command that let this process start it on a host: its
    namespace, and its cgroups."""
    module = (sys.executable, "-m", "hopper.process.enter_host")
    return (*module, str(os.getpid()), *host, "--")


def find_program(name: str) -> str | None:
    """Return the path of a program, which may lie in the administrator's folders; None if there is
    none."""
    folders = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])
    return shutil.which(name, path=folders)


def _enter_groups(cgroups: Sequence[str]) -> None:
    for cgroup in cgroups:
        Path(cgroup, "cgroup.procs").write_text("0")


def main(parent: str, namespace: str, *words: str) -> None:
    """Enter the host and become the command. The call returns only if that fails."""
    end = words.index("--")
    end_with_parent(int(parent))
    try:
        _enter_groups(words[:end])
        # Unlike enter_host, ip shows the command the namespace's own /sys too.
        ip = find_program("ip") or "ip"
        # No shell interprets the words, and they come from the emulator.
        os.execv(ip, [ip, "netns", "exec", namespace, *words[end + 1 :]])  # noqa: S606
    except OSError as error:
        sys.exit(f"error: cannot enter host {namespace}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
