"""``hopper sweep CONFIG.toml [--section.key VALUE ...]``: train lists of values as trials."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

import hopper
from hopper.cli.options import CommandParser
from hopper.display.console_tables import make_table, print_table


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Give a list where [model] or [train] expects one value. Each combination is a "
        "trial. The engine hop trains all trials at once. Any "
        "key of the configuration can be overridden as --section.key VALUE."
    )
    parser.allow_abbrev = False
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import override, read_values
    from hopper.train.sweep import make_sweep

    where = str(options.config)
    config = make_sweep(override(read_values(where), options.overrides, where), where)
    console = Console()
    print_table(console, _trials_table(config.hop.trials))
    summary = hopper.train(config).summary
    print_table(console, ranking_table(summary))
    return 0


def _trials_table(trials: Sequence[Mapping[str, Any]]) -> Table:
    keys = _keys(trials)
    rows = [(str(index), *_cells(overrides, keys)) for index, overrides in enumerate(trials)]
    return make_table(("trial", *_heads(keys)), rows, texts=1 + len(keys))


def ranking_table(summary: Mapping[str, Any]) -> Table:
    """Make a table of the results, with the best validation score first."""
    from hopper.train.results import main_score

    trials = [summary["trials"][index] for index in summary["ranking"]]
    keys = _keys([trial["overrides"] for trial in summary["trials"]])
    metric = summary["metric"]
    scores = ("parameters", f"val {metric}", "best epoch", f"test {metric}")
    headings = ("trial", *_heads(keys), *scores)
    rows = [
        (
            str(trial["trial"]),
            *_cells(trial["overrides"], keys),
            str(trial["parameters"]),
            "diverged" if trial.get("diverged") else _score(main_score(trial, "val")),
            "-" if trial["best_epoch"] is None else str(trial["best_epoch"]),
            _score(main_score(trial, "test")),
        )
        for trial in trials
    ]
    return make_table(headings, rows, "by validation score", texts=len(headings))


def _keys(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for overrides in trials for key in overrides))


def _heads(keys: Sequence[str]) -> list[str]:
    """Write keys as words. Without their sections they still differ."""
    return [key.partition(".")[2].replace("_", " ") for key in keys]


def _cells(overrides: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [str(overrides[key]) if key in overrides else "" for key in keys]


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
