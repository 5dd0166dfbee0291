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
    say: told what an earlier run had left, why there are no hosts, and which guests of the plan are
        left out then.

    Yields
    ------
    The plan to carry out, and what results.json says of emulation (None = not asked for).
    """
    if request is None:
        yield _without_guests(plan, say), None
        return
    with emulated(request) as cluster:
        if cluster.removed:
            say(f"removed what an earlier run had left: {', '.join(cluster.removed)}")
        if cluster.effective:
            plan = replace(plan, train=partial(train_on_hosts, cluster), cluster=cluster)
        else:
            say(
                f"NOT EMULATED: {cluster.why_not}. Servers and ranks run on loopback, without a "
                "rate or bounds"
            )
            plan = _without_guests(plan, say)
        yield plan, cluster.describe()


def _without_guests(plan: Plan, say: Callable[[str], None]) -> Plan:
    for guest in plan.guests:
        say(f"{guest.label} is left out: it is trained over emulated hosts alone")
    return replace(plan, guests=())
