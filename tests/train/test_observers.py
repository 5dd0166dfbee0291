"""What follows a run: each callback by itself, and the rules by which all of them are called.

Guards against: a callback that relies on calls that may not come, a logger's error that ends a run,
and a callback's error that does not.
"""

import io
import math
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from csv_logger import CsvLogger
from early_enough import EarlyEnough
from rich.console import Console

import hopper
from hopper.cluster.traffic import Traffic
from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.features import Lookups, RowCounts
from hopper.launch.run import train
from hopper.timing.run_log import RunLog
from hopper.train import console as run_console
from hopper.train import observers as run_observers
from hopper.train.callbacks import Callback, Running
from hopper.train.console import RunConsole
from hopper.train.meter import EpochMeter, interface_bytes
from hopper.train.observers import Observers, find_observers
from hopper.train.rank_process import LOGS_FOLDER, output
from hopper.train.tracking import TRACKERS, numbers_of

OBSERVERS: dict[str, Callable[[Path], Callback]] = {
    **{
        name: lambda run_dir, tracker=tracker: tracker(run_dir=run_dir)
        for name, tracker in TRACKERS.items()
    },
    "console": lambda _run_dir: RunConsole(True),
    "csv": lambda run_dir: CsvLogger(run_dir=run_dir),
    "early enough": lambda run_dir: EarlyEnough(run_dir=run_dir, loss=0.1, frozen=[""], epochs=9),
}
DATA = {"data": {"partitioned": "parts"}}


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    """What a console writes to a terminal of 80 columns."""
    screen = io.StringIO()

    def terminal(**options: Any) -> Console:
        return Console(file=screen, width=80, force_terminal=True, color_system=None, **options)

    monkeypatch.setattr(run_console, "Console", terminal)
    return screen


def make_running(config: hopper.Config | None = None, **values: Any) -> Running:
    config = config or make_config(DATA)
    return Running(torch.nn.Linear(2, 2), config, 0, 1, **{"iterations": 100, "batch": 9} | values)


def follow(reference: Any, observer: Callback) -> None:
    """Make the calls that an observer gets in a finished run."""
    run = make_running(hopper.RunResult.open(reference.run_dir).config, losses={0: math.nan})
    observer.start(run)
    for record in reference.epochs():
        observer.begin_epoch(run)
        for parameter in run.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        observer.gradient(run)
        observer.iteration(run)
        assert not observer.epoch(run, record)
    run.summary = reference.summary()
    observer.finish(run)
    observer.close()


def check_written(name: str, folder: Path, reference: Any) -> None:
    """Read what an observer has written of the reference run, with its own library."""
    losses = [record["loss"] for record in reference.epochs()]
    if name == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses)
        [test] = events.Scalars("test/accuracy")
        assert test.value == pytest.approx(reference.summary()["scores"]["test"]["accuracy"])
    elif name == "mlflow":
        import mlflow

        [run] = mlflow.search_runs(experiment_names=["hopper"], output_format="list")
        assert run.data.params["model.hidden"] == "8"
        history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
        assert [value.value for value in history] == losses
    elif name == "wandb":
        assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    elif name == "csv":
        lines = (folder / "epochs.csv").read_text().splitlines()
        assert [line.split(",")[1] for line in lines[1:-1]] == [str(loss) for loss in losses]


@pytest.mark.parametrize("name", OBSERVERS)
def test_an_observer_follows_a_run_and_may_be_closed_before_it_starts(
    name, reference, tmp_path, monkeypatch, screen
):
    if name in TRACKERS:
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'runs.db'}")
    OBSERVERS[name](tmp_path).close()
    follow(reference, OBSERVERS[name](tmp_path))
    check_written(name, tmp_path, reference)
    shown = [line for line in screen.getvalue().splitlines() if "  val accuracy 0." in line]
    assert len(shown) >= 3 if name == "console" else not shown


class Told(Callback):
    """Notes its calls, and fails in some of them."""

    def __init__(self, calls: list[str], name: str, *failing: str) -> None:
        self._calls, self._name, self._failing = calls, name, failing

    def _note(self, event: str) -> None:
        self._calls.append(f"{self._name} {event}")
        if event in self._failing:
            raise ConnectionError("nobody listens")

    def start(self, run: Running) -> None:
        self._note("start")

    def epoch(self, run: Running, record: Mapping[str, Any]) -> bool:
        self._note("epoch")
        return True

    def close(self) -> None:
        self._note("close")


def test_a_run_goes_on_without_a_logger_that_fails_and_ends_with_a_callback_that_does(capsys):
    calls: list[str] = []
    observers, run = Observers(RunConsole(True)), make_running()
    observers.add(Told(calls, "logger", "epoch", "close"), "own:Logger")
    observers.add(Told(calls, "callback", "start", "close"))
    observers.add(Told(calls, "first"), first=True)
    record = dict.fromkeys(("epoch", "loss", "seconds", "roots", "left_out"), 0)
    record |= {"bytes": {"feature": 0}, "gradient_norms": [], "scores": {}, "val": None}
    for _ in range(2):
        assert observers.tell("epoch", run, record) == [True, None, True]
    with pytest.raises(ConnectionError), observers.closing():
        observers.tell("start", run)
    observers.close()
    epochs = ["first epoch", "logger epoch", "logger close", "callback epoch"]
    ends = ["first start", "callback start", "first close", "callback close"]
    assert calls == [*epochs, "first epoch", "callback epoch", *ends]
    failed = [line for line in capsys.readouterr().out.splitlines() if "failed" in line]
    assert [line[10:] for line in failed] == [
        "logger own:Logger: epoch() failed (ConnectionError: nobody listens); the run goes on "
        "without it",
        "callback Told: close() failed (ConnectionError: nobody listens)",
    ]


