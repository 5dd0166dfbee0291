"""Other systems that have a command."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from benchmarks.peers import distdgl
from benchmarks.peers.peer import Peer

PEERS: Final[Mapping[str, Peer]] = MappingProxyType({peer.name: peer for peer in distdgl.VERSIONS})
"""by name of the command line"""
