"""``hopper serve PARTITIONED --server I --listen HOST:PORT``: run one feature server."""

from __future__ import annotations

from typing import Any

from cache_server.__main__ import build_parser, serve_with


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand, with the options of ``python -m cache_server``.

    Parameters
    ----------
    text: the description in the list of commands.
    """
    parser = commands.add_parser(
        "serve",
        help=text,
        description="Serve one server's rows of a partitioned graph until SIGTERM or SIGINT.",
        parents=[build_parser(add_help=False)],
    )
    parser.set_defaults(run=serve_with)
