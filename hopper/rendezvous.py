"""Where the ranks of one machine meet: a store that only this machine can reach.

torchrun's c10d rendezvous keeps its state pickled in a TCP store that listens on every interface:
whoever can reach the port can have the launcher run code. This one keeps nothing but the numbers
that torchrun's agent and torch.distributed exchange, and listens on 127.0.0.1 alone.

``hopper train`` uses it. torchrun finds it by name, through the entry point ``torchrun.handlers``:
``torchrun --rdzv-backend loopback --nproc-per-node N -m hopper.train CONFIG``.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

BACKEND: Final = "loopback"
"""the rendezvous' name, as of ``torchrun --rdzv-backend``"""
_ADDRESS: Final = "127.0.0.1"
_LIMIT: Final = timedelta(seconds=60)


class LoopbackRendezvous(RendezvousHandler):
    """The rendezvous of a single machine, whose agent is alone.

    Parameters
    ----------
    run_id: torchrun's name for the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rounds = 0
        self._closed = False
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
            # A store that binds a port by itself takes it on every interface.
            listening.bind((_ADDRESS, 0))
            listening.listen(socket.SOMAXCONN)
            self._port: int = listening.getsockname()[1]
            self._store = TCPStore(
                _ADDRESS,
                self._port,
                is_master=True,
                timeout=_LIMIT,
                wait_for_workers=False,
                master_listen_fd=listening.fileno(),
            )
            # The store closes it.
            listening.detach()

    @property
    def use_agent_store(self) -> bool:
        """Ranks are clients of this store, and none of them opens one of its own."""
        return True

    def get_backend(self) -> str:
        """The rendezvous' name."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet for the next round; what an earlier one has left in the store is not met again."""
        self._rounds += 1
        return RendezvousInfo(
            PrefixStore(f"{self._run_id}/round-{self._rounds}", self._store),
            rank=0,
            world_size=1,
            bootstrap_store_info=RendezvousStoreInfo(_ADDRESS, self._port),
        )

    def is_closed(self) -> bool:
        """Whether the rendezvous has been closed."""
        return self._closed

    def set_closed(self) -> None:
        """Close it."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Machines that want to join: never any."""
        return 0

    def get_run_id(self) -> str:
        """Torchrun's name for the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close it for good."""
        self._closed = True
        return True


def make_rendezvous(parameters: RendezvousParameters) -> LoopbackRendezvous:
    """Make the rendezvous that torchrun asks for.

    Raises
    ------
    ValueError: more than one machine is to meet.
    """
    if parameters.max_nodes != 1:
        raise ValueError(
            f"--nnodes: the rendezvous {BACKEND!r} is for one machine, got {parameters.max_nodes}; "
            "several meet by --master-addr and --master-port"
        )
    return LoopbackRendezvous(parameters.run_id)
