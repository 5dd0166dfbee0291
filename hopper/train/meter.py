"""Measuring an epoch on all ranks: seconds, bytes and rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import CAUSES
from hopper.engines import TrainState
from hopper.errors import ConfigError
from hopper.features import RowCounts
from hopper.features.cached import Lookups
from hopper.timing.run_log import STAGES
from hopper.train.callbacks import Running
from hopper.train.results import ROW_KINDS, EpochRecord, finite_mean


class EpochMeter:
    """Measures epochs and evaluations on one rank, by what its state's cluster, rows, learnable
    rows and log count. ``run`` gets the seconds and lookups of every iteration."""

    def __init__(self, state: TrainState, run: Running) -> None:
        self._state, self._cluster, self._run = state, state.cluster, run
        self._rows, self._lookups = RowCounts(), dict[str, Lookups]()
        self._epoch = self._sent_before = 0
        self._start = self._cpu_start = 0.0
        self._iteration_seconds: list[float] = []
        self._interface = state.config.cluster.interface
        """the network interface whose counter is read around every epoch; "" = none"""
        self._interface_before = self._read_interface()

    def start(self, epoch: int) -> None:
        """Begin an epoch, after all ranks have arrived."""
        self._epoch, self._iteration_seconds = epoch, []
        self._reset()
        self._sent_before = self._cluster.traffic.total
        self._interface_before = self._read_interface()
        if self._interface:
            # A rank that went on earlier could make a server send rows before it reads its counter.
            self._cluster.arrive(f"counting from the start of epoch {epoch}")
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Time an iteration and count the rows that it reads."""
        began = time.perf_counter()
        yield
        seconds = self._run.iteration_seconds = time.perf_counter() - began
        self._iteration_seconds.append(seconds)
        self._take_counts()

    def finish(self, losses: list[float]) -> EpochRecord:
        """End an epoch, and combine all ranks' measurements; every rank must call it. The losses
        are those of all iterations of the epoch, with those before a resumption."""
        seconds, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu_start
        self._take_counts()
        cluster, log = self._cluster, self._state.log
        if self._lookups:
            log.event("lookups", hits_and_misses=self._lookups)
        if self._interface:
            # Until then this machine may still send rows to other ranks, or have bytes in a queue.
            cluster.arrive(f"ending epoch {self._epoch}")
        through_interface = self._read_interface() - self._interface_before
        stage_seconds = log.take_stage_seconds()
        sent_bytes = cluster.traffic.total - self._sent_before
        sent = cluster.traffic.take()
        parts: dict[str, list[float]] = {
            "iterations": self._iteration_seconds,
            "seconds": [seconds],
            "bytes": [sent[cause] for cause in CAUSES],
            "rows": [getattr(self._rows, kind) for kind in ROW_KINDS],
            "stages": [stage_seconds[stage] for stage in STAGES],
            "lookups": [count for counts in self._lookups.values() for count in counts],
            "sent": [sent_bytes],
            "cpu": [cpu],
            "interface": [through_interface],
        }
        mine = torch.tensor([x for part in parts.values() for x in part], dtype=torch.float64)
        everyone = cluster.all_gather(mine, "control", f"adding up epoch {self._epoch}")
        sizes = [len(part) for part in parts.values()]
        by_rank = dict(zip(parts, everyone.split(sizes, dim=1), strict=True))
        sums = {name: [int(x) for x in part.sum(0).tolist()] for name, part in by_rank.items()}
        by_server = by_rank["interface"][:: cluster.ranks_per_server, 0].long().tolist()
        pairs = zip(sums["lookups"][::2], sums["lookups"][1::2], strict=True)
        return EpochRecord(
            epoch=self._epoch,
            seconds=float(by_rank["seconds"].max()),
            loss=finite_mean(losses),
            iterations=len(losses),
            measured_iterations=len(self._iteration_seconds),
            iteration_losses=losses,
            bytes=dict(zip(CAUSES, sums["bytes"], strict=True)),
            rows=dict(zip(ROW_KINDS, sums["rows"], strict=True)),
            lookups=dict(zip(self._lookups, map(list, pairs), strict=True)),
            stage_seconds=dict(zip(STAGES, by_rank["stages"].mean(0).tolist(), strict=True)),
            cpu_seconds=by_rank["cpu"][:, 0].tolist(),
            nic_bytes=by_server if self._interface else None,
            sent_bytes=sums["sent"][0],
            iteration_seconds=by_rank["iterations"].amax(0).tolist(),
        )

    @contextmanager
    def evaluation(self, record: EpochRecord) -> Iterator[None]:
        """Add the time and traffic of the evaluation within this context to an epoch's record."""
        start = time.perf_counter()
        self._reset()
        yield
        record.evaluation_seconds = time.perf_counter() - start
        sent = torch.tensor([sum(self._cluster.traffic.take().values())])
        self._cluster.all_reduce(sent, "control", "adding up evaluation traffic")
        record.evaluation_bytes = int(sent)

    def _read_interface(self) -> int:
        """Return the bytes that the interface has sent; 0 without one."""
        return interface_bytes(self._interface) if self._interface else 0

    def _take_counts(self) -> None:
        rows = self._state.rows.take_rows()
        lookups = rows.lookups | self._state.learnable.take_lookups()
        self._rows.add(rows)
        self._lookups = _add(self._lookups, lookups)
        self._run.lookups = _add(self._run.lookups, lookups)

    def _reset(self) -> None:
        self._rows, self._lookups = RowCounts(), {}
        self._cluster.traffic.take()
        self._state.rows.take_rows()
        self._state.learnable.take_lookups()
        self._state.log.take_stage_seconds()


def _add(before: Mapping[str, Lookups], more: Mapping[str, Lookups]) -> dict[str, Lookups]:
    """Add lookups by name. New names come last."""
    return dict(before) | {name: before.get(name, Lookups()).plus(n) for name, n in more.items()}


def interface_bytes(interface: str) -> int:
    """Return the bytes that a network interface has sent since it exists, with headers,
    acknowledgements and the traffic of all other processes."""
    try:
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
    except OSError as error:
        raise ConfigError(
            f"cluster.interface: cannot read the counters of {interface!r} ({error}); leave the "
            "key empty"
        ) from error
    if interface not in counters:
        raise ConfigError(
            f"cluster.interface: this machine has no interface {interface!r}, only "
            f"{', '.join(sorted(counters)) or 'none'}"
        )
    return int(counters[interface].bytes_sent)


def peak_rss_mib(cluster: Cluster) -> list[float]:
    """Return the peak resident memory in MiB by rank; every rank must call it."""
    # getrusage would include the process that this one was forked from.
    status = Path("/proc/self/status").read_text().splitlines()
    kib = next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
    mine = torch.tensor([kib / 1024], dtype=torch.float64)
    by_rank = cluster.all_gather(mine, "control", "adding up memory")
    return [round(value, 1) for value in by_rank[:, 0].tolist()]
