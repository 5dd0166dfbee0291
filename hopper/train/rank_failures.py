"""A failing rank's record of its error, which its launcher or torchrun's agent reads."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from pathlib import Path
from typing import Final

from cache_server.events import events
from hopper.errors import HopperError
from hopper.train.parent import DIE_WITH_PARENT

RECORD: Final = "TORCHELASTIC_ERROR_FILE"
"""The environment variable with the file of the record, which torchrun sets too."""


def tell_failure(error: Exception) -> None:
    """Record why this rank fails, and tell it on stderr.

    A launcher of Hopper's tells one of Hopper's own errors itself, once for all ranks.
    """
    is_recorded = record_failure(error)
    if not isinstance(error, HopperError):
        traceback.print_exception(error)
    elif events.format == "json" or not (is_recorded and DIE_WITH_PARENT in os.environ):
        events.fail("error", f"rank {os.environ.get('RANK', '0')}: error: {error}")


def record_failure(error: BaseException) -> bool:
    """Write this rank's error in the form that torchrun's agent reads; tell whether it could be.

    torch's own writer gives the time in whole seconds, too coarse to tell which of two ranks failed
    first. On a full disk it leaves half a file, at which the agent fails.
    """
    name = os.environ.get(RECORD)
    if not name:
        return False
    moment = time.time()
    # Hopper's own errors have texts for users, which need no class name and no call stack.
    is_own = isinstance(error, HopperError)
    text = str(error) if is_own else f"{type(error).__name__}: {error}"
    extra = {
        "py_callstack": text if is_own else "".join(traceback.format_exception(error)),
        "timestamp": str(int(moment)),
        "moment": moment,
        "kind": type(error).__name__,
    }
    record = {"message": {"message": text, "extraInfo": extra}}
    unfinished = Path(f"{name}.unfinished")
    try:
        unfinished.write_text(json.dumps(record))
        unfinished.replace(name)
    except OSError:
        # The rank prints its error as well.
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True
