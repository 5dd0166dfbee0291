"""Failures of ranks, and finding the one that caused the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopper.errors import ClusterError, RankFailed, RankLost, RankSilent

_CONSEQUENCES = (RankLost.__name__, RankSilent.__name__)
"""A rank with one of these errors failed because another rank was gone or silent."""


@dataclass(frozen=True)
class Failure:
    """The failure of a rank."""

    rank: int
    pid: int
    exit_code: int
    """the negative number of a signal that ended the rank"""
    message: str
    """the last line of its error"""
    moment: float
    """when it failed, in seconds since 1970"""
    kind: str = ""
    """the name of its error class; "" if it left no record"""

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended the rank, other than SIGTERM, with which ranks are told to end."""
        return self.exit_code < 0 and self.exit_code != -signal.SIGTERM

    @property
    def is_cause(self) -> bool:
        """Whether the rank failed for a reason of its own, as far as it says."""
        return self.was_killed or (self.exit_code > 0 and self.kind not in _CONSEQUENCES)


class RanksFailed(Exception):
    """Ranks ended with an error or by a signal."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(f"{len(failures)} ranks failed")
        self.failures = tuple(failures)


def read_failure(rank: int, pid: int, code: int, record: Path, seen: float) -> Failure:
    """Return the failure of a rank that was seen to have ended, with its record if it left one."""
    try:
        recorded = json.loads(record.read_text())["message"]
        text, extra = str(recorded["message"]).strip(), recorded["extraInfo"]
    except (OSError, ValueError):
        message = f"{how_it_ended(code)} and left no record; its output tells more"
        return Failure(rank, pid, code, message, seen)
    message = text.splitlines()[-1] if text else "no message"
    return Failure(rank, pid, code, message, float(extra["moment"]), str(extra["kind"]))


def find_first(failures: Sequence[Failure]) -> Failure:
    """Find the failure that caused the others, among failures in the order in which they were seen.

    A crash comes before errors, and errors of a rank's own before SIGKILL, which may have been sent
    because of them. Among equals the earliest is the first.
    """
    crashed = [each for each in failures if each.was_killed and each.exit_code != -signal.SIGKILL]
    causes = [failure for failure in failures if failure.is_cause and failure.exit_code > 0]
    killed = [failure for failure in failures if failure.was_killed]
    by_error = [failure for failure in failures if failure.exit_code > 0]
    return min(crashed or causes or killed or by_error or failures, key=lambda each: each.moment)


def explain(
    failures: Sequence[Failure], place_of: Callable[[int], str] = lambda rank: ""
) -> ClusterError:
    """Make an error that names the rank that failed first, after its place, and says why."""
    first = find_first(failures)
    rank_text = f"{place_of(first.rank)}rank {first.rank} (pid {first.pid})"
    if first.exit_code < 0:
        return RankLost(f"{rank_text} {how_it_ended(first.exit_code)}; the other ranks were ended")
    return RankFailed(f"{rank_text} failed: {first.message}", first.kind)


def how_it_ended(code: int) -> str:
    """Return a process's exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
