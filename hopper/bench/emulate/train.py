"""One training run over emulated hosts, with a feature server and ranks on each."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.emulate.limits import ran_out_of_memory
from hopper.bench.emulate.network import INTERFACE, end_processes
from hopper.bench.train_process import train_in_process
from hopper.config import load_config
from hopper.errors import ClusterError, DeadlineExceeded
from hopper.files.whole_files import write_text
from hopper.launch.on_emulated import HOSTS_FILE
from hopper.process.signal_handlers import defer_signals


def train_on_hosts(
    cluster: EmulatedCluster,
    what: str,
    config_file: Path,
    run_dir: Path,
    overrides: Sequence[str],
    limit: float,
) -> dict[str, Any]:
    """Train over emulated hosts, and return the run's summary.json, with ``nic_bytes`` of epochs.

    The arguments are those of :func:`hopper.bench.train_process.train_in_process`. No process stays
    on the hosts. Errors name the host, and the rank or server that failed first.
    """
    config = load_config(config_file, overrides)
    threads = config.train.threads or threads_per_rank(cluster, config.cluster.ranks_per_server)
    run_dir.mkdir(parents=True, exist_ok=True)
    hosts = [{"address": host.network.address, "host": host.names} for host in cluster.hosts]
    about = {"hosts": hosts, "memory": cluster.request.host_memory}
    write_text(run_dir / HOSTS_FILE, json.dumps(about))
    # The hosts' network is private, so connections need no protection.
    words = ["--on", f"emulated:{run_dir / HOSTS_FILE}", f"--train.threads={threads}"]
    words += [f"--cluster.interface={INTERFACE}", "--cluster.insecure=true"]
    try:
        return train_in_process(what, config_file, run_dir, [*overrides, *words], limit)
    except DeadlineExceeded:
        raise
    except ClusterError as error:
        raise ClusterError(f"{error}{_describe_starved(cluster)}") from error
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
