"""``hopper report DIR``: write a report of a folder of results."""

from __future__ import annotations

import argparse
from pathlib import Path

from hopper.cli.options import CommandParser


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Read what `hopper bench` wrote, or the run directory of `hopper train`, "
        "and write one HTML file. The page leaves out what the folder does not have, and says so."
    )
    parser.option("folder DIR", type=Path)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.bench.report import write_report

    print(f"report in {write_report(options.folder)}")
    return 0
