"""Plans a cluster: estimates every engine's epochs on it, with the assumptions made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from hopper.config import Config, change_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.errors import ConfigError, RequestError
from hopper.rehearsal.estimate import (
    Estimate,
    Machine,
    engines_to_plan,
    estimate_engine,
    rehearse,
)
from hopper.rehearsal.growth import Growth, grow
from hopper.rehearsal.link import Link, MessageCost
from hopper.rehearsal.measure import measure_between_ranks, measure_parallel, measure_rows
from hopper.rehearsal.memory import process_bytes
from hopper.rehearsal.world import World
from hopper.train.tuning import with_engine

PLAN_SCHEMA_VERSION: Final = 1
_MOST_RANKS: Final = 2048
"""most ranks that are rehearsed, since each is a thread with a model of its own"""


@dataclass(frozen=True)
class AskedCluster:
    """The cluster to plan for.

    Attributes
    ----------
    servers, ranks_per_server: its size.
    bits_per_second: rate of every server's link in each direction; None = unlimited.
    latency: seconds of a message from one server to another, without its bytes.
    cores: cores of every server.
    """

    servers: int
    ranks_per_server: int
    bits_per_second: int | None
    latency: float
    cores: float

    def check(self, request: Request) -> None:
        """Refuse impossible values, and a number of servers that the graph was not divided for.

        Raises
        ------
        RequestError: names the option, what was expected and what came.
        """
        if request.ranks > _MOST_RANKS:
            raise RequestError(
                f"--ranks-per-server: expected at most {_MOST_RANKS:,} ranks in all, which take "
                f"turns here, given {request.ranks:,}"
            )
        if not 0 < self.cores < math.inf:
            raise RequestError(f"--cores: expected more than 0, given {self.cores:g}")
        if not 0 <= self.latency < 1:
            raise RequestError(
                f"--latency: expected 0 to 1,000,000 microseconds, given {self.latency * 1e6:g}"
            )
        parts = request.graph.book.servers
        if self.servers != parts:
            raise RequestError(
                f"--servers: {request.where} has {parts} partitions; expected {parts}, or --graph "
                f"with a graph directory that is divided anew, given {self.servers}"
            )

    @property
    def cores_of_a_rank(self) -> float:
        """The cores of a rank on average."""
        return self.cores / self.ranks_per_server


@dataclass(frozen=True)
class ClusterPlan:
    """The result of planning a cluster.

    Attributes
    ----------
    cluster: the cluster that was planned for.
    partition: facts about the graph's division.
    measured: measurements on this machine, by name.
    assumptions: sentences.
    estimates: one per engine, the fastest first, refused ones last.
    growth: one per engine that trains on several servers.
    """

    cluster: AskedCluster
    partition: dict[str, Any]
    measured: dict[str, Any]
    assumptions: list[str]
    estimates: list[Estimate]
    growth: list[Growth]

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON; numbers that are not known become null."""
        return {
            "schema": PLAN_SCHEMA_VERSION,
            "cluster": asdict(self.cluster),
            "partition": self.partition,
            "measured": self.measured,
            "assumptions": self.assumptions,
            "engines": [
                {key: None if value != value else value for key, value in asdict(estimate).items()}
                for estimate in self.estimates
            ],
            "growth": [asdict(growth) for growth in self.growth],
        }


def on_cluster(config: Config, ranks_per_server: int) -> Config:
    """Return a configuration with another number of ranks per server, and no server addresses.

    Raises
    ------
    RequestError: ``ranks_per_server`` is below 1.
    """
    if ranks_per_server < 1:
        raise RequestError(f"--ranks-per-server: expected at least 1, given {ranks_per_server}")
    return change_config(config, cluster={"ranks_per_server": ranks_per_server, "servers": []})


def plan_cluster(
    request: Request,
    cluster: AskedCluster,
    engines: Sequence[str] = (),
    iterations: int = 3,
    say: Callable[[str], None] = lambda _line: None,
    others: Sequence[Request] = (),
) -> ClusterPlan:
    """Rehearse engines on a cluster, and estimate their epochs.

    Parameters
    ----------
    request: made from a configuration of :func:`on_cluster`.
    engines: names of the engines to rehearse; none = all that train such a graph.
    iterations: most iterations to rehearse of each engine.
    say: called with a line of text before each step.
    others: requests on other numbers of servers, from which growth is estimated.

    Raises
    ------
    RequestError: the cluster does not fit the graph, or an engine does not exist.
    """
    cluster.check(request)
    if iterations < 1:
        raise RequestError(f"--iterations: expected at least 1, given {iterations}")
    names = engines_to_plan(request, engines)
    process = process_bytes()
    say("measuring what messages take of a processor")
    link = Link(
        cluster.bits_per_second,
        cluster.latency,
        cluster.ranks_per_server,
        measure_between_ranks(),
        measure_rows(request),
    )
    machine = _measure_machine(request, cluster, names, say)
    rehearsed: dict[int, dict[str, Estimate]] = {}
    for sized in (request, *others):
        world = World(sized, link, machine.pace)
        rehearsed[sized.graph.book.servers] = _rehearse_all(
            sized, world, machine, names, iterations, process, say
        )
    estimates = sorted(
        rehearsed[cluster.servers].values(),
        key=lambda estimate: (bool(estimate.refused), estimate.epoch_seconds),
    )
    by_engine = [_grow(estimate.engine, request, link, rehearsed) for estimate in estimates]
    growth = [engine_growth for engine_growth in by_engine if engine_growth is not None]
    assumptions = _list_assumptions(request, cluster, machine, iterations)
    if growth:
        assumptions.append(_describe_growth(request, cluster, rehearsed))
    return ClusterPlan(
        cluster,
        _describe_partition(request),
        _describe_measured(link, machine),
        assumptions,
        estimates,
        growth,
    )


