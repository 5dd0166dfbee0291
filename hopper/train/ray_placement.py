"""Where a run's servers go on a Ray cluster: one bundle of resources a server."""

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
    """A placement group of Ray that is there.

    Attributes
    ----------
    servers: how many bundles it has. bundle: the resources of each.
    """

    ray: Any
    group: Any
    servers: int
    bundle: dict[str, float]

    def start(self, index: int, environment: str) -> Any:
        """Start the actor of a server in its bundle; see :class:`RayMachine`."""
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
    """What Ray reserves for a server: a CPU for each thread of its ranks that ``train.threads``
    names, or each rank; a GPU for each rank, where ``gpus`` a server are there."""
    ranks = config.cluster.ranks_per_server
    bundle = {"CPU": float(ranks * max(1, config.train.threads))}
    wanted = 1 if config.cluster.share_gpus else ranks
    if config.train.device == "cuda" or (config.train.device == "auto" and gpus >= wanted):
        bundle["GPU"] = float(wanted)
    return bundle


@contextmanager
def placed(
    ray: Any, config: Config, servers: int, limit: float, check: Callable[[], None]
) -> Iterator[Placement]:
    """Reserve a bundle a server, each on a node of its own where there are enough nodes.

    Parameters
    ----------
    limit: seconds that Ray may take. check: raises when this process was told to end.

    Raises
    ------
    RequestError: the cluster has too little of a resource.
    DeadlineExceeded: others have what is needed.
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
    for name, each in bundle.items():
        there = sum(node.get(name, 0) // each for node in nodes)
        if there < servers:
            raise RequestError(
                f"launch ray: the cluster has room for {there:g} of {servers} servers; expected "
                f"nodes with {each:g} {name} for each of them"
            )
