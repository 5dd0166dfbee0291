"""Checks of this machine: its device, processors, open files, shared memory and network."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch

from hopper.cluster.rank_network import (
    ADVICE,
    VARIABLE,
    Way,
    choose_interface,
    find_way,
    given_interface,
    is_loopback,
)
from hopper.doctor.case import Case, folders_here
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.errors import ConfigError, GraphError
from hopper.partition.checksums import check_sizes
from hopper.partition.memory import format_bytes
from hopper.process.thread_settings import count_cores, threads_of_a_rank
from hopper.process.time_limit import finish_within
from hopper.train.rank import device_of_rank

_SHARED: Final = Path("/dev/shm")  # noqa: S108 # measured, not written to
_LEAST_SHARED: Final = 1 << 30
"""Bytes that NCCL's buffers of a machine's ranks may take."""
_OTHER_FILES: Final = 256
"""Allowance for a process's libraries, pipes and connections."""
_NETWORK: Final = "network of ranks"
_NETWORK_ADVICE: Final = f"{ADVICE} (docs/howto/several-machines.md)"


def check_device(case: Case) -> Iterator[Finding]:
    """Check that ranks can train on the configured device, with the options for it."""
    subject = "train.device"
    try:
        device = device_of_rank(case.config, case.ranks_here)
    except ConfigError as error:
        yield wrong(subject, error)
        return
    if device.type != "cuda":
        yield fine(subject, f"cpu, for {case.ranks_text}")
        return
    name = torch.cuda.get_device_name(device)
    yield fine(subject, f"{torch.cuda.device_count()} × {name}, for {case.ranks_text}")
    if find_spec("triton") is None:
        text = "Triton is not installed: message passing takes torch's kernels"
        yield warning("Triton", text, "pip install triton for faster ones")


def check_threads(case: Case) -> Iterator[Finding]:
    """Compare the threads of all ranks with the cores and with the environment."""
    subject, ranks, count = "threads", case.ranks_here, count_cores()
    threads = threads_of_a_rank(case.config.train.threads, ranks)
    from_environment = os.environ.get("OMP_NUM_THREADS", "")
    text = f"{case.ranks_text} × {threads} threads on {count} usable cores"
    if from_environment and from_environment != str(threads):
        advice = f"unset it, or set it and train.threads to {max(1, count // ranks)}"
        mismatch = (
            f"OMP_NUM_THREADS={from_environment} in the environment, and ranks of {threads} threads"
        )
        yield warning(subject, mismatch, advice)
    if ranks * threads > count:
        advice = "fewer ranks or train.threads, or 0, which divides the cores among the ranks"
        yield warning(subject, text, advice)
    else:
        yield fine(subject, text)


def check_open_files(case: Case) -> Iterator[Finding]:
    """Compare the limit of open files with a rank's mapped files and connections."""
    subject, graph = "open files", case.graph_request.graph
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        mapped = len(check_sizes(graph.path, folders_here(graph)))
    except GraphError:
        # check_files reports this error.
        return
    servers = len(case.config.cluster.servers) or graph.book.servers
    required = mapped + servers + 2 * case.graph_request.ranks + _OTHER_FILES
    text = f"a process may have {limit:,}; a rank takes about {required:,} at most"
    if limit == resource.RLIM_INFINITY:
        yield fine(subject, "no limit")
    elif limit < required:
        yield warning(subject, text, f"ulimit -n {max(4096, 2 * required)}, before the run starts")
    else:
        yield fine(subject, text)


def check_shared_memory(case: Case) -> Iterator[Finding]:
    """Check the free space of /dev/shm, if NCCL will use it."""
    subject = str(_SHARED)
    try:
        usage = shutil.disk_usage(_SHARED)
    except OSError:
        usage = None
    size = "not there"
    if usage is not None:
        size = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    may_use_gpus = case.config.train.device != "cpu" and torch.cuda.is_available()
    if not may_use_gpus or case.ranks_here == 1 or case.config.cluster.share_gpus:
        yield fine(subject, f"{size}; only NCCL uses it, between GPUs of a machine")
    elif usage is None or usage.free < _LEAST_SHARED:
        text = f"{size}; NCCL's messages between {case.ranks_here} GPUs go through it"
        yield warning(subject, text, "make it larger: docker run --shm-size=4g")
    else:
        yield fine(subject, size)


def check_network(case: Case) -> Iterator[Finding]:
    """Check the interface on which ranks of this machine will meet those of others."""
    if not case.elsewhere:
        yield fine(_NETWORK, "all ranks are on this machine, and meet on its loopback interface")
        return
    try:
        interface, reason = given_interface(), f"as {VARIABLE} says"
        if interface is None:
            host, way = finish_within(case.limit, lambda: _find_way_out(case))
            interface, reason = choose_interface(way), f"on which they reach {host}{_about_name()}"
        if not case.config.cluster.insecure:
            interface.refuse_public()
    except (ConfigError, OSError) as error:
        yield wrong(_NETWORK, error, _NETWORK_ADVICE)
        return
    if is_loopback(interface.address):
        yield wrong(_NETWORK, f"{VARIABLE}: no other machine reaches {interface}", _NETWORK_ADVICE)
        return
    yield fine(_NETWORK, f"ranks here will use {interface}, {reason}")


def _find_way_out(case: Case) -> tuple[str, Way]:
    """Return the first machine of the run to which this one has a way, and the way.

    Ranks take the way to the machine of rank 0. The name of that machine may lead it to itself.
    """
    addresses = [entry.split(",")[0] for entry in case.config.cluster.servers]
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    master = os.environ.get("MASTER_ADDR")
    for host in [master, *hosts] if master else hosts:
        try:
            way = find_way(host)
        except (OSError, UnicodeError):
            continue
        if not way.is_loopback:
            return host, way
    raise OSError(f"this machine has no way to any other of cluster.servers ({', '.join(hosts)})")


def _about_name() -> str:
    """Say that the name of this machine leads to itself, which gloo by itself would use."""
    name = socket.gethostname()
    try:
        way = find_way(name)
    except OSError:
        return ""
    return f"; this machine's name, {name}, leads to {way.host}" if way.is_loopback else ""
