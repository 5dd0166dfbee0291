"""Where a comparison's servers and ranks run: on emulated hosts, or on this machine's loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hopper.bench.ab import Plan
from hopper.bench.emulate.hosts import emulated
from hopper.bench.emulate.request import Request
from hopper.bench.emulate.train import train_on_hosts


@contextmanager
def placed(
    plan: Plan, request: Request | None, say: Callable[[str], None]
) -> Iterator[tuple[Plan, dict[str, Any] | None]]:
    """Build the hosts that were asked for, where they can be had.

    Parameters
    ----------
    request: None = loopback.
    say: told what an earlier run had left, and why there are no hosts.

    Yields
    ------
    The plan to carry out, and what results.json says of emulation (None = not asked for).
    """
    if request is None:
        yield plan, None
        return
    with emulated(request) as cluster:
        if cluster.removed:
            say(f"removed what an earlier run had left: {', '.join(cluster.removed)}")
        if cluster.effective:
            plan = replace(plan, train=partial(train_on_hosts, cluster))
        else:
            say(
                f"NOT EMULATED: {cluster.why_not}. Servers and ranks run on loopback, without a "
                "rate or bounds"
            )
        yield plan, cluster.describe()
