"""One training run over emulated hosts, with a feature server and ranks on each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cache_server.available_memory import LIMIT_VARIABLE
from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.emulate.limits import ran_out_of_memory
from hopper.bench.emulate.network import INTERFACE, end_processes
from hopper.bench.train_process import run_dir_words
from hopper.config import Config, change_config, load_config
from hopper.errors import ClusterError, DeadlineExceeded
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.run import prepare, ranks_of, write_config
from hopper.launch.supervisor import Supervisor
from hopper.process.signal_handlers import defer_signals
from hopper.train.results import read_summary
from hopper.train.run_lock import lock_run_folder

HOSTS_FOLDER: Final = "hosts"
_MEETING_PORT: Final = 29500


def train_on_hosts(
    cluster: EmulatedCluster,
    what: str,
    config_file: Path,
    run_dir: Path,
    overrides: Sequence[str],
    limit: float,
) -> dict[str, Any]:
    """Train over emulated hosts, and return the run's summary.json, with ``nic_bytes`` of epochs.

    The arguments are those of :func:`hopper.bench.train_process.train_in_process`. The main thread
    of the process that built the hosts must call it. No process stays on the hosts. Errors name the
    host, and the rank or server that failed first.
    """
    deadline = time.monotonic() + limit
    run_dir.mkdir(parents=True, exist_ok=True)
    config = load_config(config_file, [*run_dir_words(run_dir), *overrides])
    threads = config.train.threads or threads_per_rank(cluster, config.cluster.ranks_per_server)
    # The hosts' network is private, so connections need no protection.
    changes = {"interface": INTERFACE, "insecure": True}
    config = change_config(config, cluster=changes, train={"threads": threads})
    graph, run_dir = prepare(config)

    def check() -> None:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(what, "training", limit)

    try:
        with lock_run_folder(run_dir, "launcher"):
            _run(cluster, config, run_dir, ranks_of(config, graph), check)
    except ClusterError as error:
        if isinstance(error, DeadlineExceeded) and error.who == what:
            raise
        raise ClusterError(
            f"{what}: {error}{_describe_starved(cluster)} (all of it: {run_dir})"
        ) from error
    return read_summary(run_dir)


def _run(
    cluster: EmulatedCluster,
    config: Config,
    run_dir: Path,
    world: int,
    check: Callable[[], None],
) -> None:
    """Start the hosts' servers and ranks, and wait for the ranks. After an error everything on the
    hosts is killed, even what is suspended."""
    # Hosts share this machine's cores, so waiting threads must not spin.
    environment = {"OMP_NUM_THREADS": str(config.train.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    if cluster.request.host_memory is not None:
        environment[LIMIT_VARIABLE] = str(cluster.request.host_memory)
    (run_dir / HOSTS_FOLDER).mkdir(exist_ok=True)
    places = [
        replace(host.place, server=index, log=run_dir / HOSTS_FOLDER / f"{index}.log")
        for index, host in enumerate(cluster.hosts)
    ]
    per_host = config.cluster.ranks_per_server
    try:
        with Supervisor(*(config, run_dir, places, world), environment=environment) as supervisor:
            write_config(config, run_dir, supervisor.start_servers(check))
            meeting = f"{cluster.hosts[0].network.address}:{_MEETING_PORT}"
            # This process has no address on the hosts' network, so rank 0 holds the store.
            supervisor.start_ranks("hopper.train", meeting, holds_store=False)
            supervisor.await_ranks(check)
    except RanksFailed as error:
        raise explain(error.failures, lambda rank: f"host {rank // per_host}: ") from error
    finally:
        with defer_signals():
            for host in cluster.hosts:
                end_processes(host.network.namespace)


def threads_per_rank(cluster: EmulatedCluster, ranks_per_server: int) -> int:
    """Return the number of CPU threads of a rank, at least 1.

    It is a host's CPUs divided by its ranks or, if hosts have no bound, the machine's CPUs divided
    by all ranks.
    """
    cpus = cluster.request.host_cpus
    if cpus is not None:
        return max(1, math.ceil(cpus) // ranks_per_server)
    return max(1, len(os.sched_getaffinity(0)) // (len(cluster.hosts) * ranks_per_server))


def _describe_starved(cluster: EmulatedCluster) -> str:
    """Name the hosts that lost a process to their memory bound; "" if none did."""
    starved = [i for i, host in enumerate(cluster.hosts) if ran_out_of_memory(host.cgroups)]
    if not starved:
        return ""
    bound = (cluster.request.host_memory or 0) / 2**20
    hosts = ", ".join(f"host {i}" for i in starved)
    return f"; {hosts} reached the bound of {bound:g} MiB (--host-memory)"
