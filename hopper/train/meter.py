"""Measuring an epoch on all ranks: seconds, bytes and rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hopper.cluster import Cluster
from hopper.features import PartitionedRows, RowCounts
from hopper.features.cached import Lookups
from hopper.hetero.learnable import LearnableRows
from hopper.run_log import RunLog
from hopper.train.network_counter import NetworkCounter
from hopper.train.results import EpochRecord, agree_on_epoch
from hopper.train.run_progress import RunProgress, add_lookups


class EpochMeter:
    """Measures epochs and evaluations on one rank.

    Parameters
    ----------
    interface: the network interface whose counters are read around every epoch; "" = none.
    learnable: learnable rows, some of which may be cached.
    progress: gets the seconds and lookups of every iteration.
    """

    def __init__(
        self,
        cluster: Cluster,
        rows: PartitionedRows,
        log: RunLog,
        interface: str,
        learnable: LearnableRows,
        progress: RunProgress,
    ) -> None:
        self._cluster = cluster
        self._rows = rows
        self._learnable = learnable
        self._log = log
        self._progress = progress
        self._counted, self._lookups = RowCounts(), dict[str, Lookups]()
        self._network = NetworkCounter(interface, cluster)
        self._epoch = self._sent_before = 0
        self._start = self._cpu_start = 0.0
        self._iteration_seconds: list[float] = []

    def start(self, epoch: int) -> None:
        """Begin an epoch, after all ranks have arrived."""
        self._epoch = epoch
        self._reset()
        self._sent_before = self._cluster.traffic.total
        self._network.start(f"epoch {epoch}")
        self._iteration_seconds = []
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Time an iteration and count the rows that it reads."""
        began = time.perf_counter()
        yield
        seconds = self._progress.iteration_seconds = time.perf_counter() - began
        self._iteration_seconds.append(seconds)
        self._take_counts()

    def finish(self, losses: list[float]) -> EpochRecord:
        """End an epoch and return its record; every rank must call it.

        Parameters
        ----------
        losses: losses of all iterations of the epoch, with those before a resumption.
        """
        seconds, cpu = time.perf_counter() - self._start, time.process_time() - self._cpu_start
        self._take_counts()
        rows, lookups = self._counted, self._lookups
        if lookups:
            self._log.event("lookups", hits_and_misses=lookups)
        nic_bytes = self._network.stop(f"epoch {self._epoch}")
        return agree_on_epoch(
            self._cluster,
            self._epoch,
            seconds,
            cpu,
            losses,
            self._iteration_seconds,
            rows,
            lookups,
            self._log.take_stage_seconds(),
            self._cluster.traffic.total - self._sent_before,
            nic_bytes,
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

    def _take_counts(self) -> None:
        rows = self._rows.take_rows()
        lookups = rows.lookups | self._learnable.take_lookups()
        self._counted.add(rows)
        self._lookups = add_lookups(self._lookups, lookups)
        self._progress.add_lookups(lookups)

    def _reset(self) -> None:
        self._counted, self._lookups = RowCounts(), {}
        self._cluster.traffic.take()
        self._rows.take_rows()
        self._learnable.take_lookups()
        self._log.take_stage_seconds()
