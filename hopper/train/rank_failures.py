"""Ranks that fail: what they leave for torchrun's agent to read, and which of them failed first."""

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

from hopper.errors import ClusterError, HopperError, RankFailed, RankLost, RankSilent

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RECORD_FILE: Final = "error.json"
"""the name that torchrun's agent gives a rank's record"""
_FILE_VARIABLE: Final = "TORCHELASTIC_ERROR_FILE"
_MOMENT, _KIND = "moment", "kind"


@dataclass(frozen=True)
class Failure:
    """How a rank ended that did not end well.

    Attributes
    ----------
    exit_code: negative where a signal ended it.
    message: the last line of its error.
    moment: when, in seconds since the epoch.
    kind: the name of its error; "" where it left no record.
    """

    rank: int
    pid: int
    exit_code: int
    message: str
    moment: float
    kind: str = ""


def record_failure(error: BaseException) -> None:
    """Write why this rank fails, where torchrun's agent looks for it, in the form that it reads.

    torch's own writer tells the moment in whole seconds, which does not say which of two ranks
    failed first, and leaves half a file on a full disk, which the agent then trips over.
    """
    name = os.environ.get(_FILE_VARIABLE)
    if not name:
        return
    moment = time.time()
    extra = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(moment)),
        _MOMENT: moment,
        _KIND: type(error).__name__,
    }
    # The text of Hopper's own errors is meant for the user as it is.
    text = str(error) if isinstance(error, HopperError) else f"{type(error).__name__}: {error}"
    record = {"message": {"message": text, "extraInfo": extra}}
    unfinished = Path(f"{name}.unfinished")
    try:
        unfinished.write_text(json.dumps(record))
        unfinished.replace(name)
    except OSError:
        # The rank prints its error as well.
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def read_failure(rank: int, failure: ProcessFailure) -> Failure:
    """What torchrun's agent has learned of a rank that failed."""
    # torch declares a string; of a recorded exception it is a dictionary.
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
    """The failure that came first; the others are its consequence.

    Parameters
    ----------
    failures: in the order in which torchrun's agent met them.
    """
    ended = [each for each in failures if was_killed(each)]
    crashed = [each for each in ended if each.exit_code != -signal.SIGKILL]
    told = [each for each in failures if each.exit_code > 0]
    # The others failed for want of another rank.
    own = [each for each in told if each.kind not in (RankLost.__name__, RankSilent.__name__)]
    # A rank that hangs is killed too, by torchrun's agent, once one that waited for it gives up.
    hung = any(each.kind == RankSilent.__name__ for each in told)
    killed = [] if hung else ended
    candidates = crashed or own or killed or told or failures
    # Those that left no record have moments in whole seconds: of equal ones the first stays first.
    return min(candidates, key=lambda each: each.moment)


def explain(
    failures: Sequence[Failure], place_of: Callable[[int], str] = lambda rank: ""
) -> ClusterError:
    """The rank that failed first, and why.

    Parameters
    ----------
    place_of: names a rank's machine, in front of the rank.
    """
    first = find_first(failures)
    who = f"{place_of(first.rank)}rank {first.rank} (pid {first.pid})"
    if first.exit_code < 0:
        return RankLost(f"{who} {how_it_ended(first.exit_code)}; the other ranks were ended")
    return RankFailed(f"{who} failed: {first.message}", first.kind)


def was_killed(failure: Failure) -> bool:
    """Whether a signal ended the rank other than that by which torchrun's agent ends ranks."""
    return failure.exit_code < 0 and failure.exit_code != -signal.SIGTERM


def how_it_ended(code: int) -> str:
    """A process's exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