def _rehearse_all(
    request: Request,
    world: World,
    machine: Machine,
    names: Sequence[str],
    iterations: int,
    process: int,
    say: Callable[[str], None],
) -> dict[str, Estimate]:
    """Return the estimates of all engines on a request's servers, by name."""
    estimates = {}
    for name in names:
        say(f"rehearsing {name} on {request.ranks} ranks of {request.graph.book.servers} servers")
        estimates[name] = estimate_engine(name, request, world, machine, iterations, process)
    return estimates


def _describe_measured(link: Link, machine: Machine) -> dict[str, Any]:
    return {
        "message_between_ranks": asdict(link.between_ranks),
        "request_for_rows": asdict(link.rows),
        "machine": asdict(machine),
        "cores_here": _cores_here(),
    }


def _describe_partition(request: Request) -> dict[str, Any]:
    description = request.graph.description
    return {
        "servers": request.graph.book.servers,
        "method": description.get("method"),
        "edge_cut": description.get("edge_cut"),
        "locality": description.get("locality"),
    }


def _grow(
    engine: str, request: Request, link: Link, rehearsed: Mapping[int, Mapping[str, Estimate]]
) -> Growth | None:
    """Estimate an engine's growth; None if it was rehearsed on one server only."""
    estimates_by_servers = {
        servers: estimates[engine]
        for servers, estimates in rehearsed.items()
        if servers > 1 and not estimates[engine].refused
    }
    if not estimates_by_servers:
        return None
    schedule = make_schedule(request.under(with_engine(request.config, engine)))
    roots = schedule.count(0, schedule.iterations)
    batch = roots if request.trains_full_batches else request.config.train.batch_size
    return grow(estimates_by_servers, roots, batch, link)


def _describe_growth(
    request: Request, cluster: AskedCluster, rehearsed: Mapping[int, Mapping[str, Estimate]]
) -> str:
    counts = ", ".join(map(str, sorted(rehearsed)))
    method = request.graph.description.get("method")
    line = (
        f"growth: rehearsed on {counts} servers, divided by {method}; for other numbers the share "
        "of a root's rows that other servers have grows as under random placement, 1 - 1/P, from "
        "what was found"
    )
    if len(rehearsed) < 2:
        line += (
            f"; what grows with ranks beyond {cluster.servers} servers, such as time steps, is "
            "seen only where several numbers are rehearsed (--also)"
        )
    return line


def _cores_here() -> int:
    return len(os.sched_getaffinity(0))


def _measure_machine(
    request: Request, cluster: AskedCluster, names: Sequence[str], say: Callable[[str], None]
) -> Machine:
    cores = cluster.cores_of_a_rank
    threads = max(1, int(cores))
    if request.config.train.threads:
        threads = min(threads, request.config.train.threads)
    threads_here = min(threads, _cores_here())
    if threads_here < 2:
        return Machine(cores, 0.0, threads)
    say(f"measuring what {threads_here} cores make of a rank's work")
    free = Link(None, 0.0, cluster.ranks_per_server, MessageCost(0.0, 0.0), MessageCost(0.0, 0.0))
    for name in names:
        engine_request = request.under(with_engine(request.config, name))
        with suppress(RequestError, ConfigError):
            batch = make_schedule(engine_request).batch(0, 0)

            def work(threads: int, request: Request = engine_request, batch: Any = batch) -> None:
                rehearse(request, World(request, free, 1.0, threads), [batch])

            return Machine(cores, measure_parallel(work, threads_here), threads)
    return Machine(cores, 0.0, threads)


def _list_assumptions(
    request: Request, cluster: AskedCluster, machine: Machine, iterations: int
) -> list[str]:
    config = request.config
    pipelined = (
        "planning and reading run beside training, in threads that share their server's cores; or "
        "all bytes of a server decide, where its link has no time for more"
        if config.pipeline.depth
        else "planning, reading and training follow one another (pipeline.depth = 0)"
    )
    assumptions = [
        f"bytes: counted in up to {iterations} iterations of epoch 0 by the engines' own code on "
        f"{request.ranks} ranks; other iterations of an epoch are their mean",
        f"overlap: {pipelined}",
        "processors: each of the cluster's cores is as fast as one of this machine's alone; their "
        "caches and memory bandwidth that ranks share are left out",
        f"cores of a rank: {machine.cores:g}, of which kernels use {machine.threads}; "
        f"{machine.parallel:.0%} of the work is divided among them",
        "links: all servers have the same, nothing else uses them; messages of a collective leave "
        f"together, each step takes {cluster.latency * 1e6:g} microseconds besides its bytes",
        "disks: rows of a rank's own server are in memory",
        "memory of a rank: without pages of files that it maps, and what kernels hold for a moment",
        "an epoch without validation, checkpoints, and start",
    ]
    if config.hop.merge == "adaptive":
        assumptions.append(
            'hop: no time step is dissolved; hop.merge = "adaptive" finds out in training'
        )
    if config.pipeline.lookahead:
        assumptions.append(
            "pipeline.lookahead: what it keeps is left out, so feature bytes are the most"
        )
    if config.train.device == "cuda":
        assumptions.append("training computes on processors; GPUs are not foretold")
    return assumptions
