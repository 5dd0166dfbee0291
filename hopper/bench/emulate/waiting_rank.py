"""``python -m hopper.bench.emulate.waiting_rank FOLDER [FIRST]``: a rank that trains run after run.

A comparison has hundreds of runs, and starting a rank takes seconds, most of them for importing
torch. Ranks on emulated hosts therefore stay. Between runs they wait for the file that names the
next one (:mod:`hopper.bench.emulate.standing_ranks`). A run that fails ends its rank.
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

_MODULE: Final = "hopper.bench.emulate.waiting_rank"
_LOOK_SECONDS: Final = 0.005
_RESET_PEAK: Final = "5"
"""The text that makes the kernel reset a process's peak resident memory (man 5 proc, clear_refs).
"""


@dataclass(frozen=True)
class Order:
    """A run for ranks to train.

    Attributes
    ----------
    config: file of its configuration.
    logs: folder for the ranks' output.
    """

    config: Path
    logs: Path

    def log(self, host: int) -> Path:
        """Return the file for the output of a host's ranks."""
        return self.logs / f"{host}.log"


def order_file(folder: Path, number: int) -> Path:
    """Return the file that orders a run. Runs are numbered from 0."""
    return folder / f"{number}.json"


def done_file(folder: Path, number: int, rank: int) -> Path:
    """Return the file that a rank makes when it has ended a run well."""
    return folder / f"{number}-{rank}.done"


def main(folder: Path, first: int = 0) -> None:
    """Train one run after another, until this process is ended.

    Parameters
    ----------
    first: the number of the first run.
    """
    with quick_imports():
        from hopper.cluster import RECONNECTS
        from hopper.train import rank_main

    for number in itertools.count(first):
        order = _await_order(order_file(folder, number))
        # As another attempt, a run uses a new part of the store, without entries of earlier runs.
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        if number > first:
            os.environ.pop(RECONNECTS, None)
        _release_memory()
        with _redirect_output(order.log(int(os.environ["GROUP_RANK"]))):
            code = rank_main.main(
                [str(order.config)], successor=(_MODULE, str(folder), str(number))
            )
        if code:
            # Leave at once: a normal exit would wait for the other ranks.
            os._exit(code)
        done_file(folder, number, int(os.environ["RANK"])).touch()


def _await_order(file: Path) -> Order:
    while not file.exists():
        time.sleep(_LOOK_SECONDS)
    content: dict[str, Any] = json.loads(file.read_text())
    return Order(Path(content["config"]), Path(content["logs"]))


def _release_memory() -> None:
    """Free the memory of the last run and reset the peak, so that each run measures its own."""
    gc.collect()
    # Some C libraries lack malloc_trim, and some kernels cannot reset the peak.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)


@contextmanager
def _redirect_output(file: Path) -> Iterator[None]:
    """Append the output of this process and its children to a file while the context lasts."""
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in zip((1, 2), before, strict=True):
            os.dup2(saved, descriptor)
        for descriptor in (log, *before):
            os.close(descriptor)


if __name__ == "__main__":
    # Before importing torch, which takes seconds in which the parent may end.
    follow_parent()
    main(Path(sys.argv[1]), *(int(number) for number in sys.argv[2:]))
