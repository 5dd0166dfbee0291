"""The ``hopper`` command; its subcommands are in :mod:`hopper.cli.commands`.

Little is imported here: Ctrl-C is answered in a line from the first moment, and importing torch
takes a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what was asked, 1 with a text on stderr if it could not, 130 if it
    was interrupted."""
    try:
        with _raised_again():
            return _run(argv)
    except KeyboardInterrupt:
        # Whoever does not want to wait for threads that still work presses it once more.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr, flush=True)
        return 130


@contextmanager
def _raised_again() -> Iterator[None]:
    """Send again, a moment later, the Ctrl-C that Python drops: one that arrives while an object is
    being destroyed."""
    before = sys.unraisablehook

    def send_again(dropped: Any) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(dropped)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _run(argv: Sequence[str] | None) -> int:
    from cache_server.errors import CacheServerError
    from hopper.cli.commands import build_parser
    from hopper.errors import HopperError, explain_os_error

    words = sys.argv[1:] if argv is None else list(argv)
    options = build_parser(words).parse_args(words)
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
