"""``hopper report DIR``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand; ``text`` says in the list of commands what it does."""
    parser = commands.add_parser(
        "report",
        help=text,
        description="Reads what `hopper bench ab` wrote, or the run directory of `hopper train`, "
        "and writes one HTML file that shows it. What a folder does not hold is left out, and the "
        "page says so.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.bench.report import write_report

    path = write_report(options.folder)
    print(f"report in {path}")
    return 0
