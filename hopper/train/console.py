"""Rank 0's output during a run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from hopper.train.callbacks import Callback, Running
from hopper.train.rank_process import output
from hopper.train.results import finite_mean


class _EpochBar(Progress):
    """A bar, and what changes beside it on a line of its own: 80 columns do not hold both."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield what rich has to draw: the bar; the last loss that is a number, the last epoch's
        score, the roots a second of all ranks, and the bytes a second that this rank has sent."""
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            fields = task.fields
            loss = "" if math.isnan(fields["loss"]) else f"loss {fields['loss']:.4f}"
            words = [f"{loss}{fields['score']}".strip()]
            if task.speed:
                words.append(f"{task.speed * fields['batch']:,.0f} roots/s")
                megabytes = fields["sent"] / task.elapsed / 1e6 if task.elapsed else 0.0
                words.append(f"{megabytes:.3g} MB/s sent here")
            yield Text("  ".join(filter(None, words)))


class RunConsole(Callback):
    """Prints the progress of a run, if ``shown``: only rank 0 does."""

    def __init__(self, shown: bool) -> None:
        self._console = Console() if shown else None
        self._bar: Progress | None = None
        self._sent_before: int | None = None
        self._score = ""

    def say(self, text: str) -> None:
        """Print a line that begins with the time of day."""
        if self._console is not None:
            line = f"{time.strftime('%H:%M:%S')}  {text}"
            self._console.print(line, highlight=False, soft_wrap=True)
            output.write(f"{line}\n")

    def start(self, run: Running) -> None:
        """Begin to draw a bar, on a terminal."""
        if self._console is not None and self._console.is_terminal:
            self._bar = _EpochBar(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()

    def begin_epoch(self, run: Running) -> None:
        """Show the beginning of an epoch."""
        if self._bar is not None:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._sent_before = None
            fields: dict[str, Any] = {"epoch": run.epoch, "batch": run.batch, "sent": 0}
            fields |= {"loss": math.nan, "score": self._score}
            self._bar.add_task("", total=run.iterations, completed=run.iteration, **fields)

    def iteration(self, run: Running) -> None:
        """Show the end of an iteration."""
        if self._bar is None:
            return
        if self._sent_before is None:
            self._sent_before = run.sent_bytes
        fields: dict[str, Any] = {"sent": run.sent_bytes - self._sent_before}
        loss = next(iter(run.losses.values()))
        if not math.isnan(loss):
            fields["loss"] = loss
        self._bar.update(self._bar.task_ids[0], advance=1, **fields)

    def epoch(self, run: Running, record: Mapping[str, Any]) -> None:
        """Print an epoch's line."""
        sent, norms = record["bytes"], record["gradient_norms"]
        # The metric that selects the best model comes first.
        metric = next(iter(record["scores"]), "")
        self._score = "" if record["val"] is None else f"  val {metric} {record['val']:.4f}"
        norm = f"  gradient {finite_mean(norms):.3g}" if norms else ""
        left_out = f"  {record['left_out']} updates left out" if record["left_out"] else ""
        rate = record["roots"] / record["seconds"] if record["seconds"] else 0.0
        self.say(
            f"epoch {record['epoch']:3d}  loss {record['loss']:.4f}{self._score}{norm}  "
            f"{record['seconds']:.2f} s  {rate:,.0f} roots/s  "
            f"sent {sum(sent.values()) / 1e6:.1f} MB "
            f"(features {sent['feature'] / 1e6:.1f}){left_out}"
        )

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
