"""``python -m hopper.bench.emulate.enter --parent PID --namespace NAME [--cgroup DIR]... -- ...``.

Enters a host's cgroups and network namespace, and replaces itself by the command that follows. The
command gets SIGTERM when the process that started it ends.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cache_server.parent import end_with_parent
from hopper.bench.emulate.network import find_program


def enter_words(namespace: str, cgroups: Sequence[Path]) -> tuple[str, ...]:
    """Return the words in front of a command that let this process start it on a host."""
    groups = (word for cgroup in cgroups for word in ("--cgroup", str(cgroup)))
    module = (sys.executable, "-m", "hopper.bench.emulate.enter")
    return (*module, "--parent", str(os.getpid()), *groups, "--namespace", namespace, "--")


def main() -> None:
    """Enter the host and become the command. The call returns only if that fails."""
    parser = argparse.ArgumentParser(prog="enter")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--cgroup", type=Path, action="append", default=[])
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    end_with_parent(options.parent)
    try:
        for cgroup in options.cgroup:
            (cgroup / "cgroup.procs").write_text("0")
        ip = find_program("ip")
        # No shell interprets the words, and they come from the emulator.
        os.execv(ip, [ip, "netns", "exec", options.namespace, *options.command])  # noqa: S606
    except OSError as error:
        sys.exit(f"error: cannot enter host {options.namespace}: {error}")


if __name__ == "__main__":
    main()
