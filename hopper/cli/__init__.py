"""The ``hopper`` command; its subcommands are in :mod:`hopper.cli.commands`.

Little is imported here: Ctrl-C is answered in a line from the first moment, and importing torch
takes a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what was asked, 1 with a text on stderr if it could not, 130 if it
    was interrupted."""
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _run(argv: Sequence[str] | None) -> int:
    from cache_server.errors import CacheServerError
    from hopper.cli.commands import build_parser
    from hopper.errors import HopperError, explain_os_error

    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (HopperError, CacheServerError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        told = explain_os_error(error, "writing a file")
        if told is None:
            raise
        print(f"error: {told}", file=sys.stderr)
    return 1
