"""Plans a cluster: estimates every engine's epochs on it, with the assumptions made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil

from hopper.config import Config, change_config
from hopper.engines import Request, engines_for
from hopper.errors import RequestError
from hopper.rehearsal.clock import Link
from hopper.rehearsal.estimate import Estimate, estimate_engine
from hopper.rehearsal.measure import measure_between_ranks, measure_rows

PLAN_SCHEMA_VERSION: Final = 2
_MOST_RANKS: Final = 2048
"""most ranks that are rehearsed, since each is a thread with a model of its own"""


@dataclass(frozen=True)
class AskedCluster:
    """The cluster to plan for: its size; the rate of every server's link in each direction, None =
    unlimited; the seconds of a message between servers, without its bytes; cores of a server."""

    servers: int
    ranks_per_server: int
    bits_per_second: int | None
    latency: float
    cores: float

    def check(self, request: Request) -> None:
        """Refuse impossible values, and a number of servers that the graph was not divided for."""
        if request.ranks > _MOST_RANKS:
            raise RequestError(
                f"--ranks-per-server: expected at most {_MOST_RANKS:,} ranks in all, each a "
                f"thread here, given {request.ranks:,}"
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


@dataclass(frozen=True)
class ClusterPlan:
    """The result of planning a cluster; estimates are the fastest first, refused ones last."""

    cluster: AskedCluster
    partition: dict[str, Any]
    measured: dict[str, Any]
    assumptions: list[str]
    estimates: list[Estimate]

    def describe(self) -> dict[str, Any]:
        """Return the plan as JSON; numbers that are not known become null."""
        engines = [
            {key: None if value != value else value for key, value in asdict(estimate).items()}
            for estimate in self.estimates
        ]
        plan = {"schema": PLAN_SCHEMA_VERSION, **asdict(self), "engines": engines}
        del plan["estimates"]
        return plan


def on_cluster(config: Config, ranks_per_server: int) -> Config:
    """Return a configuration with another number of ranks per server, and no server addresses."""
    if ranks_per_server < 1:
        raise RequestError(f"--ranks-per-server: expected at least 1, given {ranks_per_server}")
    return change_config(config, cluster={"ranks_per_server": ranks_per_server, "servers": []})


def plan_cluster(
    request: Request,
    cluster: AskedCluster,
    engines: Sequence[str] = (),
    iterations: int = 3,
    say: Callable[[str], None] = lambda _line: None,
) -> ClusterPlan:
    """Rehearse engines on a cluster, and estimate their epochs.

    Parameters
    ----------
    request: made from a configuration of :func:`on_cluster`.
    engines: names of the engines to rehearse; none = all that train such a graph.
    iterations: most iterations to rehearse of each engine.
    """
    cluster.check(request)
    if iterations < 1:
        raise RequestError(f"--iterations: expected at least 1, given {iterations}")
    names = _find_engines(request, engines)
    process = psutil.Process().memory_info().rss
    say("measuring what messages take of a processor")
    link = Link(
        cluster.bits_per_second,
        cluster.latency,
        cluster.ranks_per_server,
        measure_between_ranks(request.ranks),
        measure_rows(request),
    )
    estimates = []
    for name in names:
        say(f"rehearsing {name} on {request.ranks} ranks of {cluster.servers} servers")
        estimates.append(estimate_engine(name, request, link, cluster.cores, iterations, process))
    estimates.sort(key=lambda estimate: (bool(estimate.refused), estimate.epoch_seconds))
    division = request.graph.description
    return ClusterPlan(
        cluster,
        {"method": division.get("method"), "edge_cut": division.get("edge_cut")},
        {"message": asdict(link.between_ranks), "request_for_rows": asdict(link.rows)},
        _list_assumptions(request, cluster, iterations),
        estimates,
    )


def _find_engines(request: Request, names: Sequence[str]) -> list[str]:
    """Return ``names``, or the engines for this layout and the plug-in of the configuration."""
    engines = [engine.spec.name for engine in engines_for(None)]
    for name in names:
        if name not in engines and ":" not in name:
            raise RequestError(
                f"--engines: expected some of {', '.join(engines)}, or package.module:Class, "
                f"given {name!r:.80}"
            )
    suitable = [engine.spec.name for engine in engines_for(request.graph.layout)]
    configured = request.config.train.engine
    return list(names) or suitable + [configured] * (":" in configured)


def _list_assumptions(request: Request, cluster: AskedCluster, iterations: int) -> list[str]:
    config = request.config
    together = "the longest" if config.pipeline.depth else "the sum (pipeline.depth = 0)"
    assumptions = [
        f"bytes: counted in up to {iterations} iterations of epoch 0 by the engines' own code on "
        f"{request.ranks} ranks; other iterations of an epoch are their mean",
        f"an iteration: {together} of planning, reading and training of the slowest rank; or all "
        f"bytes of a server over its link, or its work over its {cluster.cores:g} cores, if longer",
        "processors: a phase of a rank computes on one core, as fast as one of this machine's "
        "alone; caches and memory bandwidth that ranks share are left out",
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
