"""Replaying the decisions of another run.

Every epoch's record has the decisions that depend on clocks, such as the number of merged time
steps. A run that replays them equals the first run, bit for bit.
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
"""Decisions by epoch."""


def read_decisions(config: Config, ranks: int) -> Decisions:
    """Read the decisions of the run that ``train.replay`` names; empty if it names none.

    Raises
    ------
    RequestError: there is no such run, or it has another engine or number of ranks.
    """
    if not config.train.replay:
        return []
    folder, epochs = _read(config)
    engine = config.train.engine
    if engine == AUTO:
        engine = epochs[0][1]
    if {epoch[1:] for epoch in epochs} != {(engine, ranks)}:
        raise RequestError(
            f"train.replay: {folder}: expected epochs of engine {engine} on {ranks} ranks, found "
            f"{sorted({epoch[1:] for epoch in epochs})}"
        )
    return [epoch[0] for epoch in epochs]


def read_replayed_engine(config: Config) -> str:
    """Return the engine of the run that ``train.replay`` names.

    Raises
    ------
    RequestError: there is no such run.
    """
    return _read(config)[1][0][1]


def _read(config: Config) -> tuple[Path, list[tuple[Mapping[str, Any], str, int]]]:
    """Return the run's folder, and the decisions, engine and number of ranks of each of its
    epochs."""
    folder = Path(config.train.replay)
    try:
        lines = (folder / EPOCHS_FILE).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        epochs = [(record["decisions"], record["engine"], record["ranks"]) for record in records]
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise RequestError(
            f"train.replay: {folder}: expected a training run with epochs in {EPOCHS_FILE} "
            f"({type(error).__name__}: {error})"
        ) from error
    if not epochs:
        raise RequestError(f"train.replay: {folder}: {EPOCHS_FILE} has no epoch")
    return folder, epochs


def decisions_of(decisions: Decisions, epoch: int) -> Mapping[str, Any]:
    """Return the decisions of one epoch. Epochs after the last recorded one take its decisions."""
    return decisions[min(epoch, len(decisions) - 1)] if decisions else {}
