"""Taking another run's decisions again (design.md, invariant 6).

Decisions that depend on clocks, such as how many time steps are merged, are recorded with every
epoch. Replaying them makes a second run equal to the first, bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopper.config import Config
from hopper.engines import AUTO
from hopper.errors import RequestError
from hopper.train.results import EPOCHS_FILE

Decisions = Sequence[Mapping[str, Any]]
"""by epoch"""


def read_decisions(config: Config, ranks: int) -> Decisions:
    """The decisions of the run that ``train.replay`` names; none where it names none.

    Raises
    ------
    RequestError: there is no such run, or it is of another engine or number of ranks.
    """
    if not config.train.replay:
        return []
    folder, found = _read(config)
    engine = config.train.engine
    if engine == AUTO:
        engine = found[0][1]
    if {each[1:] for each in found} != {(engine, ranks)}:
        raise RequestError(
            f"train.replay: {folder}: expected epochs of engine {engine} on {ranks} ranks, found "
            f"{sorted({each[1:] for each in found})}"
        )
    return [each[0] for each in found]


def replayed_engine(config: Config) -> str:
    """The engine of the run that ``train.replay`` names.

    Raises
    ------
    RequestError: there is no such run.
    """
    return _read(config)[1][0][1]


def _read(config: Config) -> tuple[Path, list[tuple[Mapping[str, Any], str, int]]]:
    """The run's folder, and the decisions, engine and ranks of its epochs; one at least."""
    folder = Path(config.train.replay)
    try:
        lines = (folder / EPOCHS_FILE).read_text().splitlines()
        epochs = [json.loads(line) for line in lines]
        found = [(epoch["decisions"], epoch["engine"], epoch["ranks"]) for epoch in epochs]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"train.replay: {folder}: expected a training run with epochs in {EPOCHS_FILE} "
            f"({type(error).__name__}: {error})"
        ) from error
    if not found:
        raise RequestError(f"train.replay: {folder}: {EPOCHS_FILE} has no epoch")
    return folder, found


def decisions_of(decisions: Decisions, epoch: int) -> Mapping[str, Any]:
    """Those of one epoch; beyond the last recorded epoch, its decisions stay."""
    return decisions[min(epoch, len(decisions) - 1)] if decisions else {}
