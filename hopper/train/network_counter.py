"""Bytes that this machine's network interface sent, to compare with the counted traffic."""

from __future__ import annotations

from pathlib import Path

from hopper.cluster import Cluster
from hopper.errors import ConfigError

# Unlike /sys, this file always shows the network namespace of the process.
_COUNTERS = Path("/proc/self/net/dev")
_SENT_FIELD = 8


class NetworkCounter:
    """Reads an interface's counters around a period, on the first rank of each server.

    The counters include headers, acknowledgements and the traffic of all other processes.

    Parameters
    ----------
    interface: the interface's name; "" = read nothing.

    Raises
    ------
    ConfigError: this machine has no such interface.
    """

    def __init__(self, interface: str, cluster: Cluster) -> None:
        self._interface = interface
        self._cluster = cluster
        self._before: int | None = None
        if interface:
            sent_bytes(interface)

    def start(self, period: str) -> None:
        """Begin a period, before which all counters are read; every rank must call it."""
        if not self._interface:
            return
        if self._cluster.rank % self._cluster.ranks_per_server == 0:
            self._before = sent_bytes(self._interface)
        # A rank that went on earlier could make a server send rows before it reads its counters.
        self._cluster.arrive(f"counting from the start of {period}")

    def stop(self, period: str) -> int | None:
        """End a period after all ranks have reached its end; every rank must call it.

        Returns
        -------
        Bytes sent since :meth:`start`; None on ranks that do not read counters.
        """
        if self._interface:
            # Until then this machine may still send rows to other ranks, or have bytes in a queue.
            self._cluster.arrive(f"ending {period}")
        if self._before is None:
            return None
        return sent_bytes(self._interface) - self._before


def sent_bytes(interface: str) -> int:
    """Return the bytes that an interface has sent since it exists.

    Raises
    ------
    ConfigError: there is no such interface; lists the existing ones.
    """
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError as error:
        raise ConfigError(
            f"cluster.interface: cannot read the counters of {interface!r} ({_COUNTERS}: "
            f"{error.strerror}); leave the key empty"
        ) from error
    counters = dict(line.split(":", 1) for line in lines if ":" in line)
    counters = {name.strip(): fields for name, fields in counters.items()}
    if interface not in counters:
        raise ConfigError(
            f"cluster.interface: this machine has no interface {interface!r}, only "
            f"{', '.join(sorted(counters)) or 'none'}"
        )
    return int(counters[interface].split()[_SENT_FIELD])
