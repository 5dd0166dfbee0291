"""``hopper serve PARTITIONED --server I --listen HOST:PORT``: one feature server."""

from __future__ import annotations

import argparse
from typing import Any

from cache_server.__main__ import main as serve_main


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "serve",
        help="serve one server's rows (the same as python -m cache_server)",
        add_help=False,
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    return serve_main(options.arguments)
