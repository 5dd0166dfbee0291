"""Failures of ranks: recording them for torchrun's agent, and finding the one that came first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cache_server.events import events
from hopper.errors import ClusterError, HopperError, RankFailed, RankLost, RankSilent
from hopper.train.parent import DIE_WITH_PARENT

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RECORD_FILE: Final = "error.json"
"""The name that torchrun's agent gives a rank's record."""
_FILE_VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"
_MOMENT, _KIND = "moment", "kind"


@dataclass(frozen=True)
class Failure:
    """The failure of a rank.

    Attributes
    ----------
    rank, pid: the rank and its process id.
    exit_code: the exit code; the negative number of a signal that ended the rank.
    message: the last line of its error.
    moment: the time of its failure, in seconds since 1970.
    kind: the name of its error class; "" if it left no record.
    """

    rank: int
    pid: int
    exit_code: int
    message: str
    moment: float
    kind: str = ""


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
    """Write this rank's error to the file that torchrun's agent reads; tell whether it could be.

    torch's own writer gives the time in whole seconds, too coarse to tell which of two ranks failed
    first. On a full disk it leaves half a file, at which the agent fails.
    """
    name = os.environ.get(_FILE_VARIABLE)
    if not name:
        return False
    moment = time.time()
    # Hopper's own errors have texts for users, which need no class name and no call stack.
    is_own = isinstance(error, HopperError)
    text = str(error) if is_own else f"{type(error).__name__}: {error}"
    extra = {
        "py_callstack": text if is_own else "".join(traceback.format_exception(error)),
        "timestamp": str(int(moment)),
        _MOMENT: moment,
        _KIND: type(error).__name__,
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


def read_failure(rank: int, failure: ProcessFailure) -> Failure:
    """Return the failure of a rank, from what torchrun's agent knows."""
    # torch declares a string, but a recorded exception has a dictionary here.
    recorded: Any = failure.message
    if not isinstance(recorded, dict):
        message = f"{how_it_ended(failure.exitcode)} and left no record; its output tells more"
        return Failure(rank, failure.pid, failure.exitcode, message, failure.timestamp)
    text, extra = str(recorded["message"]).strip(), recorded["extraInfo"]
    return Failure(
        rank,
        failure.pid,
        failure.exitcode,
        text.splitlines()[-1] if text else "no message",
        float(extra.get(_MOMENT, failure.timestamp)),
        str(extra.get(_KIND, "")),
    )


def find_first(failures: Sequence[Failure]) -> Failure:
    """Find the failure that caused the others.

    Parameters
    ----------
    failures: the failures in the order in which torchrun's agent saw them.
    """
    by_signal = [failure for failure in failures if was_killed(failure)]
    crashed = [failure for failure in by_signal if failure.exit_code != -signal.SIGKILL]
    by_error = [failure for failure in failures if failure.exit_code > 0]
    # A rank with one of these errors failed because another rank was gone or silent.
    consequences = (RankLost.__name__, RankSilent.__name__)
    causes = [failure for failure in by_error if failure.kind not in consequences]
    # After a rank gives up waiting for one that hangs, torchrun's agent kills the latter.
    hung = any(failure.kind == RankSilent.__name__ for failure in by_error)
    killed = [] if hung else by_signal
    candidates = crashed or causes or killed or by_error or failures
    # Failures without a record have times in whole seconds: among equal times, the order decides.
    return min(candidates, key=lambda failure: failure.moment)


def explain(
    failures: Sequence[Failure], place_of: Callable[[int], str] = lambda rank: ""
) -> ClusterError:
    """Make an error that names the rank that failed first, and says why.

    Parameters
    ----------
    place_of: returns the text about a rank's machine that precedes the rank.
    """
    first = find_first(failures)
    rank_text = f"{place_of(first.rank)}rank {first.rank} (pid {first.pid})"
    if first.exit_code < 0:
        return RankLost(f"{rank_text} {how_it_ended(first.exit_code)}; the other ranks were ended")
    return RankFailed(f"{rank_text} failed: {first.message}", first.kind)


def was_killed(failure: Failure) -> bool:
    """Return whether a signal ended the rank, other than SIGTERM, with which torchrun ends
    ranks."""
    return failure.exit_code < 0 and failure.exit_code != -signal.SIGTERM


def how_it_ended(code: int) -> str:
    """Return a process's exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
