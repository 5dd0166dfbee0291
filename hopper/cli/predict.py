"""``hopper predict RUN --out DIR``: write the predictions of a trained model."""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hopper.cli.options import CommandParser
from hopper.errors import ConfigError, RequestError
from hopper.process.quick_imports import quick_imports

if TYPE_CHECKING:
    from hopper.config import Config


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Compute predictions layer by layer with all neighbours. Servers and ranks are "
        "started on this machine. If the command was interrupted, run it again to go on. Of the "
        "run's configuration, data.*, cluster.*, train.device and train.threads can be overridden "
        "as --section.key VALUE: --data.partitioned names another graph."
    )
    parser.option("run_dir RUN", "folder of a finished run", type=Path)
    parser.option("--out DIR", "where to write: a folder, or an address of fsspec", required=True)
    parser.option(
        "--what",
        "what to write (default labels); labels are classes or values, as in the graph",
        choices=("labels", "probabilities", "logits", "embeddings"),
        default="labels",
    )
    parser.option(
        "--nodes all|SPLIT|FILE",
        "nodes to predict: all of the target type (default), a split, an .npy file of original "
        "ids, or a .txt file with a name a line; for a run on labels of edges: edges",
        default="all",
    )
    parser.option(
        "--type TYPE",
        "node type to predict (default: the target type; for links the type of their tails)",
        default="",
    )
    parser.option(
        "--at TIME",
        "time to predict for, if the run draws in time: an integer or a date such as 2026-05-31 "
        "(default: the time of each root)",
    )
    parser.option("--format", choices=("parquet", "npy"), default="parquet")
    parser.option(
        "--top K",
        "of probabilities, only the K largest of each node, and their classes",
        type=int,
        default=0,
    )
    parser.option(
        "--dtype",
        "of probabilities, logits and embeddings (default float32)",
        choices=("float32", "float16"),
        default="float32",
    )
    parser.option("--memory SIZE", "for one pass's rows (default 256M)", default="256M")
    parser.option(
        "--prepare",
        "start nothing; write what `torchrun ... -m hopper.predict DIR/_work/config.json` reads "
        "on the machines of a cluster",
    )
    parser.set_defaults(run=_run, takes_overrides=True)


def _time(text: str) -> int:
    """Parse an integer in any unit, or an ISO 8601 date (UTC unless it has a zone) as seconds since
    1970."""
    with suppress(ValueError):
        if -(2**63) <= int(text) < 2**63:
            return int(text)
    with suppress(ValueError):
        date = datetime.fromisoformat(text)
        return math.floor((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())
    raise RequestError(
        f"--at: expected an integer of 64 bits, or a date such as 2026-05-31, given {text!r}"
    )


def _run(options: argparse.Namespace) -> int:
    from hopper.launch.processes import forked_ahead

    config = None if options.prepare else _read_config(options)
    with forked_ahead(config, work="hopper.predict.rank"):
        with quick_imports():
            from hopper.files.addresses import without_password
            from hopper.predict.launch import predict_into, prepare_prediction
            from hopper.predict.request import PredictionRequest
        request = PredictionRequest(
            options.what,
            options.nodes,
            options.format,
            options.memory,
            tuple(options.overrides),
            options.type,
            None if options.at is None else _time(options.at),
            options.top,
            options.dtype,
        )
        if options.prepare:
            file = prepare_prediction(options.run_dir, options.out, request)
            print(f"torchrun ... -m hopper.predict {file}")
            return 0
        count = predict_into(options.run_dir, options.out, request)
    print(f"{without_password(options.out)}: {count:,} {options.what}")
    return 0


def _read_config(options: argparse.Namespace) -> Config | None:
    """Return the run's configuration; None if it cannot be used, which the prediction tells."""
    from hopper.config import make_config, read_values

    try:
        values = read_values(Path(options.run_dir, "config.json"))
        values["cluster"]["servers"] = []
        return make_config(values, options.overrides)
    except (ConfigError, KeyError, TypeError):
        return None
