"""result.json of an experiment: when, where and with what it was measured, and a line a cell."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import torch

from benchmarks.paper.experiment import Experiment
from benchmarks.paper.options import Options
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.whole_files import write_text

RESULT_SCHEMA: Final = 1
RESULT_FILE: Final = "result.json"
DIGITS: Final = 7
"""of its floats; what is shown has four at most"""


def assemble_result(
    experiment: Experiment, options: Options, cells: Sequence[Mapping[str, Any]], wanted: int
) -> dict[str, Any]:
    """Assemble the content of result.json.

    Parameters
    ----------
    cells: the figures of every cell that is finished, in order.
    wanted: how many cells there are to be.
    """
    request = {
        "cells": wanted,
        "rounds": options.rounds or experiment.rounds,
        "epochs": options.epochs or experiment.epochs,
        "iterations": options.iterations or experiment.iterations,
        "seeds": options.seeds,
        "emulated": options.emulated,
        "shared_batch": None if options.batch_size else experiment.grid.shared_batch,
        "overrides": list(options.words),
    }
    return {
        "schema": RESULT_SCHEMA,
        "experiment": experiment.name,
        "title": experiment.title,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "machine": machine() | {"gpu": gpu_name()},
        "asked": request,
        "runs": experiment.runs.format(**request),
        "timed": experiment.timed,
        "published": [figure._asdict() for figure in experiment.published],
        "hardware": experiment.hardware,
        "link": experiment.link,
        "differs": list(experiment.differs),
        "cells": [dict(cell) if experiment.shows_epochs else _drop_epochs(cell) for cell in cells],
        "summary": summarise(cells),
    }


def _drop_epochs(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out single epochs, which stay in the cell's file. Medians and intervals remain."""
    if "sides" not in cell:
        return dict(cell)
    sides = {
        role: {key: value for key, value in side.items() if key != "epochs"}
        for role, side in cell["sides"].items()
    }
    return {**cell, "sides": sides}


def summarise(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Summarise every comparison: least, largest and geometric mean of its ratio over the cells.

    Returns
    -------
    role, baseline, cells (that tell a ratio), refused, least, most, mean, above_one (cells whose
    whole 95 % interval lies above 1).
    """
    pairs = list(
        dict.fromkeys((r["role"], r["baseline"]) for cell in cells for r in cell.get("ratios", ()))
    )
    entries = []
    for pair in pairs:
        ratios = [
            ratio
            for cell in cells
            for ratio in cell["ratios"]
            if (ratio["role"], ratio["baseline"]) == pair
        ]
        means = [ratio["mean"] for ratio in ratios if ratio["mean"] is not None]
        entries.append(
            {
                "role": pair[0],
                "baseline": pair[1],
                "cells": len(means),
                "refused": len(ratios) - len(means),
                "least": min(means, default=None),
                "most": max(means, default=None),
                "mean": math.exp(fmean(map(math.log, means))) if means else None,
                "above_one": sum((ratio["low"] or 0) > 1 for ratio in ratios),
            }
        )
    return entries


def write_result(out: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write result.json. Return it as it is read again, since pages and pictures are made from
    that."""
    text = format_result(result, DIGITS)
    write_text(out / RESULT_FILE, text)
    values: dict[str, Any] = json.loads(text)
    return values


def gpu_name() -> str | None:
    """Return the first GPU's name; None where there is none."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
