"""``python -m hopper.bench.emulate.enter PARENT NAMESPACE [CGROUP]... -- COMMAND...``.

Enters a host's cgroups and network namespace, and replaces itself by the command. The command gets
SIGTERM when the process PARENT, which started it, ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cache_server.process import end_with_parent
from hopper.bench.emulate.network import find_program


def enter_words(namespace: str, cgroups: Sequence[Path]) -> tuple[str, ...]:
    """Return the words in front of a command that let this process start it on a host."""
    module = (sys.executable, "-m", "hopper.bench.emulate.enter")
    return (*module, str(os.getpid()), namespace, *map(str, cgroups), "--")


def main(parent: str, namespace: str, *words: str) -> None:
    """Enter the host and become the command. The call returns only if that fails."""
    end = words.index("--")
    end_with_parent(int(parent))
    try:
        for cgroup in words[:end]:
            Path(cgroup, "cgroup.procs").write_text("0")
        ip = find_program("ip")
        # No shell interprets the words, and they come from the emulator.
        os.execv(ip, [ip, "netns", "exec", namespace, *words[end + 1 :]])  # noqa: S606
    except OSError as error:
        sys.exit(f"error: cannot enter host {namespace}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
