"""``hopper train CONFIG --on ray``: a run whose servers and ranks Ray places on its nodes.

Ray pickles the arguments and results of an actor's methods. They are therefore only numbers and
texts.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hopper.cluster.ray_cluster import connect_to_ray, one_line
from hopper.config import Config
from hopper.errors import DeadlineExceeded, RequestError
from hopper.launch.machines import THREADS, ProcessChannel, closing_all, train_on_machines
from hopper.train.run_result import RunResult

_LOOK_SECONDS: Final = 0.1


def train_on_ray(
    config: str | os.PathLike[str], overrides: Sequence[str], address: str, restarts: int
) -> RunResult:
    """Train on a Ray cluster: a feature server and its ranks for each partition.

    Parameters
    ----------
    address: "HOST:PORT" of the cluster; "" = a cluster on this machine, for this run alone.
    restarts: how many times a run that lost a rank, server or machine is started again.
    """
    option = f"--on ray:{address}" if address else "--on ray"

    @contextmanager
    def open_channels(config: Config, servers: int, file: Path) -> Iterator[list[_RayChannel]]:
        cpus = servers * int(_bundle_of(config, 0)["CPU"])
        with (
            connect_to_ray(option, "HOST:PORT", address, cpus) as ray,
            _reserve_bundles(ray, config, servers) as start,
            closing_all([]) as actors,
        ):
            actors += [_RayChannel(ray, start(server, str(file))) for server in range(servers)]
            yield actors

    return train_on_machines(config, overrides, restarts, "hopper train --on ray", open_channels)


class RayHost:
    """An actor of Ray: a ``hopper host`` on its node, and what it is told and prints."""

    def __init__(self, server: int, config_file: str) -> None:
        address = importlib.import_module("ray").util.get_node_ip_address()
        # Ray sets the first of these for its own workers.
        environment = {name: os.environ[name] for name in os.environ if name not in THREADS}
        self._channel = ProcessChannel(
            [
                sys.executable,
                "-P",
                "-m",
                "hopper.cli",
                "host",
                config_file,
                "--server",
                str(server),
                "--driven",
                str(address),
            ],
            environment=environment,
        )

    def pass_on(self, lines: str) -> str:
        """Send it lines, a JSON list; return JSON of its ``lines``, and of ``ended``, how."""
        for line in json.loads(lines):
            self._channel.send(line)
        ended = self._channel.how_ended()
        return json.dumps({"lines": self._channel.receive(), "ended": ended})

    def close(self, limit: float) -> None:
        """End it within some seconds."""
        self._channel.close(limit)


class _RayChannel:
    """The channel to a :class:`RayHost`."""

    label = ""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._lines: list[str] = []
        self._call: Any = None
        self._ended: str | None = None

    def send(self, line: str) -> None:
        self._lines.append(line)

    def receive(self) -> list[list[str]]:
        """Return what the last call brought, if it has been answered, and begin the next one."""
        if self._ended is not None:
            return []
        if self._call is None:
            self._call = self._actor.pass_on.remote(json.dumps(self._lines))
            self._lines = []
        if not self._ray.wait([self._call], timeout=0.01)[0]:
            return []
        call, self._call = self._call, None
        try:
            reply = json.loads(self._ray.get(call))
        except self._ray.exceptions.RayError as error:
            self._ended = one_line(error)
            return []
        self._ended = reply["ended"]
        return list(reply["lines"])

    def how_ended(self) -> str | None:
        return self._ended

    def close(self, limit: float) -> None:
        self._ray.wait([self._actor.close.remote(limit)], timeout=limit + 5)
        # Processes that an actor has started end with it.
        self._ray.kill(self._actor)


def _bundle_of(config: Config, gpus: float) -> dict[str, float]:
    """Return the resources that Ray reserves for a server.

    They are a CPU for each thread of its ranks (for each rank, if ``train.threads`` is 0), and a
    GPU for each rank (for all together, if they share one) if the run trains on GPUs, of which the
    cluster has so many for each server.
    """
    ranks = config.cluster.ranks_per_server
    bundle = {"CPU": float(ranks * max(1, config.train.threads))}
    wanted = 1 if config.cluster.share_gpus else ranks
    if config.train.device == "cuda" or (config.train.device == "auto" and gpus >= wanted):
        bundle["GPU"] = float(wanted)
    return bundle


@contextmanager
def _reserve_bundles(ray: Any, config: Config, servers: int) -> Iterator[Callable[[int, str], Any]]:
    """Reserve a bundle for each server, each on a node of its own if there are enough nodes; yield
    what starts the :class:`RayHost` of a server, for a configuration file, in its bundle."""
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    bundle = _bundle_of(config, sum(node.get("GPU", 0) for node in nodes) / servers)
    fitting = sum(all(node.get(k, 0) >= v for k, v in bundle.items()) for node in nodes)
    _check_resources(nodes, bundle, servers)
    if fitting < servers:
        print(
            f"warning: the Ray cluster has {fitting} node(s) for {servers} servers; some share one",
            file=sys.stderr,
        )
    strategy = "STRICT_SPREAD" if fitting >= servers else "PACK"
    group = placement_group([bundle] * servers, strategy=strategy)

    def start(server: int, file: str) -> Any:
        actor = ray.remote(max_restarts=0, max_task_retries=0)(RayHost)
        return actor.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=server
            ),
        ).remote(server, file)

    try:
        limit = config.cluster.start_timeout_seconds
        deadline = time.monotonic() + limit
        while not group.wait(timeout_seconds=_LOOK_SECONDS):
            if time.monotonic() > deadline:
                raise DeadlineExceeded("Ray", f"placing {servers} servers ({bundle} each)", limit)
        yield start
    finally:
        remove_placement_group(group)


def _check_resources(nodes: list[dict[str, float]], bundle: dict[str, float], servers: int) -> None:
    for name, amount in bundle.items():
        room = sum(node.get(name, 0) // amount for node in nodes)
        if room < servers:
            raise RequestError(
                f"--on ray: the cluster has room for {room:g} of {servers} servers; expected "
                f"nodes with {amount:g} {name} for each of them"
            )
