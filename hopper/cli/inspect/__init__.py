"""``hopper inspect graph | metatree | schedule | cache``: look at them, and train nothing."""

from __future__ import annotations

from typing import Any

from hopper.cli.inspect import cache, graph, metatree, schedule


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser("inspect", help=text)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind in (graph, metatree, schedule, cache):
        kind.add_parser(kinds)
