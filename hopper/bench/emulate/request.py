"""The request for an emulated cluster, read from the command line and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from hopper.config import Config
from hopper.errors import RequestError

MOST_HOSTS: Final = 200
DEFAULT_RATE: Final = "1gbit"
NO_RATE: Final = "none"

_BITS: Final = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_BYTES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_LEAST_CPUS: Final = 0.05
_LEAST_MEMORY: Final = 64 * 2**20


@dataclass(frozen=True)
class Request:
    """A request for an emulated cluster.

    Attributes
    ----------
    hosts: number of hosts, one for each partition.
    link_rate: rate of the links as text, such as "1gbit" or "none".
    host_cpus: CPUs that each host may use; None = no bound.
    host_memory: bytes that each host may use; None = no bound.
    """

    hosts: int
    link_rate: str = DEFAULT_RATE
    host_cpus: float | None = None
    host_memory: int | None = None

    @property
    def bits_per_second(self) -> int | None:
        """The rate of every link in each direction; None = no limit."""
        return parse_rate(self.link_rate)

    def check(self, config: Config, servers: int) -> None:
        """Check that the request fits a run whose graph has a number of partitions."""
        if self.hosts != servers:
            raise RequestError(
                f"--emulate: {config.data.partitioned} has {servers} partitions, which need "
                f"{servers} hosts; given {self.hosts}"
            )
        if config.cluster.servers:
            raise RequestError(
                "--emulate starts the feature servers on its hosts: cluster.servers must be "
                f"empty, given {config.cluster.servers}"
            )
        if config.cluster.interface:
            raise RequestError(
                "--emulate reads the counters of its hosts' interfaces: cluster.interface must be "
                f"empty, given {config.cluster.interface!r}"
            )

    def describe(self) -> dict[str, Any]:
        """Return the entry of results.json about the request."""
        return asdict(self)


def make_request(
    hosts: int,
    link_rate: str | None = None,
    host_cpus: float | None = None,
    host_memory: str | None = None,
) -> Request:
    """Check ``--emulate``, ``--link-rate``, ``--host-cpus`` and ``--host-memory``."""
    if not 1 <= hosts <= MOST_HOSTS:
        raise RequestError(f"--emulate: expected 1 to {MOST_HOSTS} hosts, given {hosts}")
    if host_cpus is not None and not _LEAST_CPUS <= host_cpus < math.inf:
        raise RequestError(f"--host-cpus: expected at least {_LEAST_CPUS:g}, given {host_cpus:g}")
    rate = (link_rate or DEFAULT_RATE).lower()
    parse_rate(rate)
    memory = None if host_memory is None else parse_size(host_memory)
    return Request(hosts, rate, host_cpus, memory)


def parse_rate(text: str) -> int | None:
    """Return the bits per second of a text such as "100mbit"; None for "none"."""
    if text.lower() == NO_RATE:
        return None
    bits = _parse_number(text, _BITS)
    if bits < _BITS["kbit"]:
        raise RequestError(
            f"--link-rate: expected {NO_RATE}, or a number of at least 1 kbit with its unit kbit, "
            f"mbit or gbit, such as 100mbit; given {text!r}"
        )
    return bits


def parse_size(text: str) -> int:
    """Return the bytes of a text such as "2G" or "512M", with powers of 1024."""
    size = _parse_number(text.lower().removesuffix("ib"), _BYTES)
    if size < _LEAST_MEMORY:
        raise RequestError(
            f"--host-memory: expected at least {_LEAST_MEMORY >> 20}M, as a number with K, M or G; "
            f"given {text!r}"
        )
    return size


def _parse_number(text: str, units: Mapping[str, int]) -> int:
    """Return a number with one of the units; 0 if the text has another form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]*)", text.lower())
    return int(float(match[1]) * units[match[2]]) if match and match[2] in units else 0
