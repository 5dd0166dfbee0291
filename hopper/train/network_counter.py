"""Bytes that this machine's network interface sent, to hold the counted traffic against."""

from __future__ import annotations

from pathlib import Path

from hopper.cluster import Cluster
from hopper.errors import ConfigError

# The interfaces of the network namespace that the process is in, whatever /sys shows.
_COUNTERS = Path("/proc/self/net/dev")
_SENT_FIELD = 8


class NetworkCounter:
    """Reads an interface around a period, on the first rank of each server.

    What the interface counts includes headers, acknowledgements and the traffic of every other
    process that uses it.

    Parameters
    ----------
    interface: its name; "" = none is read.

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
        """Begin a period, once every rank has come to it and before any goes on."""
        if not self._interface:
            return
        if self._cluster.rank % self._cluster.ranks_per_server == 0:
            self._before = sent_bytes(self._interface)
        # A rank that went on sooner would have this server send rows before it has read.
        self._cluster.arrive(f"counting from the start of {period}")

    def stop(self, period: str) -> int | None:
        """Bytes sent since :meth:`start`, once no rank needs this server any more.

        Returns
        -------
        None on ranks that do not read, and without an interface.
        """
        if self._interface:
            # A rank that is done may still be asked for rows, or have its last bytes in a queue.
            self._cluster.arrive(f"ending {period}")
        if self._before is None:
            return None
        return sent_bytes(self._interface) - self._before


def sent_bytes(interface: str) -> int:
    """What an interface has sent since it was made.

    Raises
    ------
    ConfigError: there is no such interface; names those there are.
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
