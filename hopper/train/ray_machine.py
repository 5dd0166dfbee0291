"""One machine of a Ray cluster, as a Ray actor: its feature server and the agent of its ranks.

Ray pickles the arguments and results of an actor's methods. They are therefore only numbers, names
and JSON texts.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import socket
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Final

from hopper.config import load_config
from hopper.errors import HopperError
from hopper.scratch import scratch_folder
from hopper.train.feature_servers import Place, read_address, start_server, stop_processes
from hopper.train.machine_agent import agent_words, read_failures
from hopper.train.parent import DIE_WITH_PARENT
from hopper.train.rank_processes import Machine, thread_settings

_THREADS: Final = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
PASSED_VARIABLES: Final = (*_THREADS, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONPATH")
"""Environment variables that the launcher passes on to the machines' processes if it has them."""
SERVERS_FOLDER: Final = "servers"
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class RayMachine:
    """Runs a feature server and the agent of its ranks on the node of this actor.

    Parameters
    ----------
    index: number of the server, from 0.
    environment: JSON of environment variables for servers and ranks.
    """

    def __init__(self, index: int, environment: str) -> None:
        # Ray sets the first of these for its own workers.
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
        """Describe this machine.

        Returns
        -------
        JSON with ``address``, ``port`` (a free one, where ranks may meet), ``node`` (the id of
        Ray's node), ``cores`` and ``sees`` (whether the file exists here).
        """
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        facts = {
            "address": self._address,
            "port": free_port(self._address),
            "node": node,
            "cores": len(os.sched_getaffinity(0)),
            "sees": Path(config_file).is_file(),
        }
        return json.dumps(facts)

    def start_server(self, config_file: str) -> str:
        """Start the feature server. The JSON result has ``error``, "" if there was none."""
        try:
            config, folder = load_config(config_file), Path(config_file).parent / SERVERS_FOLDER
            folder.mkdir(exist_ok=True)
            self._server = start_server(config, folder, self._index, Place(self._address))
        except (HopperError, OSError) as error:
            return json.dumps({"error": str(error)})
        return json.dumps({"error": ""})

    def find_server(self, config_file: str) -> str:
        """Ask whether the feature server listens.

        Returns
        -------
        JSON with ``error`` and ``address``; both may be "", the latter until the server serves.
        """
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
        module: the Python module that each rank runs.
        machines: number of machines of the run.
        endpoint: "host:port" where ranks meet.
        ranks_on_node: number of ranks of all machines that share this node of Ray's.
        """
        config = load_config(config_file)
        environment = dict(os.environ) | thread_settings(ranks_on_node, config.train.threads)
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
        """Report the state of this machine's processes.

        Returns
        -------
        JSON with the exit codes of ``server`` and ``agent`` (null while they run), the server's
        ``pid``, the ranks' output since the last call (``out``, ``err``), and the ranks'
        ``failures``.
        """
        assert self._server is not None
        assert self._agent is not None
        # The agent comes first: once it has ended, its output and its failures are complete.
        agent = self._agent.poll()
        out, err = (file.read().decode(errors="replace") for file in self._printed)
        failures = [asdict(failure) for failure in read_failures(self._failures)] if agent else []
        server = {"server": self._server.poll(), "pid": self._server.pid}
        return json.dumps(server | {"agent": agent, "out": out, "err": err, "failures": failures})

    def stop(self, ranks: float, server: float) -> None:
        """End the ranks, the server or both.

        Parameters
        ----------
        ranks, server: seconds after which the processes are killed; 0 = leave them alone.
        """
        for process, limit in ((self._agent, ranks), (self._server, server)):
            if process is not None and limit:
                stop_processes([process], limit)
        if server:
            self._exits.close()

    @property
    def _failures(self) -> Path:
        return self._folder / "failures.json"


def free_port(address: str) -> int:
    """Return a port that nobody listens on, and that the kernel gives to nobody meanwhile.

    Ranks meet there seconds later, when servers and connections have been given ports of the
    kernel's range. So the port is below that range, if one is free there.
    """
    end = int(_PORT_RANGE.read_text().split()[0])
    below = range(max(1024, end // 2), end)
    for port in secrets.SystemRandom().sample(below, min(len(below), 100)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind((address, port))
            return port
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
