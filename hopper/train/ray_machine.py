"""One machine of a Ray cluster: its feature server and the agent of its ranks.

Runs as an actor of Ray. Ray pickles what its methods take and return, which is why only strings and
numbers do so: numbers, names and JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

import psutil

from hopper.config import load_config
from hopper.errors import HopperError
from hopper.scratch import scratch_folder
from hopper.train.feature_servers import Place, read_address, start_server, stop_processes
from hopper.train.machine_agent import agent_words, read_failures
from hopper.train.parent import DIE_WITH_PARENT
from hopper.train.rank_processes import Machine, thread_settings

_THREADS: Final = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
HANDED_ON: Final = (*_THREADS, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONPATH")
"""variables that a launcher gives to the machines' processes, where it has them itself"""
SERVERS_FOLDER: Final = "servers"


class RayMachine:
    """A feature server and the agent of its ranks, where Ray has placed this actor.

    Parameters
    ----------
    index: the server's, from 0.
    environment: JSON of variables that servers and ranks get.
    """

    def __init__(self, index: int, environment: str) -> None:
        # Ray sets the first for its own workers.
        for name in _THREADS:
            os.environ.pop(name, None)
        os.environ.update(json.loads(environment))
        self._index = index
        self._address = str(importlib.import_module("ray").util.get_node_ip_address())
        self._server: subprocess.Popen[bytes] | None = None
        self._agent: subprocess.Popen[bytes] | None = None
        self._exits = ExitStack()
        self._folder = self._exits.enter_context(scratch_folder("hopper-ray-machine-"))
        self._printed: list[IO[bytes]] = []

    def place(self, config_file: str) -> str:
        """JSON: ``address``, ``port`` (a free one, where ranks may meet), ``node`` (its id),
        ``cores``, ``sees`` (whether it finds the file)."""
        with socket.socket() as probe:
            probe.bind((self._address, 0))
            port = probe.getsockname()[1]
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        found = Path(config_file).is_file()
        told = {"node": node, "cores": len(os.sched_getaffinity(0)), "sees": found}
        return json.dumps({"address": self._address, "port": port} | told)

    def start_server(self, config_file: str) -> str:
        """Start the feature server; JSON: ``error``, "" if there was none."""
        try:
            config, folder = load_config(config_file), Path(config_file).parent / SERVERS_FOLDER
            folder.mkdir(exist_ok=True)
            self._server = start_server(config, folder, self._index, Place(self._address))
        except (HopperError, OSError) as error:
            return json.dumps({"error": str(error)})
        return json.dumps({"error": ""})

    def find_server(self, config_file: str) -> str:
        """JSON: ``error``, and ``address`` where it listens, "" before it serves."""
        assert self._server is not None
        try:
            folder = Path(config_file).parent / SERVERS_FOLDER
            address = read_address(self._server, folder, self._index)
        except HopperError as error:
            return json.dumps({"error": str(error), "address": ""})
        return json.dumps({"error": "", "address": address or ""})

    def start_ranks(
        self, config_file: str, module: str, machines: int, endpoint: str, ranks_on_node: int
    ) -> None:
        """Start the agent of this machine's ranks.

        Parameters
        ----------
        module: what a rank runs. machines: how many take part.
        endpoint: "host:port" where ranks meet.
        ranks_on_node: those of all machines that share this node of Ray's.
        """
        config = load_config(config_file)
        interface = _interface_of(self._address)
        environment = dict(os.environ) | thread_settings(ranks_on_node, config.train.threads)
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            environment.setdefault(name, interface)
        words = agent_words(
            *(Path(config_file), module, config.cluster.ranks_per_server),
            Machine(self._index, machines, endpoint),
            config.cluster.timeout_seconds,
            self._failures,
        )
        outputs = [self._folder / name for name in ("out", "err")]
        with outputs[0].open("wb") as out, outputs[1].open("wb") as err:
            self._agent = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment | {DIE_WITH_PARENT: str(os.getpid())},
                start_new_session=True,
            )
        self._printed = [self._exits.enter_context(file.open("rb")) for file in outputs]

    def look(self) -> str:
        """JSON: exit codes of ``server`` and ``agent`` (null while they run), the server's ``pid``,
        what ranks have printed since (``out``, ``err``), and ``failures`` of ranks."""
        assert self._server is not None
        assert self._agent is not None
        # In this order: what an ended agent has printed and told is complete.
        agent = self._agent.poll()
        out, err = (file.read().decode(errors="replace") for file in self._printed)
        failures = [asdict(each) for each in read_failures(self._failures)] if agent else []
        server = {"server": self._server.poll(), "pid": self._server.pid}
        return json.dumps(server | {"agent": agent, "out": out, "err": err, "failures": failures})

    def stop(self, ranks: float, server: float) -> None:
        """End the ranks, or the server, which is killed after as many seconds; 0 = not now."""
        for process, limit in ((self._agent, ranks), (self._server, server)):
            if process is not None and limit:
                stop_processes([process], limit)
        if server:
            self._exits.close()

    @property
    def _failures(self) -> Path:
        return self._folder / "failures.json"


def _interface_of(address: str) -> str:
    """The network interface that has an address, for gloo and NCCL to take."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return name
    return ""
