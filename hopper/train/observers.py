"""The callbacks of a run on one rank: making them, calling them and closing them."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.engines import TrainStep
from hopper.errors import ConfigError
from hopper.train.callbacks import Callback, Running
from hopper.train.console import RunConsole
from hopper.train.results import GRADIENTS_FOLDER
from hopper.train.tensor_file import save_tensors
from hopper.train.tracking import TRACKERS

Event = Literal["start", "begin_epoch", "gradient", "iteration", "epoch", "finish"]


class Observers:
    """Calls a rank's callbacks in the order in which they were added. The console, which also
    prints the lines of the run, is the first of them."""

    def __init__(self, console: RunConsole) -> None:
        self.say = console.say
        self._observers: list[tuple[str, Callback]] = [("", console)]
        # The main thread and the signal listener may both close them.
        self._lock = threading.Lock()

    def add(self, observer: Callback, logger: str = "", *, first: bool = False) -> None:
        """Add a callback, before the others if asked to. Errors of one with the name of a logger do
        not end the run."""
        self._observers.insert(0 if first else len(self._observers), (logger, observer))

    def tell(self, event: Event, *arguments: Any) -> list[Any]:
        """Call the method ``event`` of all callbacks, and return what they return. Loggers that
        fail are closed, and are not called again."""
        answers = []
        for name, observer in list(self._observers):
            try:
                answers.append(getattr(observer, event)(*arguments))
            # Any error of a logger is caught: a run is worth more than its log.
            except Exception as error:
                if not name:
                    raise
                what = f"logger {name}: {event}() failed ({type(error).__name__}: {error})"
                self.say(f"{what}; the run goes on without it")
                with suppress(Exception):
                    observer.close()
                with self._lock:
                    self._observers = [kept for kept in self._observers if kept[1] is not observer]
        return answers

    def close(self) -> None:
        """Close all callbacks; a second call does nothing."""
        with self._lock:
            remaining, self._observers = self._observers, []
        for name, observer in remaining:
            try:
                observer.close()
            except Exception as error:
                what = f"logger {name}" if name else f"callback {type(observer).__name__}"
                self.say(f"{what}: close() failed ({type(error).__name__}: {error})")

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close all at the end of this context, which the main thread must enter, or before SIGTERM
        ends the process within it."""
        # The console alone holds nothing that a signal could spoil.
        listens = len(self._observers) > 1
        try:
            with _close_on_sigterm(self.close) if listens else nullcontext():
                yield
        finally:
            self.close()


class GradientRecorder(Callback):
    """Writes parameters and gradients of the iterations that ``train.record_gradients`` names."""

    def __init__(self, engine: TrainStep[Any, Any], run_dir: Path) -> None:
        self._engine, self._folder = engine, run_dir / GRADIENTS_FOLDER

    def start(self, run: Running) -> None:
        """Remove the records of an unfinished run, which this one replaces."""
        if run.rank == 0 and not run.config.train.resume:
            shutil.rmtree(self._folder, ignore_errors=True)

    def gradient(self, run: Running) -> None:
        """Write the iteration's tensors on rank 0; learnable rows are collected from all ranks."""
        if run.step not in run.config.train.record_gradients:
            return
        where = f"epoch {run.epoch}, iteration {run.iteration}"
        self._engine.models.complete(where, gradients=True)
        learned, packed = self._engine.sparse.fetched.collect(), self._engine.state.packed
        if run.rank:
            return
        tensors = {f"model.{n}": p.detach() for n, p in run.model.named_parameters()}
        tensors |= {f"gradient.{n}": g for n, g in packed.named_gradients().items()}
        facts = {"epoch": run.epoch, "iteration": run.iteration, "loss": float(packed.loss)}
        save_tensors(self._folder / f"step-{run.step}.safetensors", tensors | learned, facts)


def make_observers(config: Config, console: RunConsole, *, is_first: bool) -> Observers:
    """Make the callbacks that a configuration names, and on rank 0, the first, its loggers."""
    observers, run_dir = Observers(console), Path(config.train.run_dir)
    for plug_in in find_observers(config, "loggers") if is_first else []:
        observers.add(plug_in.make(run_dir=run_dir), plug_in.name)
    for plug_in in find_observers(config, "callbacks"):
        observers.add(plug_in.make(run_dir=run_dir))
    return observers


def find_observers(
    config: Config, key: Literal["loggers", "callbacks"]
) -> Sequence[PlugIn[Callback]]:
    """Find the classes of a key of ``[train]``, and check that they take the options given
    there."""
    names, options = getattr(config.train, key), getattr(config.train, f"{key}_options")
    built_ins = TRACKERS if key == "loggers" else {}
    found = [
        find_plug_in(
            f"train.{key}[{index}]",
            name,
            Callback,
            built_ins,
            options[index] if options else {},
            ["run_dir"],
            f"train.{key}_options[{index}]",
            derives=True,
        )
        for index, name in enumerate(names)
    ]
    for name in names:
        if name in TRACKERS and find_spec(name) is None:
            raise ConfigError(f"train.loggers: {name} is not installed: pip install {name}")
    return found


@contextmanager
def _close_on_sigterm(close: Callable[[], None]) -> Iterator[None]:
    """Call ``close`` on SIGTERM, and then let the signal end this process as usual.

    The main thread may be waiting for other ranks when the signal comes, where Python runs no
    handler, so another thread acts on the signal.
    """
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
    listener = threading.Thread(target=listen, name="observers-end", daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGTERM, before)
        os.close(write_end)
        listener.join()
        os.close(read_end)
