"""A run on emulated hosts, which :mod:`hopper.bench.emulate` has built."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from cache_server.available_memory import LIMIT_VARIABLE
from hopper.config import Config
from hopper.engines import Request
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.run import train_with, write_config
from hopper.launch.supervisor import Place, Supervisor
from hopper.partition import PartitionedGraph
from hopper.process.signal_handlers import recorded_signals

HOSTS_FILE: Final = "hosts.json"
"""in a run's folder: ``hosts``, each with its ``address`` and :attr:`Place.host`, and ``memory``,
the bytes that each may use, or null"""
_LOGS: Final = "hosts"
_MEETING_PORT: Final = 29500


def train_on_emulated(config: Config, about: Mapping[str, Any]) -> None:
    """Train with a server and its ranks on each host that a :data:`HOSTS_FILE` tells ``about``;
    errors are those of :func:`hopper.train`."""
    train_with(partial(_run, about), config, 0, "hopper train --on emulated")


def _run(about: Mapping[str, Any], config: Config, graph: PartitionedGraph, run_dir: Path) -> None:
    # Hosts share this machine's cores, so waiting threads must not spin.
    environment = {"OMP_NUM_THREADS": str(config.train.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    if about["memory"] is not None:
        environment[LIMIT_VARIABLE] = str(about["memory"])
    logs = run_dir / _LOGS
    logs.mkdir(exist_ok=True)
    places = [
        Place(number, host["address"], host=tuple(host["host"]), log=logs / f"{number}.log")
        for number, host in enumerate(about["hosts"])
    ]
    per_host, world = config.cluster.ranks_per_server, Request(config, graph).ranks
    try:
        with (
            recorded_signals() as check,
            Supervisor(config, run_dir, places, world, environment=environment) as supervisor,
        ):
            write_config(config, run_dir, supervisor.start_servers(check))
            # This process has no address on the hosts' network, so rank 0 holds the store.
            meeting = f"{places[0].address}:{_MEETING_PORT}"
            supervisor.start_ranks("hopper.train", meeting, holds_store=False)
            supervisor.await_ranks(check)
    except RanksFailed as error:
        raise explain(error.failures, lambda rank: f"host {rank // per_host}: ") from error
