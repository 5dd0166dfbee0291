"""``hopper inspect graph DIR``: check and describe a graph directory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(kinds: Any) -> None:
    """Add the subcommand."""
    parser = kinds.add_parser("graph", help="check and describe a graph directory")
    parser.option("graph DIR", "graph directory", type=Path)
    parser.option("--json", "print JSON instead of tables")
    parser.option(
        "--check",
        "scan all values except features (full, the default), or only headers (shapes)",
        choices=("full", "shapes"),
        default="full",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from hopper.cli.dataset_tables import print_description
    from hopper.cli.options import print_json
    from hopper.graph import GraphDirectory
    from hopper.graph.describe import describe

    description = describe(GraphDirectory.open(options.graph, check=options.check))
    if options.json:
        print_json(description)
    else:
        print_description(description, Console())
    return 0
