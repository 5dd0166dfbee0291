"""Loading what another run has learned, to begin a run with it or to predict."""

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
    """Load models and this rank's learnable rows from the run that ``train.init_from`` names.

    Rows of nodes that this run did not have stay as they are.

    Raises
    ------
    RequestError: the folder is not that of a finished run, or its model is another; names the key.
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
    """Load this rank's learnable rows from the end of a run.

    Returns
    -------
    By table, how many of the rank's rows the run does not have.

    Raises
    ------
    RequestError: a file of rows is missing or altered.
    """
    files = [learned_rows_file(Path(run.run_dir), rank) for rank in range(run.ranks)]
    missing = {}
    for table in learnable:
        loaded = 0
        for file in files:
            for ids, rows in read_pieces(file, [f"{table.name}{IDS}", table.name]):
                loaded += table.fill(ids.numpy(), rows)
        table.finish_restore()
        missing[table.name] = table.owned_ids().size - loaded
    return missing
