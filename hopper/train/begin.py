"""What was learned in another run: what a run begins with, and what predicts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from hopper.config import Config
from hopper.errors import RequestError
from hopper.hetero.learnable import IDS, TableShare
from hopper.train.checkpoint import load_model
from hopper.train.results import learned_rows_file
from hopper.train.run_result import RunResult
from hopper.train.tensor_file import read_pieces


def begin_with(
    config: Config, models: Iterable[nn.Module], learnable: Iterable[TableShare]
) -> None:
    """Let models, and this rank's learnable rows, be those that ``train.init_from`` ended with;
    rows of nodes that were not there stay what they are.

    Raises
    ------
    RequestError: it is no finished run's folder, or one of another model; names the key.
    """
    if not config.train.init_from:
        return
    try:
        run = RunResult.open(config.train.init_from)
        for model in models:
            load_model(run.model_file, model)
        restore_rows(run, learnable)
    except RequestError as error:
        raise RequestError(f"train.init_from: {error}") from error


def restore_rows(run: RunResult, learnable: Iterable[TableShare]) -> dict[str, int]:
    """Make this rank's learnable rows those that a run ended with.

    Returns
    -------
    By table, how many of the rank's rows the run had none for.

    Raises
    ------
    RequestError: a file of them is missing or altered.
    """
    files = [learned_rows_file(Path(run.run_dir), rank) for rank in range(run.ranks)]
    missing = {}
    for table in learnable:
        found = 0
        for file in files:
            for ids, rows in read_pieces(file, [f"{table.name}{IDS}", table.name]):
                found += table.fill(ids.numpy(), rows)
        table.finish_restore()
        missing[table.name] = table.owned().size - found
    return missing
