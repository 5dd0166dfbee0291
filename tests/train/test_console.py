"""The progress of a run on a terminal of 80 columns."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hopper.train import console as run_console
from hopper.train.console import RunConsole
from hopper.train.rank_output import FOLDER, output


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the console writes to a terminal of 80 columns."""
    screen = io.StringIO()

    def terminal(**options: Any) -> Console:
        return Console(file=screen, width=80, force_terminal=True, color_system=None, **options)

    monkeypatch.setattr(run_console, "Console", terminal)
    return screen


def read_bar(console: RunConsole, screen: io.StringIO) -> str:
    """Redraw the progress bar, and return its text."""
    assert console._bar is not None
    screen.seek(0)
    screen.truncate()
    console._bar.refresh()
    return screen.getvalue()


def test_a_loss_is_shown_once_it_is_known(screen: io.StringIO) -> None:
    with RunConsole(True, "accuracy") as console:
        console.start_epoch(3, 0, 100, 4096)
        assert "loss" not in read_bar(console, screen)
        console.step(math.nan, 0)
        assert "loss" not in read_bar(console, screen)
        console.step(1.25, 10**6)
        assert "loss 1.2500" in read_bar(console, screen)
        # A rank that does not learn of an iteration's loss goes on to show the last one.
        console.step(math.nan, 10**6)
        text = read_bar(console, screen)
        assert "loss 1.2500" in text
        assert "nan" not in text


def test_the_bar_fits_into_80_columns(screen: io.StringIO) -> None:
    with RunConsole(True, "balanced_accuracy") as console:
        console._score = "  val balanced_accuracy 0.9876"
        console.start_epoch(123, 5, 12345, 10**6)
        for step in range(3):
            console.step(123.4567, step * 10**9)
        text = read_bar(console, screen)
    for part in ("epoch 123", "8/12345", "loss 123.4567", "val balanced_accuracy 0.9876", "left"):
        assert part in text
    assert "…" not in text


def test_a_process_keeps_the_log_of_each_run_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    for name in ("first", "second"):
        output.keep(tmp_path / name, 0)
        print(name, file=sys.stderr)
    output.forget()
    print("third", file=sys.stderr)
    for name in ("first", "second"):
        assert (tmp_path / name / FOLDER / "0.log").read_text() == f"{name}\n"
    assert printed.getvalue() == "first\nsecond\nthird\n"
