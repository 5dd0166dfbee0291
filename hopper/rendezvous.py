"""The rendezvous of the ranks of one machine, in a store that only this machine can reach.

torchrun's c10d rendezvous keeps pickled state in a TCP store that listens on every interface, so
anybody who can reach the port can make the launcher run code. This one keeps only the numbers that
torchrun's agent and torch.distributed exchange, and listens only on 127.0.0.1.

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
"""The name of the rendezvous for ``torchrun --rdzv-backend``."""
_ADDRESS: Final = "127.0.0.1"
_LIMIT: Final = timedelta(seconds=60)


class LoopbackRendezvous(RendezvousHandler):
    """The rendezvous of a single machine with a single agent.

    Parameters
    ----------
    run_id: torchrun's name for the run.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rounds = 0
        self._closed = False
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
            # A store that binds a port itself would listen on every interface.
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
            # The store now owns the socket and closes it.
            listening.detach()

    @property
    def use_agent_store(self) -> bool:
        """Return True: ranks use this store, and none of them opens another one."""
        return True

    def get_backend(self) -> str:
        """Return the name of the rendezvous."""
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        """Begin the next round, in a part of the store that earlier rounds have not used."""
        self._rounds += 1
        return RendezvousInfo(
            PrefixStore(f"{self._run_id}/round-{self._rounds}", self._store),
            rank=0,
            world_size=1,
            bootstrap_store_info=RendezvousStoreInfo(_ADDRESS, self._port),
        )

    def is_closed(self) -> bool:
        """Return whether the rendezvous has been closed."""
        return self._closed

    def set_closed(self) -> None:
        """Close the rendezvous."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Return the number of machines that want to join: always 0."""
        return 0

    def get_run_id(self) -> str:
        """Return torchrun's name for the run."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the rendezvous for good."""
        self._closed = True
        return True


def make_rendezvous(parameters: RendezvousParameters) -> LoopbackRendezvous:
    """Make the rendezvous that torchrun asks for.

    Raises
    ------
    ValueError: it asks for more than one machine.
    """
    if parameters.max_nodes != 1:
        raise ValueError(
            f"--nnodes: the rendezvous {BACKEND!r} is for one machine, got {parameters.max_nodes}; "
            "several meet by --master-addr and --master-port"
        )
    return LoopbackRendezvous(parameters.run_id)
