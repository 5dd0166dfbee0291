"""The ``hopper`` command. Its subcommands are in :mod:`hopper.cli.commands`.

This module imports little, because importing torch takes a second. So Ctrl-C is answered in a line
from the first moment.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.05
_INTERRUPTED: Final = "interrupted"
_CODE: Final = 128 + signal.SIGINT
_UNREAD: Final = 128 + signal.SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    The code is 0 if the command succeeded, 1 if it failed with a text on stderr, 130 if it was
    interrupted, and 141 if whoever read its output has gone, as ``head`` does.
    """
    try:
        with _answer_ctrl_c():
            code = _run(argv)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return _UNREAD
    except KeyboardInterrupt:
        # A second Ctrl-C ends the process without waiting for threads that still work.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        print(_INTERRUPTED, file=sys.stderr, flush=True)
        return _CODE


@contextmanager
def _answer_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end a command also where Python alone would not.

    During an import of torch, Ctrl-C ends the process at once, because torch's code would abort it.
    While an object is destroyed, Python may drop Ctrl-C. It is then sent again a moment later.
    """
    before = sys.unraisablehook

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if _imports_torch(frame):
            print(_INTERRUPTED, file=sys.stderr, flush=True)
            os._exit(_CODE)
        raise KeyboardInterrupt

    def send_again(dropped: Any) -> None:
        """Send SIGINT again if Python drops KeyboardInterrupt in a place that cannot raise."""
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            timer = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
            timer.daemon = True
            timer.start()
        else:
            before(dropped)

    # Another handler stays. Only the main thread may set one.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    is_ours = is_ours and threading.current_thread() is threading.main_thread()
    sys.unraisablehook = send_again
    try:
        if is_ours:
            signal.signal(signal.SIGINT, interrupt)
        yield
    finally:
        sys.unraisablehook = before
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _imports_torch(frame: FrameType | None) -> bool:
    """Return whether a module of torch is being imported in this frame or in one that called it."""
    names = set()
    while frame is not None:
        names.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            names.add("import")
        frame = frame.f_back
    return {"import", "torch"} <= names


def _is_output_closed() -> bool:
    """Return whether nobody reads stdout any more. What is left to print is then thrown away."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in watch.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


def _run(argv: Sequence[str] | None) -> int:
    from cache_server.errors import CacheServerError
    from hopper.cli.commands import build_parser
    from hopper.errors import HopperError, explain_os_error

    words = sys.argv[1:] if argv is None else list(argv)
    options = build_parser(words).parse_args(words)
    try:
        return int(options.run(options))
    except (HopperError, CacheServerError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError as error:
        text = explain_os_error(error, "writing a file")
        if text is None:
            raise
        print(f"error: {text}", file=sys.stderr)
    return 1