def test_numbers_of_an_epoch(reference):
    record = reference.epochs()[1]
    numbers = numbers_of(record)
    assert (numbers["loss"], numbers["val/accuracy"]) == (record["loss"], record["val"])
    assert numbers["bytes/feature"] == record["bytes"]["feature"]
    assert numbers["iterations_per_second"] > 0
    assert numbers["roots_per_second"] == pytest.approx(83 / record["seconds"])
    assert "gradient_norm" not in numbers
    assert numbers_of(record | {"gradient_norms": [1.0, 3.0]})["gradient_norm"] == 2.0


OLD_FORM = """
from hopper import Callback

class Plain:
    def __init__(self, *, run_dir): ...
    def epoch(self, record): ...

class Derived(Callback):
    def __init__(self, *, run_dir): ...
    def epoch(self, record): ...
"""


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("notepad", {}, "loggers: expected tensorboard, mlflow, wandb or package.module:Class"),
        ("wandb", {"projekt": "mine"}, "wandb takes project, mode; got 'projekt'"),
        ("mlflow", {}, "mlflow is not installed: pip install mlflow"),
        ("old_form:Plain", {}, "expected a subclass of hopper.train.callbacks.Callback; given"),
        ("old_form:Derived", {}, "the class lacks epoch(run, record)"),
    ],
)
def test_loggers_that_cannot_be_called_are_refused_in_a_line(
    name, options, message, tmp_path, monkeypatch
):
    (tmp_path / "old_form.py").write_text(OLD_FORM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(run_observers, "find_spec", lambda _name: None)
    loggers = {"loggers": [name], "loggers_options": [options]}
    with pytest.raises(ConfigError) as caught:
        find_observers(make_config(DATA | {"train": loggers}), "loggers")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_bar_fits_into_80_columns_and_shows_the_last_loss_that_is_known(screen):
    run = make_running(iterations=12345, batch=10**6, epoch=123, iteration=5)
    console = RunConsole(True)
    console._score = "  val balanced_accuracy 0.9876"
    console.start(run)
    console.begin_epoch(run)
    # A rank that does not learn of an iteration's loss goes on to show the last one.
    for step, loss in enumerate((None, math.nan, 123.4567, math.nan)):
        if loss is not None:
            run.losses, run.sent_bytes = {0: loss}, step * 10**9
            console.iteration(run)
        assert console._bar is not None
        screen.seek(0)
        screen.truncate()
        console._bar.refresh()
        text = screen.getvalue()
        assert "nan" not in text
        assert ("loss 123.4567" in text) == ("loss" in text) == (step > 1)
    console.close()
    for part in ("epoch 123", "8/12345", "val balanced_accuracy 0.9876", "left"):
        assert part in text
    assert "…" not in text


def test_a_process_keeps_the_log_of_each_run_in_its_own_folder(tmp_path, monkeypatch):
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    for name in ("first", "second"):
        output.keep(tmp_path / name, 0)
        print(name, file=sys.stderr)
    output.forget()
    print("third", file=sys.stderr)
    for name in ("first", "second"):
        assert (tmp_path / name / LOGS_FOLDER / "0.log").read_text() == f"{name}\n"
    assert printed.getvalue() == "first\nsecond\nthird\n"


def test_an_epoch_s_record_combines_all_ranks():
    """The other rank, on another server, has twice the numbers of this one."""
    cluster: Any = SimpleNamespace(rank=0, ranks_per_server=1, traffic=Traffic())
    cluster.arrive = lambda _operation: None
    cluster.all_gather = lambda mine, *_: torch.stack([mine, 2 * mine])
    counts = RowCounts(local=3, remote=2, lookups={"item": Lookups(4, 1)})
    state: Any = SimpleNamespace(cluster=cluster, log=RunLog(), rows=SimpleNamespace())
    state.config = make_config(DATA | {"cluster": {"interface": "lo"}})
    state.rows.take_rows = lambda: counts
    state.learnable = SimpleNamespace(take_lookups=lambda: {"words": Lookups(0, 5)})
    run = make_running()
    meter = EpochMeter(state, run)
    meter.start(7)
    with meter.iteration(), state.log.stage("wait"):
        cluster.traffic.count("feature", 10)
    record = meter.finish([0.5, math.nan, 1.0])
    assert (record.epoch, record.iterations, record.measured_iterations) == (7, 3, 1)
    assert (record.loss, record.sent_bytes, record.bytes["feature"]) == (0.75, 30, 30)
    assert record.rows == {"local": 18, "remote": 12, "remote_unique": 0, "cached": 0}
    assert record.lookups == {"item": [24, 6], "words": [0, 30]}
    assert run.lookups == {"item": (8, 2), "words": (0, 10)}
    assert record.iteration_seconds == [2 * run.iteration_seconds]
    assert record.cpu_seconds[1] == 2 * record.cpu_seconds[0]
    assert record.stage_seconds["wait"] == 1.5 * state.log.total_seconds()["wait"]
    assert record.nic_bytes is not None
    assert record.nic_bytes[1] == 2 * record.nic_bytes[0]


def test_what_an_interface_sends_is_counted_and_an_unknown_one_is_refused_first():
    before = interface_bytes("lo")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    with sender, receiver:
        sender.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(receiver.recv(1 << 16))
    # Other processes may use the interface too.
    assert interface_bytes("lo") - before > 100_000
    values = {"data": {"partitioned": "/nowhere"}, "cluster": {"interface": "eth99"}}
    text = r"cluster.interface: this machine has no interface 'eth99', only .*lo"
    with pytest.raises(ConfigError, match=text):
        train(make_config(values))
