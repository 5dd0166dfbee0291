"""Commands as processes of their own: their seconds, their memory, and a bound of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hopper.bench.emulate.limits import bound_hosts, ran_out_of_memory, remove_limits

HOPPER = [sys.executable, "-m", "hopper.cli"]
_POLL_SECONDS = 0.02


@contextmanager
def bounded_group(memory: int) -> Iterator[Path]:
    """Make a cgroup that holds its processes and their page cache to some bytes. Needs root."""
    try:
        ((group,),) = bound_hosts(1, None, memory)
        yield group
    finally:
        remove_limits()


def in_group(command: Sequence[str], group: Path | None) -> list[str]:
    """Return a command that is in a cgroup from its first moment on."""
    if group is None:
        return list(command)
    return ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *command]


def run_measured(
    command: Sequence[str],
    log: Path,
    *,
    group: Path | None = None,
    kill_after: float = float("inf"),
) -> dict[str, float]:
    """Run a command. Return its seconds, and the most MiB that its processes had at once.

    ``own MiB`` leaves pages of mapped files out, which the kernel drops when memory is short. Pages
    that processes share are counted in each. ``log`` gets the output; ``kill_after`` some seconds
    all processes are killed. Raise SystemExit if the command fails.
    """
    begun, peak, own = time.monotonic(), 0, 0
    with log.open("wb") as output:
        process = psutil.Popen(
            in_group(command, group),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    was_killed = False
    while process.poll() is None:
        was_killed = time.monotonic() - begun > kill_after
        members, sizes = [process], []
        with suppress(psutil.Error):
            members += process.children(recursive=True)
        for member in members:
            with suppress(psutil.Error):
                if was_killed:
                    member.kill()
                else:
                    sizes.append(member.memory_info())
        peak = max(peak, sum(size.rss for size in sizes))
        own = max(own, sum(size.rss - size.shared for size in sizes))
        time.sleep(_POLL_SECONDS)
    if not was_killed and (process.returncode or (group and ran_out_of_memory([group]))):
        last_words = log.read_text(errors="replace")[-600:]
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}: {last_words}")
    while group is not None and (group / "cgroup.procs").read_text():
        # Whatever was started ends after its parent.
        time.sleep(0.1)
    return {"seconds": time.monotonic() - begun, "peak MiB": peak / 2**20, "own MiB": own / 2**20}
