"""Loggers of one's own: told of a run's configuration, of every epoch, and of its end, on rank 0.

A run writes epochs.jsonl and summary.json in any case. What fails in a logger is said once, and the
run goes on without it.
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
    """Told of a run as it goes on. Its class is called with the keyword ``run_dir``, the run's
    folder as a :class:`pathlib.Path`, and the options of the configuration."""

    def start(self, config: Mapping[str, Any]) -> None:
        """The run begins, or goes on: ``config["train"]["resume"]`` tells.

        Parameters
        ----------
        config: nested values as in config.json, decisions such as the engine's made.
        """
        ...

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is over. One that is trained anew after a resumption is told of again.

        Parameters
        ----------
        record: what stands in epochs.jsonl; see :class:`hopper.train.results.EpochRecord`.
        """
        ...

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run has come to its end; ``summary`` is what stands in summary.json."""
        ...

    def close(self) -> None:
        """Let go of everything: the last call, at a run's end, after an error, and before a signal
        to end. It may come before :meth:`start`."""
        ...


class RunLoggers:
    """A run's loggers on one rank: all of them on rank 0, none elsewhere.

    Parameters
    ----------
    loggers: by name, for messages.
    say: prints a line.
    """

    def __init__(self, loggers: Sequence[tuple[str, Logger]], say: Callable[[str], None]) -> None:
        self._loggers = list(loggers)
        self._say = say
        # Closed by whichever thread comes first.
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._loggers)

    def start(self, config: Config) -> None:
        """Tell of the configuration."""
        self._tell("start", lambda: config.model_dump(mode="json"))

    def epoch(self, record: EpochRecord) -> None:
        """Tell of an epoch."""
        self._tell("epoch", lambda: asdict(record))

    def finish(self, read_summary: Callable[[], Mapping[str, Any]]) -> None:
        """Tell of the run's end."""
        self._tell("finish", read_summary)

    def close(self) -> None:
        """Close all that are left; a second call does nothing."""
        with self._lock:
            left, self._loggers = self._loggers, []
        for name, logger in left:
            self._try(name, "close", logger)

    def _tell(self, method: str, value: Callable[[], Mapping[str, Any]]) -> None:
        failed = []
        for name, logger in self._loggers:
            if not self._try(name, method, logger, value):
                failed.append(logger)
                with suppress(Exception):
                    logger.close()
        with self._lock:
            self._loggers = [each for each in self._loggers if each[1] not in failed]

    def _try(
        self,
        name: str,
        method: str,
        logger: Logger,
        value: Callable[[], Mapping[str, Any]] | None = None,
    ) -> bool:
        """Whether a call of a logger's method ended well; if not, it is said why."""
        try:
            getattr(logger, method)(*([] if value is None else [value()]))
        # Whatever somebody else's logger raises, a run is worth more than its log.
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            self._say(f"logger {name}: {method}() failed ({told}); the run goes on without it")
            return False
        return True


def check_loggers(config: Config) -> None:
    """Find the loggers that a configuration names, and compare their options with them.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    for each in _find_loggers(config):
        if issubclass(each.kind, Tracker):
            each.kind.check()


def make_loggers(config: Config, *, is_first: bool, say: Callable[[str], None]) -> RunLoggers:
    """The loggers of a run on this rank.

    Parameters
    ----------
    is_first: whether this is rank 0.
    say: prints a line.

    Raises
    ------
    ConfigError: as :func:`check_loggers`; a constructor raised an error.
    """
    run_dir = Path(config.train.run_dir)
    found = _find_loggers(config) if is_first else []
    return RunLoggers([(each.name, each.make(run_dir=run_dir)) for each in found], say)


def _find_loggers(config: Config) -> list[PlugIn[Logger]]:
    names, options = config.train.loggers, config.train.loggers_options
    return find_plug_ins("train.loggers", names, Logger, TRACKERS, options, ["run_dir"])


@contextmanager
def closing(loggers: RunLoggers) -> Iterator[None]:
    """Close loggers at the end of this context, and before SIGTERM ends the process within it.

    The signal may come while the main thread waits for other ranks, where Python handles none;
    another thread hears of it. For the main thread.
    """
    try:
        if not loggers:
            yield
            return
        with _heard_by(loggers.close):
            yield
    finally:
        loggers.close()


@contextmanager
def _heard_by(close: Callable[[], None]) -> Iterator[None]:
    """SIGTERM ends this process as ever, after ``close``."""
    heard, told = os.pipe()
    os.set_blocking(told, False)

    def listen() -> None:
        # Nothing is read once the other end is closed.
        while signals := os.read(heard, 1):
            if signals[0] == signal.SIGTERM:
                close()
                # Python lets the main thread alone change handlers.
                ctypes.CDLL(None).signal(int(signal.SIGTERM), None)
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    wakeup = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    listener = threading.Thread(target=listen, name="loggers-end", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        os.close(told)
        listener.join()
        os.close(heard)
