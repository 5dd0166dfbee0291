"""One rank as a process: whom it ends with, what it prints, and how it tells its error.

Only what is small is imported here, since a rank must tie itself to its parent process before it
imports torch.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from cache_server.events import events
from cache_server.process import end_with_parent
from hopper.errors import HopperError, StorageError, explain_os_error

if TYPE_CHECKING:
    from hopper.config import Config

DIE_WITH_PARENT: Final = "HOPPER_DIE_WITH_PARENT"
"""The environment variable with the id of the process that a rank must end with."""
RECORD: Final = "TORCHELASTIC_ERROR_FILE"
"""The environment variable with the file of a failing rank's error, which torchrun sets too."""
LOGS_FOLDER: Final = "ranks"
_OOM_SCORE: Final = 500
"""thousandths of the memory that a rank seems to hold more, to the kernel that ends a process"""


def follow_parent() -> None:
    """Let this process end with the process that ``HOPPER_DIE_WITH_PARENT`` names, if any; end it
    now if that is not its parent."""
    parent = os.environ.get(DIE_WITH_PARENT)
    if parent is None:
        return
    if not parent.isdecimal():
        sys.exit(f"error: {DIE_WITH_PARENT}: expected a process id, got {parent!r}")
    end_with_parent(int(parent))


def run(work: Callable[[Config], None], module: str) -> None:
    """Do a rank's work as :func:`main` does with this process's words and, on an error, end it.

    ``ps`` shows "hopper rank N" for it. Where memory runs out, the kernel ends a rank rather than
    the launcher, which can tell what happened.
    """
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"hopper rank {os.environ.get('RANK', 0)}")
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(_OOM_SCORE, int(score.read_text()))))
    # A failed rank leaves at once: at a normal exit it would wait for ranks that hang or are gone.
    code = main(sys.argv[1:], work, module)
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)


def main(arguments: list[str], work: Callable[[Config], None], module: str = "hopper.train") -> int:
    """Do a rank's work with a configuration file and overrides, in any order; return the exit code:
    0, 1 after an error, or 2 on wrong usage of the module."""
    from hopper.config import load_config
    from hopper.process.override_words import split_overrides

    files, overrides = split_overrides(arguments)
    if len(files) != 1 or files[0].startswith("-"):
        usage = f"usage: torchrun ... -m {module} CONFIG [--section.key VALUE ...]"
        print(usage, file=sys.stderr)
        return 2
    faulthandler.enable()
    try:
        config = load_config(files[0], overrides)
        rank = int(os.environ.get("RANK", 0))
        events.set_format(config.cluster.log_format, process="rank", rank=rank)
        if config.train.run_dir:
            output.keep(Path(config.train.run_dir), rank)
        work(config)
    except Exception as error:
        text = explain_os_error(error, "train.run_dir") if isinstance(error, OSError) else None
        tell_failure(error if text is None else StorageError(text))
        return 1
    return 0


def tell_failure(error: Exception) -> None:
    """Record why this rank fails, and tell it on stderr, unless a launcher of Hopper's tells it
    once for all ranks."""
    is_recorded = record_failure(error)
    if not isinstance(error, HopperError):
        traceback.print_exception(error)
    elif events.format == "json" or not (is_recorded and DIE_WITH_PARENT in os.environ):
        events.fail("error", f"rank {os.environ.get('RANK', '0')}: error: {error}")


def record_failure(error: Exception) -> bool:
    """Write this rank's error in the form that torchrun's agent reads; tell whether it could be.

    torch's own writer gives the time in whole seconds, too coarse to tell which of two ranks failed
    first. On a full disk it leaves half a file, at which the agent fails.
    """
    name = os.environ.get(RECORD)
    if not name:
        return False
    moment = time.time()
    # Hopper's own errors have texts for users, which need no class name and no call stack.
    is_own = isinstance(error, HopperError)
    text = str(error) if is_own else f"{type(error).__name__}: {error}"
    extra = {
        "py_callstack": text if is_own else "".join(traceback.format_exception(error)),
        "timestamp": str(int(moment)),
        "moment": moment,
        "kind": type(error).__name__,
    }
    unfinished = Path(f"{name}.unfinished")
    try:
        unfinished.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
        unfinished.replace(name)
    except OSError:
        # The rank prints its error as well.
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


class RankOutput:
    """The log of this process's rank in the run's folder: ``ranks/0.log``, ``ranks/1.log``, ..."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: TextIO | None = None
        self._lock = threading.Lock()

    def keep(self, run_dir: Path, rank: int) -> None:
        """Copy what this process writes to stderr from now on, and the lines of :meth:`write`."""
        self.forget()
        self._path = run_dir / LOGS_FOLDER / f"{rank}.log"
        if not isinstance(sys.stderr, _Copied):
            sys.stderr = _Copied(sys.stderr)

    def forget(self) -> None:
        """Keep no log any more."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    self._file.close()
            self._path = self._file = None

    def write(self, text: str) -> None:
        """Append to the log, if there is one."""
        with self._lock:
            if self._path is None:
                return
            try:
                if self._file is None:
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self._path.open("a", buffering=1)
                self._file.write(text)
            except OSError:
                # A full disk is told where results are written.
                self._path = None


class _Copied:
    """A stream whose text also goes to the log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        output.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


output = RankOutput()
"""the log of this process"""
