"""A rank's metrics for Prometheus. They are read from the run's own counters when requested."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cache_server.errors import CacheServerError
from cache_server.security import Security
from cache_server.service.listen import check_free, parse_address
from cache_server.service.metrics_port import MetricsPort
from hopper.config import Config
from hopper.engines.engine import TrainState
from hopper.errors import ConfigError
from hopper.train.run_progress import RunProgress
from hopper.train.security import security_of


class RunMetrics(Collector):
    """Collects one rank's metrics.

    Parameters
    ----------
    engine: the engine's name.
    state: the state whose traffic and log are read.
    progress: how far the rank has trained.
    """

    def __init__(self, engine: str, state: TrainState, progress: RunProgress) -> None:
        self._traffic, self._log = state.cluster.traffic, state.log
        self._progress = progress
        cluster = state.cluster
        self._labels = {
            "engine": engine,
            "rank": str(cluster.rank),
            "ranks": str(cluster.world),
            "server": str(cluster.server),
        }

    def collect(self) -> Iterator[Metric]:
        """Read all metrics."""
        yield InfoMetricFamily("hopper_rank", "which rank this is", self._labels)
        yield from self._collect_progress()
        yield _counter(
            "bytes_sent",
            "bytes sent to other servers, replies of feature servers to this rank among them",
            ["cause"],
            (([cause], sent) for cause, sent in self._traffic.totals().items()),
        )
        yield _counter(
            "stage_seconds",
            "seconds by stage, of all threads",
            ["stage"],
            (([stage], seconds) for stage, seconds in self._log.total_seconds().items()),
        )

    def _collect_progress(self) -> Iterator[Metric]:
        progress = self._progress
        gauges = {
            "epoch": ("the epoch under way, from 0", progress.epoch),
            "iteration": ("iterations of the epoch that are over", progress.iteration),
            "iteration_seconds": ("of the last iteration", progress.iteration_seconds),
            "resumed_step": (
                "iterations of the run before the checkpoint that it went on from; 0 = none",
                progress.resumed_step,
            ),
            "restarts": ("how many times the run was started again", progress.restarts),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"hopper_rank_{name}", text, value)
        loss = GaugeMetricFamily(
            "hopper_rank_loss", "of the last iteration's global batch", labels=["model"]
        )
        for model, model_loss in progress.losses.items():
            loss.add_metric([str(model)], model_loss)
        yield loss
        yield _counter(
            "roots_trained", "roots of global batches, of all ranks", [], [([], progress.roots)]
        )
        yield _counter(
            "cache_lookups",
            "rows that were looked for in a cache",
            ["table", "result"],
            (
                ([table, result], count)
                for table, lookups in progress.lookups.items()
                for result, count in lookups._asdict().items()
            ),
        )


class RankRegistry:
    """Serves a rank's metrics over HTTP if ``cluster.metrics`` is set.

    Raises
    ------
    ConfigError: the port cannot be bound, or the connection would be unprotected.
    """

    def __init__(self, config: Config) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self._port: MetricsPort | None = None
        if not config.cluster.metrics:
            return
        address = _shift(config.cluster.metrics, local_rank)
        with _config_errors():
            self._port = MetricsPort(self._registry, address, _security_of(config), "metrics")

    def __enter__(self) -> RankRegistry:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._port is not None:
            self._port.stop()

    def register(self, metrics: RunMetrics) -> None:
        """Serve a run's metrics from now on."""
        self._registry.register(metrics)


def check_metrics(config: Config, servers: int) -> None:
    """Check that this machine's ports for metrics differ and are free.

    Parameters
    ----------
    servers: number of servers whose ranks run on this machine.

    Raises
    ------
    ConfigError: names the key and the address.
    """
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
            with _config_errors():
                check_free(*parse_address(address, key), address, key)
                _security_of(config).check_server(address)


def server_metrics(config: Config, server: int) -> Iterator[str]:
    """Yield the arguments that tell a feature server the address of its metrics, if there is
    one."""
    if config.cluster.server_metrics:
        yield f"--metrics={_shift(config.cluster.server_metrics, server)}"


def _shift(address: str, by: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + by}"


def _security_of(config: Config) -> Security:
    """Return the security of connections to metrics.

    Without a certificate of its own the rank serves no TLS, and has no use for authorities.
    """
    security = security_of(config)
    return security if security.tls_certificate else replace(security, tls_ca="")


@contextmanager
def _config_errors() -> Iterator[None]:
    try:
        yield
    except CacheServerError as error:
        raise ConfigError(f"cluster.{error}") from error


def _counter(
    name: str, text: str, labels: list[str], values: Iterable[tuple[list[str], float]]
) -> Metric:
    family = CounterMetricFamily(f"hopper_rank_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
