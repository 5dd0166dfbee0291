"""One training run over emulated hosts, with a feature server and ranks on each."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from cache_server.available_memory import LIMIT_VARIABLE
from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.emulate.limits import ran_out_of_memory
from hopper.bench.emulate.network import INTERFACE, end_processes
from hopper.bench.train_process import run_dir_words
from hopper.config import Config, change_config, load_config
from hopper.errors import ClusterError, DeadlineExceeded, ServerLost
from hopper.signal_handlers import defer_signals
from hopper.train.feature_servers import FeatureServers, feature_servers
from hopper.train.launch import prepare, write_config
from hopper.train.parent import DIE_WITH_PARENT
from hopper.train.rank_failures import explain, read_failure
from hopper.train.results import read_summary
from hopper.train.run_lock import lock_run_folder

HOSTS_FOLDER: Final = "hosts"
_MEETING_PORT: Final = "29500"
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
    _, run_dir = prepare(config)
    places = [host.place for host in cluster.hosts]
    try:
        with (
            lock_run_folder(run_dir, "launcher"),
            feature_servers(config, run_dir, places) as servers,
            _start_ranks(cluster, config, run_dir, servers.addresses) as ranks,
        ):
            if not _await(ranks, servers, config, run_dir, deadline):
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
def _start_ranks(
    cluster: EmulatedCluster, config: Config, run_dir: Path, servers: list[str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the ranks of all hosts, in order. After an error everything on the hosts is killed,
    even what is suspended."""
    command = [sys.executable, "-u", "-P", "-m", "hopper.train"]
    command.append(str(write_config(config, run_dir, servers)))
    per_host, memory = config.cluster.ranks_per_server, cluster.request.host_memory
    (run_dir / HOSTS_FOLDER).mkdir(exist_ok=True)
    # What torchrun would set.
    environment = os.environ | {
        "MASTER_ADDR": cluster.hosts[0].network.address,
        "MASTER_PORT": _MEETING_PORT,
        "WORLD_SIZE": str(len(cluster.hosts) * per_host),
        "LOCAL_WORLD_SIZE": str(per_host),
        "OMP_NUM_THREADS": str(config.train.threads),
        # Hosts share this machine's cores, so waiting threads must not spin.
        "OMP_WAIT_POLICY": "PASSIVE",
        DIE_WITH_PARENT: str(os.getpid()),
    }
    if memory is not None:
        environment[LIMIT_VARIABLE] = str(memory)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(len(cluster.hosts) * per_host):
            index, local_rank = divmod(rank, per_host)
            (error_file := _error_file(run_dir, rank)).unlink(missing_ok=True)
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "TORCHELASTIC_ERROR_FILE": str(error_file),
            }
            # A signal between start and append would leave the rank behind.
            with (run_dir / HOSTS_FOLDER / f"{index}.log").open("ab") as log, defer_signals():
                ranks.append(
                    subprocess.Popen(
                        [*cluster.hosts[index].place.prefix, *command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment | own,
                        # Ctrl-C must reach only this process, which then ends them in order.
                        start_new_session=True,
                    )
                )
        yield ranks
    except BaseException:
        with defer_signals():
            for process in ranks:
                process.kill()
            for host in cluster.hosts:
                end_processes(host.network.namespace)
            for process in ranks:
                process.wait()
        raise


def _error_file(run_dir: Path, rank: int) -> Path:
    return run_dir / HOSTS_FOLDER / f"error-{rank}.json"


def _await(
    ranks: Sequence[subprocess.Popen[bytes]],
    servers: FeatureServers,
    config: Config,
    run_dir: Path,
    deadline: float,
) -> bool:
    """Wait for all ranks to end well; return False if the deadline comes first.

    Errors say what ended first and on which host, or which rank did not end after the others.
    """
    failed_at = ended_at = math.inf
    end_limit = config.cluster.timeout_seconds
    while (now := time.monotonic()) <= deadline:
        if (lost := servers.find_lost()) is not None:
            raise ServerLost(f"{lost}; the ranks were ended")
        codes = [process.poll() for process in ranks]
        if all(code == 0 for code in codes):
            return True
        if any(codes):
            failed_at = min(failed_at, now)
            was_killed = any(code is not None and code < 0 for code in codes)
            if was_killed or None not in codes or now > failed_at + _GRACE_SECONDS:
                failures = [
                    ProcessFailure(rank, process.pid, code, str(_error_file(run_dir, rank)))
                    for rank, (process, code) in enumerate(zip(ranks, codes, strict=True))
                    if code
                ]
                raise explain(
                    [read_failure(failure.local_rank, failure) for failure in failures],
                    lambda rank: f"host {rank // config.cluster.ranks_per_server}: ",
                )
        elif 0 in codes:
            ended_at = min(ended_at, now)
            if now > ended_at + end_limit:
                late = ", ".join(f"rank {i}" for i, code in enumerate(codes) if code is None)
                raise DeadlineExceeded(late, "ending after the other ranks", end_limit)
        time.sleep(_LOOK_SECONDS)
    return False


def _describe_starved(cluster: EmulatedCluster) -> str:
    """Name the hosts that lost a process to their memory bound; "" if none did."""
    starved = [i for i, host in enumerate(cluster.hosts) if ran_out_of_memory(host.cgroups)]
    if not starved:
        return ""
    bound = (cluster.request.host_memory or 0) / 2**20
    hosts = ", ".join(f"host {i}" for i in starved)
    return f"; {hosts} reached the bound of {bound:g} MiB (--host-memory)"
