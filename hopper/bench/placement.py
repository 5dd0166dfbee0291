"""Placing a comparison's servers and ranks on emulated hosts or on this machine's loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hopper.bench.ab_plan import Plan, TrainRun
from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.request import Request
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.train_process import train_in_process


@contextmanager
def open_hosts(
    request: Request | None, say: Callable[[str], None]
) -> Iterator[tuple[TrainRun, EmulatedCluster | None]]:
    """Build the hosts of a request (None = loopback), if that is possible here.

    Yield a function that makes a run, and the emulated cluster (None = not asked for).
    """
    if request is None:
        yield train_in_process, None
        return
    with emulate_hosts(request) as cluster:
        if cluster.removed:
            say(f"removed what an earlier run had left: {', '.join(cluster.removed)}")
        if cluster.effective:
            yield partial(train_on_hosts, cluster), cluster
        else:
            say(
                f"NOT EMULATED: {cluster.why_not}. Servers and ranks run on loopback, without a "
                "rate or bounds"
            )
            yield train_in_process, cluster


@contextmanager
def place_plan(
    plan: Plan, request: Request | None, say: Callable[[str], None]
) -> Iterator[tuple[Plan, dict[str, Any] | None]]:
    """Let a plan's runs use the hosts of a request, if they can be built here; else without guests.

    Yield the plan to carry out, and the entry of results.json about emulation.
    """
    with open_hosts(request, say) as (train, cluster):
        if cluster is not None and cluster.effective:
            plan = replace(plan, train=train, cluster=cluster)
        else:
            for guest in plan.guests:
                say(f"{guest.label} is left out: it is trained over emulated hosts alone")
            plan = replace(plan, guests=())
        yield plan, None if cluster is None else cluster.describe()
