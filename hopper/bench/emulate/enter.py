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
from hopper.bench.emulate.commands import find_program

FAILED = 125
"""The exit code if the host could not be entered."""


def enter_words(namespace: str, cgroups: Sequence[Path]) -> tuple[str, ...]:
    """Return the words in front of a command that let this process start it on a host."""
    words = [sys.executable, "-m", "hopper.bench.emulate.enter", "--parent", str(os.getpid())]
    for cgroup in cgroups:
        words += ["--cgroup", str(cgroup)]
    return (*words, "--namespace", namespace, "--")


def main(arguments: Sequence[str]) -> int:
    """Enter the host and become the command. The call returns only if that fails."""
    parser = argparse.ArgumentParser(prog="enter")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--cgroup", type=Path, action="append", default=[])
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    end_with_parent(options.parent)
    try:
        for cgroup in options.cgroup:
            (cgroup / "cgroup.procs").write_text("0")
        ip = find_program("ip")
        # No shell interprets the words, and they come from the emulator.
        os.execv(ip, [ip, "netns", "exec", options.namespace, *options.command])  # noqa: S606
    except OSError as error:
        print(f"error: cannot enter host {options.namespace}: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
