"""A rank's metrics for Prometheus. They are read from the run's own counters when requested."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cache_server.security import Security
from cache_server.service.metrics import MetricsPort
from hopper.cluster.security import config_errors, security_of
from hopper.config import Config
from hopper.engines.engine import TrainState
from hopper.errors import ConfigError
from hopper.train.callbacks import Running

RESTARTS: Final = "HOPPER_RESTARTS"
"""Environment variable: how many times the launcher has restarted the run."""
_OF_TORCHRUN: Final = "TORCHELASTIC_RESTART_COUNT"


class RunMetrics(Collector):
    """Collects one rank's metrics: those of its traffic and log, and how far it has trained."""

    def __init__(self, engine: str, state: TrainState, run: Running) -> None:
        self._traffic, self._log, self._run = state.cluster.traffic, state.log, run
        self._labels = {
            "engine": engine,
            "rank": str(run.rank),
            "ranks": str(run.ranks),
            "server": str(state.cluster.server),
        }

    def collect(self) -> Iterator[Metric]:
        """Read all metrics."""
        run, gauge, counter = self._run, GaugeMetricFamily, CounterMetricFamily
        restarts = sum(int(os.environ.get(name, 0)) for name in (RESTARTS, _OF_TORCHRUN))
        resumed = "iterations of the run before the checkpoint that it went on from; 0 = none"
        by_server = (
            "bytes sent to other servers, replies of feature servers to this rank among them"
        )
        lookups = {
            (table, result): count
            for table, counts in run.lookups.items()
            for result, count in counts._asdict().items()
        }
        yield InfoMetricFamily("hopper_rank", "which rank this is", self._labels)
        yield _metric(gauge, "epoch", "the epoch under way, from 0", run.epoch)
        yield _metric(gauge, "iteration", "iterations of the epoch that are over", run.iteration)
        yield _metric(gauge, "iteration_seconds", "of the last iteration", run.iteration_seconds)
        yield _metric(gauge, "resumed_step", resumed, run.resumed_step)
        yield _metric(gauge, "restarts", "how many times the run was started again", restarts)
        yield _metric(gauge, "loss", "of the last iteration's global batch", run.losses, "model")
        yield _metric(counter, "roots_trained", "roots of global batches, of all ranks", run.roots)
        text = "rows that were looked for in a cache"
        yield _metric(counter, "cache_lookups", text, lookups, "table", "result")
        yield _metric(counter, "bytes_sent", by_server, self._traffic.totals(), "cause")
        text, seconds = "seconds by stage, of all threads", self._log.total_seconds()
        yield _metric(counter, "stage_seconds", text, seconds, "stage")


def _metric(
    family_class: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    value: float | Mapping[Any, float],
    *labels: str,
) -> Metric:
    """Make a metric of one value, or of values by label, or by tuple of several labels."""
    family = family_class(f"hopper_rank_{name}", text, labels=labels)
    for key, number in value.items() if isinstance(value, Mapping) else [((), value)]:
        family.add_metric([str(key)] if len(labels) == 1 else key, number)
    return family


@contextmanager
def serve_metrics(config: Config) -> Iterator[CollectorRegistry]:
    """Yield a registry whose metrics are served over HTTP if ``cluster.metrics`` is set."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    if not config.cluster.metrics:
        yield registry
        return
    address = _shift(config.cluster.metrics, int(os.environ.get("LOCAL_RANK", 0)))
    with config_errors():
        port = MetricsPort(registry, address, _security_of(config), "metrics")
    try:
        yield registry
    finally:
        port.stop()


def check_metrics(config: Config, servers: int) -> None:
    """Refuse ports for metrics of the servers on this machine, and of their ranks, that are in use
    or not different."""
    taken: dict[str, str] = {}
    ranks = servers * config.cluster.ranks_per_server
    started = 0 if config.cluster.servers else servers
    for key, count in (("metrics", ranks), ("server_metrics", started)):
        first = getattr(config.cluster, key)
        for number in range(count if first else 0):
            address = _shift(first, number)
            if address in taken:
                raise ConfigError(
                    f"cluster.{key}: {address} is one of cluster.{taken[address]} already; "
                    f"expected ports that differ ({ranks} ranks, {servers} feature servers)"
                )
            taken[address] = key
            with config_errors():
                _security_of(config).check_server(address, key)


def server_metrics(config: Config, server: int) -> Iterator[str]:
    """Yield the argument that tells a feature server the address of its metrics, if any."""
    if config.cluster.server_metrics:
        yield f"--metrics={_shift(config.cluster.server_metrics, server)}"


def _shift(address: str, by: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + by}"


def _security_of(config: Config) -> Security:
    """Return the security of connections to metrics. Without a certificate of its own the rank
    serves no TLS, and has no use for authorities."""
    security = security_of(config)
    return security if security.tls_certificate else replace(security, tls_ca="")
