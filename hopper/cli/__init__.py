"""The ``hopper`` command. Its subcommands are in :mod:`hopper.cli.commands`.

This module imports little, because importing torch takes a second. So signals are answered in a
line from the first moment.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Final

from hopper.process.signal_handlers import EndedBySignal, end_on_signals

_UNREAD: Final = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 if the command succeeded, 1 if it failed with a text on stderr, 128 and the
    signal's number if a signal ended it (130 after Ctrl-C), and 141 if whoever read its output has
    gone, as ``head`` does.
    """
    try:
        with end_on_signals() as arrived:
            code = _run(argv, arrived)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return _UNREAD
    except KeyboardInterrupt as error:
        # Another handler of Ctrl-C raises it as it is.
        ended = error if isinstance(error, EndedBySignal) else EndedBySignal(signal.SIGINT)
        # A second signal ends the process without waiting for threads that still work.
        with contextlib.suppress(ValueError):
            signal.signal(ended.number, signal.SIG_DFL)
        print(ended, file=sys.stderr, flush=True)
        return ended.code


def _is_output_closed() -> bool:
    """Return whether nobody reads stdout any more. What is left to print is then thrown away."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in watch.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


def _run(argv: Sequence[str] | None, arrived: Sequence[int]) -> int:
    """Run a command, and print the error that ends it.

    Parameters
    ----------
    arrived: the signals that have told this process to end.
    """
    from cache_server.errors import CacheServerError
    from hopper.cli.commands import build_parser, find_renamed
    from hopper.errors import HopperError, RunEnded, explain_os_error

    words = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser(words)
    if not words:
        parser.print_help()
        return 2
    if renamed := find_renamed(words):
        parser.error(renamed)
    options = parser.parse_args(words)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        raise
    except Exception as error:
        # Libraries turn the exception of a signal into errors of their own.
        if arrived:
            raise EndedBySignal(arrived[0]) from error
        if isinstance(error, HopperError | CacheServerError):
            text: str | None = str(error)
        else:
            text = explain_os_error(error, "writing a file") if isinstance(error, OSError) else None
        if text is None:
            raise
        print("\n".join([f"error: {text}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return error.code if isinstance(error, RunEnded) else 1
