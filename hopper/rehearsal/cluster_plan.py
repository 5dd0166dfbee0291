"""What every engine would take on a cluster, and what that rests on."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from hopper.config import Config, make_config
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
from hopper.train.auto_engine import with_engine

PLAN_SCHEMA_VERSION: Final = 1
_MOST_RANKS: Final = 2048
"""that are rehearsed: each is a thread with a model of its own"""


@dataclass(frozen=True)
class AskedCluster:
    """A cluster as it is asked about.

    Attributes
    ----------
    bits_per_second: of every server's link, in each direction; None = not limited.
    latency: seconds from a server to another.
    cores: of every server.
    """

    servers: int
    ranks_per_server: int
    bits_per_second: int | None
    latency: float
    cores: float

    def check(self, request: Request) -> None:
        """Refuse what no cluster is, or what the graph was not divided for.

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
        """On average."""
        return self.cores / self.ranks_per_server


@dataclass(frozen=True)
class ClusterPlan:
    """The answer.

    Attributes
    ----------
    measured: on this machine, by name. assumptions: sentences.
    estimates: by engine, the fastest first, refused ones last.
    growth: by engine that trains on several servers.
    """

    cluster: AskedCluster
    partition: dict[str, Any]
    measured: dict[str, Any]
    assumptions: list[str]
    estimates: list[Estimate]
    growth: list[Growth]

    def describe(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "schema": PLAN_SCHEMA_VERSION,
            "cluster": asdict(self.cluster),
            "partition": self.partition,
            "measured": self.measured,
            "assumptions": self.assumptions,
            "engines": [
                {key: None if value != value else value for key, value in asdict(each).items()}
                for each in self.estimates
            ],
            "growth": [asdict(each) for each in self.growth],
        }


def on_cluster(config: Config, ranks_per_server: int) -> Config:
    """The configuration with so many ranks a server, whose feature servers it does not name.

    Raises
    ------
    RequestError: there is no such number of ranks.
    """
    if ranks_per_server < 1:
        raise RequestError(f"--ranks-per-server: expected at least 1, given {ranks_per_server}")
    values = config.model_dump()
    values["cluster"] |= {"ranks_per_server": ranks_per_server, "servers": []}
    return make_config(values)


def plan_cluster(
    request: Request,
    cluster: AskedCluster,
    engines: Sequence[str] = (),
    iterations: int = 3,
    say: Callable[[str], None] = lambda _line: None,
    others: Sequence[Request] = (),
) -> ClusterPlan:
    """Rehearse every engine on a cluster.

    Parameters
    ----------
    request: of :func:`on_cluster`.
    engines: those to rehearse; none = all that train such a graph.
    iterations: of each engine, at most.
    say: told what is done next.
    others: the same on other numbers of servers, to learn how epochs grow.

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
    for own in (request, *others):
        ready = (own, World(own, link, machine.pace), machine)
        servers = own.graph.book.servers
        rehearsed[servers] = _rehearse_all(*ready, names, iterations, process, say)
    estimates = sorted(
        rehearsed[cluster.servers].values(),
        key=lambda each: (bool(each.refused), each.epoch_seconds),
    )
    grown = [_grow(each.engine, request, link, rehearsed) for each in estimates]
    growth = [each for each in grown if each is not None]
    told = _tell_assumptions(request, cluster, machine, iterations)
    if growth:
        told.append(_tell_growth(request, cluster, rehearsed))
    found = (_describe_partition(request), _describe_measured(link, machine))
    return ClusterPlan(cluster, *found, told, estimates, growth)


def _rehearse_all(
    request: Request,
    world: World,
    machine: Machine,
    names: Sequence[str],
    iterations: int,
    process: int,
    say: Callable[[str], None],
) -> dict[str, Estimate]:
    """By engine, what it takes on a request's servers."""
    found = {}
    for name in names:
        say(f"rehearsing {name} on {request.ranks} ranks of {request.graph.book.servers} servers")
        found[name] = estimate_engine(name, request, world, machine, iterations, process)
    return found


def _describe_measured(link: Link, machine: Machine) -> dict[str, Any]:
    return {
        "message_between_ranks": asdict(link.between_ranks),
        "request_for_rows": asdict(link.rows),
        "machine": asdict(machine),
        "cores_here": _cores_here(),
    }


def _describe_partition(request: Request) -> dict[str, Any]:
    told = request.graph.description
    return {
        "servers": request.graph.book.servers,
        "method": told.get("method"),
        "edge_cut": told.get("edge_cut"),
        "locality": told.get("locality"),
    }


def _grow(
    engine: str, request: Request, link: Link, rehearsed: Mapping[int, Mapping[str, Estimate]]
) -> Growth | None:
    """None where it trains on one server alone."""
    found = {
        servers: estimates[engine]
        for servers, estimates in rehearsed.items()
        if servers > 1 and not estimates[engine].refused
    }
    if not found:
        return None
    schedule = make_schedule(request.under(with_engine(request.config, engine)))
    roots = schedule.count(0, schedule.iterations)
    batch = roots if request.trains_full_batches else request.config.train.batch_size
    return grow(found, roots, batch, link)


def _tell_growth(
    request: Request, cluster: AskedCluster, rehearsed: Mapping[int, Mapping[str, Estimate]]
) -> str:
    told = ", ".join(map(str, sorted(rehearsed)))
    method = request.graph.description.get("method")
    line = (
        f"growth: rehearsed on {told} servers, divided by {method}; for other numbers the share of "
        "a root's rows that other servers have grows as under random placement, 1 - 1/P, from what "
        "was found"
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
    here = min(threads, _cores_here())
    if here < 2:
        return Machine(cores, 0.0, threads)
    say(f"measuring what {here} cores make of a rank's work")
    free = Link(None, 0.0, cluster.ranks_per_server, MessageCost(0.0, 0.0), MessageCost(0.0, 0.0))
    for name in names:
        own = request.under(with_engine(request.config, name))
        with suppress(RequestError, ConfigError):
            batch = make_schedule(own).batch(0, 0)

            def work(threads: int, own: Request = own, batch: Any = batch) -> None:
                rehearse(own, World(own, free, 1.0, threads), [batch])

            return Machine(cores, measure_parallel(work, here), threads)
    return Machine(cores, 0.0, threads)


def _tell_assumptions(
    request: Request, cluster: AskedCluster, machine: Machine, iterations: int
) -> list[str]:
    config = request.config
    pipelined = (
        "planning and reading run beside training, in threads that share their server's cores; or "
        "all bytes of a server decide, where its link has no time for more"
        if config.pipeline.depth
        else "planning, reading and training follow one another (pipeline.depth = 0)"
    )
    told = [
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
        told.append('hop: no time step is dissolved; hop.merge = "adaptive" finds out in training')
    if config.pipeline.lookahead:
        told.append("pipeline.lookahead: what it keeps is left out, so feature bytes are the most")
    if config.train.device == "cuda":
        told.append("training computes on processors; GPUs are not foretold")
    return told
