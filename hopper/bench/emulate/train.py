"""One training run over emulated hosts, with a feature server and standing ranks on each."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.emulate.limits import ran_out_of_memory
from hopper.bench.emulate.network import INTERFACE, end_processes
from hopper.bench.emulate.standing_ranks import Start, environment_of_ranks
from hopper.bench.emulate.waiting_rank import Order
from hopper.bench.train_process import last_lines, run_dir_words
from hopper.config import change_config, load_config
from hopper.errors import ClusterError, DeadlineExceeded, ServerLost
from hopper.signal_handlers import defer_signals
from hopper.train.feature_servers import FeatureServers, feature_servers
from hopper.train.launch import prepare, ranks_of, write_config
from hopper.train.rank_failures import Failure, explain, find_first, how_it_ended, was_killed
from hopper.train.results import read_summary
from hopper.train.run_lock import lock_run_folder

HOSTS_FOLDER: Final = "hosts"
_LOOK_SECONDS: Final = 0.02
_GRACE_SECONDS: Final = 10.0
"""How long ranks that miss another rank may take to end by themselves and say which one."""


def train_on_hosts(
    cluster: EmulatedCluster,
    what: str,
    config_file: Path,
    run_dir: Path,
    overrides: Sequence[str],
    limit: float,
) -> dict[str, Any]:
    """Train over emulated hosts, from the start of servers to the run's summary.

    Output goes to files in ``run_dir``. The ranks stay on the hosts for the next run. After an
    error no process stays on them. The main thread of the process that built the hosts must call
    it.

    Parameters
    ----------
    what: names the run in errors, such as "hop, round 2".
    overrides: arguments ``--section.key value``.
    limit: seconds that the whole run may take.

    Returns
    -------
    The content of the run's summary.json, whose epochs have ``nic_bytes``.

    Raises
    ------
    ClusterError: the run failed; names the host, and the rank or server that failed first.
    DeadlineExceeded: the run did not end in time.
    """
    deadline = time.monotonic() + limit
    run_dir.mkdir(parents=True, exist_ok=True)
    config = load_config(config_file, [*run_dir_words(run_dir), *overrides])
    threads = config.train.threads or threads_per_rank(cluster, config.cluster.ranks_per_server)
    # The hosts' network is private, so connections need no protection.
    config = change_config(
        config,
        cluster={"interface": INTERFACE, "insecure": True},
        train={"threads": threads},
    )
    graph, run_dir = prepare(config)
    ranks = ranks_of(config, graph)
    places = [host.place for host in cluster.hosts]
    try:
        with (
            lock_run_folder(run_dir, "launcher"),
            _end_processes_on_error(cluster),
            feature_servers(config, run_dir, places) as servers,
        ):
            order = Order(write_config(config, run_dir, servers.addresses), run_dir / HOSTS_FOLDER)
            start = Start(
                *(places, config.cluster.ranks_per_server, config.cluster.timeout_seconds),
                environment_of_ranks(threads, cluster.request.host_memory),
            )
            with cluster.ranks.training(start, order):
                if not _await(cluster, order, servers, ranks, deadline, start.end_limit):
                    raise DeadlineExceeded(what, "training", limit)
    except ClusterError as error:
        if isinstance(error, DeadlineExceeded) and error.who == what:
            raise
        raise ClusterError(
            f"{what}: {error}{_describe_starved(cluster)} (all of it: {run_dir})"
        ) from error
    return read_summary(run_dir)


def threads_per_rank(cluster: EmulatedCluster, ranks_per_server: int) -> int:
    """Return the number of CPU threads of a rank, at least 1.

    It is a host's CPUs divided by its ranks or, if hosts have no bound, the machine's CPUs divided
    by all ranks.
    """
    cpus = cluster.request.host_cpus
    if cpus is not None:
        return max(1, math.ceil(cpus) // ranks_per_server)
    return max(1, len(os.sched_getaffinity(0)) // (len(cluster.hosts) * ranks_per_server))


@contextmanager
def _end_processes_on_error(cluster: EmulatedCluster) -> Iterator[None]:
    """End all processes on the hosts after an error, even suspended ones."""
    try:
        yield
    except BaseException:
        with defer_signals():
            cluster.ranks.stop()
            for host in cluster.hosts:
                end_processes(host.network.namespace)
        raise


def _await(
    cluster: EmulatedCluster,
    order: Order,
    servers: FeatureServers,
    ranks: int,
    deadline: float,
    end_limit: float,
) -> bool:
    """Wait for every rank to end its run well; return False if the deadline comes first.

    Parameters
    ----------
    end_limit: seconds within which all ranks must end their run after one has.

    Raises
    ------
    ServerLost, ClusterError: says what ended first, and on which host.
    DeadlineExceeded: a rank did not end after the others.
    """
    judged_at = late_at = math.inf
    while True:
        lost = servers.find_lost()
        if lost is not None:
            raise ServerLost(f"{lost}; the ranks were ended")
        missing = cluster.ranks.find_missing()
        if not missing:
            return True
        if len(missing) < ranks:
            late_at = min(late_at, time.monotonic() + end_limit)
        if time.monotonic() > late_at:
            ranks_text = ", ".join(f"rank {rank}" for rank in missing)
            raise DeadlineExceeded(ranks_text, "ending after the other ranks", end_limit)
        codes = [agent.poll() for agent in cluster.ranks.agents]
        if codes.count(None) < len(codes):
            judged_at = min(judged_at, time.monotonic() + _GRACE_SECONDS)
            failures = cluster.ranks.failures()
            was_signal = any(was_killed(failure) for failure in failures)
            is_known = was_signal or min(code or 0 for code in codes) < 0
            if is_known or None not in codes or time.monotonic() > judged_at:
                raise ClusterError(_judge(cluster, order, failures, ranks))
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)


def _judge(cluster: EmulatedCluster, order: Order, failures: Sequence[Failure], ranks: int) -> str:
    """Describe the failure that caused the others, with its host."""
    agents = cluster.ranks.agents
    silent = [i for i, agent in enumerate(agents) if agent.returncode and agent.returncode < 0]
    if not failures:
        silent = silent or [i for i, agent in enumerate(agents) if agent.returncode]
    if not silent:
        first_host = find_first(failures).rank * len(cluster.hosts) // ranks
        return f"host {first_host}: {explain(failures)}"
    host, agent = silent[0], agents[silent[0]]
    return (
        f"host {host}: the agent of its ranks (pid {agent.pid}) "
        f"{how_it_ended(agent.returncode)}: {last_lines(cluster.ranks.log(host), order.log(host))}"
    )


def _describe_starved(cluster: EmulatedCluster) -> str:
    """Name the hosts that lost a process to their memory bound; "" if none did."""
    starved = [i for i, host in enumerate(cluster.hosts) if ran_out_of_memory(host.cgroups)]
    if not starved:
        return ""
    bound = (cluster.request.host_memory or 0) / 2**20
    hosts = ", ".join(f"host {i}" for i in starved)
    return f"; {hosts} reached the bound of {bound:g} MiB (--host-memory)"
