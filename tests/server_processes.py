"""Feature servers of tests, here and in processes, and the folders that processes import from."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from cache_server.service.server import FeatureServer
from cache_server.store.shard import Shard

REPOSITORY = Path(__file__).resolve().parents[1]
PLUG_IN_FOLDERS = [REPOSITORY / folder for folder in ("examples", "tests/engines", "tests/train")]


def own_path(*more: Path) -> str:
    """``PYTHONPATH`` of processes that import plug-ins of examples, tests and more folders."""
    folders = map(str, (*more, *PLUG_IN_FOLDERS, REPOSITORY))
    # An empty entry would be the working folder.
    return os.pathsep.join(filter(None, (*folders, os.environ.get("PYTHONPATH"))))


def run_python(
    *words: str, folder: Path = REPOSITORY, limit: float = 120.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python to its end; the words follow ``python``."""
    command, environment = [sys.executable, *words], os.environ | variables
    return subprocess.run(
        command, cwd=folder, env=environment, timeout=limit, capture_output=True, text=True
    )


def serve_here(partitioned: Path | str, servers: int) -> list[FeatureServer]:
    """Start the feature servers of a partitioned directory in this process."""
    shards = [Shard.open(Path(partitioned, f"server-{index}")) for index in range(servers)]
    started = [FeatureServer(shard, "127.0.0.1:0") for shard in shards]
    for server in started:
        server.start()
    return started


@dataclass
class RunningServer:
    """A server process and the address it reported."""

    process: subprocess.Popen[str]
    address: str
    line: str = field(default="")
    metrics: str = field(default="")

    def stop(self, limit: float = 15.0) -> int:
        """Send SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(limit)


class Servers:
    """Starts server processes; :meth:`stop` checks that each that still runs ends with status 0."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[RunningServer] = []

    def start(
        self, directory: Path, server: int, *options: str, listen: str = "127.0.0.1:0"
    ) -> RunningServer:
        port_file = self._folder / f"port-{len(self._running)}.json"
        command = [sys.executable, "-m", "cache_server", str(directory), "--server", str(server)]
        command += ["--listen", listen, "--port-file", str(port_file), *options]
        # Sources of features may be classes of examples and tests.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": own_path()}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=environment
        )
        assert process.stdout is not None
        started = RunningServer(process, "", process.stdout.readline())
        self._running.append(started)
        content = json.loads(port_file.read_text())
        started.metrics = content.pop("metrics", "")
        assert content == {"server": server, "address": content["address"], "pid": process.pid}
        started.address = content["address"]
        return started

    def forget(self, killed: list[RunningServer]) -> None:
        """Do not check the exit status of servers that a test killed."""
        for server in killed:
            assert server.process.stdout is not None
            server.process.stdout.close()
            self._running.remove(server)

    def stop(self) -> None:
        statuses = []
        for server in self._running:
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGCONT)
                try:
                    statuses.append(server.stop())
                except subprocess.TimeoutExpired:
                    server.process.kill()
                    statuses.append(server.process.wait(5))
            assert server.process.stdout is not None
            server.process.stdout.close()
        assert not any(statuses), statuses
