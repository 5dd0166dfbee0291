"""``hopper serve PARTITIONED --server I --listen HOST:PORT``: run one feature server."""

from __future__ import annotations

import cache_server.__main__ as server
from hopper.cli.options import CommandParser


def add_options(parser: CommandParser) -> None:
    """Add the options of the command, which are those of ``python -m cache_server``."""
    parser.description = "Serve one server's rows of a partitioned graph until SIGTERM or SIGINT."
    server.add_options(parser)
    parser.set_defaults(run=server.serve_with)
