"""User-defined loggers, which rank 0 calls with a run's configuration, every epoch and its end.

A run writes epochs.jsonl and summary.json in any case. If a logger raises an error, the run says so
once and goes on without that logger.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from hopper.config import Config
from hopper.plug_ins import PlugIn, find_plug_ins
from hopper.train.results import EpochRecord
from hopper.train.tracking import TRACKERS, Tracker


class Logger(Protocol):
    """The methods of a logger.

    The class is called with the keyword ``run_dir``, the run's folder as a :class:`pathlib.Path`,
    and the options of the configuration.
    """

    def start(self, config: Mapping[str, Any]) -> None:
        """Called when the run begins, or goes on (``config["train"]["resume"]`` is then true).

        Parameters
        ----------
        config: nested values as in config.json. Choices such as "auto" engines are settled.
        """
        ...

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Called after every epoch, and again for an epoch that a resumed run trains anew.

        Parameters
        ----------
        record: the epoch's line in epochs.jsonl; see
            :class:`hopper.train.results.EpochRecord`.
        """
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Called at the end of a run that succeeded, with the content of summary.json."""
        ...

    def close(self) -> None:
        """Release all resources. This is the last call.

        It comes at a run's end, after an error, and when a signal ends the process. It may come
        before :meth:`start`.
        """
        ...


class RunLoggers:
    """A run's loggers on one rank: all of them on rank 0, none on other ranks.

    Parameters
    ----------
    loggers: pairs of a name, for messages, and a logger.
    say: prints a line.
    """

    def __init__(self, loggers: Sequence[tuple[str, Logger]], say: Callable[[str], None]) -> None:
        self._loggers = list(loggers)
        self._say = say
        # The main thread and the signal listener may both close loggers.
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._loggers)

    def start(self, config: Config) -> None:
        """Call all loggers' ``start``."""
        self._call("start", lambda: config.model_dump(mode="json"))

    def epoch(self, record: EpochRecord) -> None:
        """Call all loggers' ``epoch``."""
        self._call("epoch", lambda: asdict(record))

    def finish(self, read_summary: Callable[[], Mapping[str, Any]]) -> None:
        """Call all loggers' ``finish``."""
        self._call("finish", read_summary)

    def close(self) -> None:
        """Close all remaining loggers; a second call does nothing."""
        with self._lock:
            remaining, self._loggers = self._loggers, []
        for name, logger in remaining:
            self._try(name, "close", logger)

    def _call(self, method: str, value: Callable[[], Mapping[str, Any]]) -> None:
        """Call a method of all loggers, and drop those that fail."""
        failed = []
        for name, logger in self._loggers:
            if not self._try(name, method, logger, value):
                failed.append(logger)
                with suppress(Exception):
                    logger.close()
        with self._lock:
            self._loggers = [entry for entry in self._loggers if entry[1] not in failed]

    def _try(
        self,
        name: str,
        method: str,
        logger: Logger,
        value: Callable[[], Mapping[str, Any]] | None = None,
    ) -> bool:
        """Call a logger's method; print an error and return False if it fails."""
        try:
            getattr(logger, method)(*([] if value is None else [value()]))
        # Any error of a logger is caught: a run is worth more than its log.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._say(f"logger {name}: {method}() failed ({reason}); the run goes on without it")
            return False
        return True


def check_loggers(config: Config) -> None:
    """Check that a configuration's loggers exist and take the options that it gives them.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    for plug_in in _find_loggers(config):
        if issubclass(plug_in.kind, Tracker):
            plug_in.kind.check()


def make_loggers(config: Config, *, is_first: bool, say: Callable[[str], None]) -> RunLoggers:
    """Make the loggers of a run on this rank.

    Parameters
    ----------
    is_first: whether this is rank 0.
    say: prints a line.

    Raises
    ------
    ConfigError: as :func:`check_loggers` does, or a constructor raised an error.
    """
    run_dir = Path(config.train.run_dir)
    plug_ins = _find_loggers(config) if is_first else []
    loggers = [(plug_in.name, plug_in.make(run_dir=run_dir)) for plug_in in plug_ins]
    return RunLoggers(loggers, say)


def _find_loggers(config: Config) -> list[PlugIn[Logger]]:
    names, options = config.train.loggers, config.train.loggers_options
    return find_plug_ins("train.loggers", names, Logger, TRACKERS, options, ["run_dir"])


@contextmanager
def closing(loggers: RunLoggers) -> Iterator[None]:
    """Close loggers at the end of this context, or before SIGTERM ends the process within it.

    The main thread must enter it. It may be waiting for other ranks when the signal comes, where
    Python runs no handler, so another thread acts on the signal.
    """
    try:
        if not loggers:
            yield
            return
        with _close_on_sigterm(loggers.close):
            yield
    finally:
        loggers.close()


@contextmanager
def _close_on_sigterm(close: Callable[[], None]) -> Iterator[None]:
    """Call ``close`` on SIGTERM, and then let the signal end this process as usual."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def listen() -> None:
        # The loop ends when the other end of the pipe is closed.
        while signals := os.read(read_end, 1):
            if signals[0] == signal.SIGTERM:
                close()
                # Only the main thread may change handlers through Python's signal module.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, name="loggers-end", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        os.close(write_end)
        listener.join()
        os.close(read_end)
