"""Reserving resources for a run on a Ray cluster: one bundle for each server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hopper.config import Config
from hopper.errors import DeadlineExceeded, RequestError
from hopper.train.ray_machine import RayMachine

_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Placement:
    """A placement group that Ray has reserved.

    Attributes
    ----------
    ray: the module ``ray``.
    group: the placement group.
    servers: number of its bundles.
    bundle: the resources of each bundle.
    """

    ray: Any
    group: Any
    servers: int
    bundle: dict[str, float]

    def start(self, index: int, environment: str) -> Any:
        """Start the :class:`RayMachine` of a server in its bundle."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self.ray.remote(max_restarts=0, max_task_retries=0)(RayMachine)
        return actor.options(
            num_cpus=self.bundle["CPU"],
            num_gpus=self.bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=index
            ),
        ).remote(index, environment)


def bundle_of(config: Config, gpus: float) -> dict[str, float]:
    """Return the resources that Ray reserves for a server.

    They are a CPU for each thread of its ranks (for each rank, if ``train.threads`` is 0), and a
    GPU for each rank (for all together, if they share one) if the run trains on GPUs.

    Parameters
    ----------
    gpus: number of GPUs that the cluster has for each server.
    """
    ranks = config.cluster.ranks_per_server
    bundle = {"CPU": float(ranks * max(1, config.train.threads))}
    wanted = 1 if config.cluster.share_gpus else ranks
    if config.train.device == "cuda" or (config.train.device == "auto" and gpus >= wanted):
        bundle["GPU"] = float(wanted)
    return bundle


@contextmanager
def reserve_bundles(
    ray: Any, config: Config, servers: int, limit: float, check: Callable[[], None]
) -> Iterator[Placement]:
    """Reserve a bundle for each server, each on a node of its own if there are enough nodes.

    Parameters
    ----------
    limit: seconds that Ray may take.
    check: called while waiting; raises if a signal told this process to end.

    Raises
    ------
    RequestError: the cluster has too little of a resource.
    DeadlineExceeded: other users of the cluster hold the resources.
    """
    from ray.util import placement_group, remove_placement_group

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    bundle = bundle_of(config, sum(node.get("GPU", 0) for node in nodes) / servers)
    fitting = sum(all(node.get(k, 0) >= v for k, v in bundle.items()) for node in nodes)
    _check_resources(nodes, bundle, servers)
    if fitting < servers:
        print(
            f"warning: the Ray cluster has {fitting} node(s) for {servers} servers; some share one",
            file=sys.stderr,
        )
    strategy = "STRICT_SPREAD" if fitting >= servers else "PACK"
    group = placement_group([bundle] * servers, strategy=strategy)
    try:
        deadline = time.monotonic() + limit
        while not group.wait(timeout_seconds=_LOOK_SECONDS):
            check()
            if time.monotonic() > deadline:
                raise DeadlineExceeded("Ray", f"placing {servers} servers ({bundle} each)", limit)
        yield Placement(ray, group, servers, bundle)
    finally:
        remove_placement_group(group)


def _check_resources(nodes: list[dict[str, float]], bundle: dict[str, float], servers: int) -> None:
    """Refuse a cluster whose nodes together have too little of a resource."""
    for name, amount in bundle.items():
        room = sum(node.get(name, 0) // amount for node in nodes)
        if room < servers:
            raise RequestError(
                f"launch ray: the cluster has room for {room:g} of {servers} servers; expected "
                f"nodes with {amount:g} {name} for each of them"
            )
