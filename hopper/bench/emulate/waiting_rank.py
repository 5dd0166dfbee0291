"""``python -m hopper.bench.emulate.waiting_rank FOLDER``: one rank that trains run after run.

Starting a rank takes seconds, most of them for importing torch, and a comparison has hundreds of
runs. So ranks on emulated hosts stay, and wait in between for the file that names the next run
(:mod:`hopper.bench.emulate.standing_ranks`). A run that fails ends its rank, as it would anywhere.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hopper.quick_imports import quick_imports
from hopper.train.parent import follow_parent

_LOOK_SECONDS: Final = 0.005
_RESET_PEAK: Final = "5"
"""what makes the kernel forget a process's peak resident memory (man 5 proc, clear_refs)"""


@dataclass(frozen=True)
class Order:
    """A run that ranks are to train.

    Attributes
    ----------
    config: file of its configuration.
    logs: folder for what they print.
    """

    config: Path
    logs: Path

    def log(self, host: int) -> Path:
        """What the ranks of a host print."""
        return self.logs / f"{host}.log"


def order_file(folder: Path, number: int) -> Path:
    """The file that orders a run; runs are numbered from 0."""
    return folder / f"{number}.json"


def done_file(folder: Path, number: int, rank: int) -> Path:
    """The file by which a rank tells that it has ended a run well."""
    return folder / f"{number}-{rank}.done"


def main(folder: Path) -> None:
    """Train what is ordered, until this process is ended."""
    with quick_imports():
        from hopper.train import rank_main

    for number in itertools.count():
        order = _await_order(order_file(folder, number))
        # Ranks meet anew for each run: what they left in the store before is another attempt's.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        _let_go_of_memory()
        with _printing_to(order.log(int(os.environ["GROUP_RANK"]))):
            code = rank_main.main([str(order.config)])
        if code:
            # It must not wait for others at its exit.
            os._exit(code)
        done_file(folder, number, int(os.environ["RANK"])).touch()


def _await_order(file: Path) -> Order:
    while not file.exists():
        time.sleep(_LOOK_SECONDS)
    told: dict[str, Any] = json.loads(file.read_text())
    return Order(Path(told["config"]), Path(told["logs"]))


def _let_go_of_memory() -> None:
    """Let a run's peak memory be its own."""
    gc.collect()
    # Another C library may not know it; another kernel may forget no peaks.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


@contextmanager
def _printing_to(file: Path) -> Iterator[None]:
    """Let what this process prints, and what it starts, go to the end of a file."""
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, own in zip((1, 2), before, strict=True):
            os.dup2(own, descriptor)
        for each in (log, *before):
            os.close(each)


if __name__ == "__main__":
    # Before anything else: importing torch takes seconds, in which the parent may end.
    follow_parent()
    main(Path(sys.argv[1]))
