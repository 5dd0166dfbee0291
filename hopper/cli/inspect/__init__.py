"""``hopper inspect graph | metatree | schedule | cache``: look at them, and train nothing."""

from __future__ import annotations

from hopper.cli.inspect import cache, graph, metatree, schedule
from hopper.cli.options import CommandParser


def add_options(parser: CommandParser) -> None:
    """Add the kinds of things to look at."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind in (graph, metatree, schedule, cache):
        kind.add_parser(kinds)
