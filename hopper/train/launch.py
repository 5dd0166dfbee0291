"""A whole run on one machine: feature servers, ranks, and the end of both.

The ranks are started and watched by torchrun's own agent. Whatever ends first is named, everything
else is taken down, and nothing is left behind.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hopper.config import Config, make_config
from hopper.engines.assemble import check_request, make_model, make_schedule
from hopper.errors import ClusterError, DeadlineExceeded, RankLost, RequestError, ServerLost
from hopper.partition import PartitionedGraph
from hopper.train.results import SUMMARY_FILE, refuse_finished, write_text

DIE_WITH_PARENT = "HOPPER_DIE_WITH_PARENT"
_POLL_SECONDS = 0.1
_STOP_SECONDS = 10.0


@dataclass(frozen=True)
class RunResult:
    """Where a run's files are, and its summary (losses, bytes, scores)."""

    run_dir: Path
    summary: dict[str, Any]


def train(config: Config | Mapping[str, Any]) -> RunResult:
    """Train on this machine: start servers and ranks, wait, and take them down again.

    Must be called from the main thread. A run's servers and ranks never outlive it.

    Parameters
    ----------
    config: a checked configuration, or nested values as in the TOML file.

    Raises
    ------
    ConfigError, RequestError, GraphError: before anything is started.
    ServerLost, RankLost, ClusterError: a server or rank ended; names it and says how.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RequestError("hopper.train: call it from the main thread: it handles signals")
    checked = config if isinstance(config, Config) else make_config(config)
    graph = PartitionedGraph.open(checked.data.partitioned)
    ranks = graph.book.servers * checked.cluster.ranks_per_server
    check_request(checked, graph.schema)
    make_model(checked, graph.schema)
    make_schedule(checked, graph, ranks)
    run_dir = _make_run_dir(checked)
    with _feature_servers(checked, graph.book.servers, run_dir) as servers:
        checked = _resolved(checked, run_dir, servers.addresses)
        write_text(run_dir / "config.json", checked.model_dump_json(indent=1))
        _run_ranks(run_dir / "config.json", ranks, servers)
    summary = json.loads((run_dir / SUMMARY_FILE).read_text())
    return RunResult(run_dir, summary)


def _make_run_dir(config: Config) -> Path:
    if config.train.run_dir:
        run_dir = Path(config.train.run_dir)
    else:
        moment = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        run_dir = Path("runs") / f"{moment}-{config.train.engine_name}-{os.getpid()}"
    if not config.train.resume:
        refuse_finished(run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    return run_dir.absolute()


def _resolved(config: Config, run_dir: Path, addresses: list[str]) -> Config:
    values = config.model_dump()
    values["train"]["run_dir"] = str(run_dir)
    values["cluster"]["servers"] = addresses
    values["data"]["partitioned"] = str(Path(config.data.partitioned).absolute())
    return Config.model_validate(values)


class _Servers:
    """The feature servers of a run; watched while ranks run."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], addresses: list[str]) -> None:
        self.processes = processes
        self.addresses = addresses
        self.lost: str | None = None

    def find_lost(self) -> str | None:
        """Say which server ended, if one did."""
        for index, process in enumerate(self.processes):
            code = process.poll()
            if code is not None:
                return (
                    f"feature server {index} (pid {process.pid}, {self.addresses[index]}) "
                    f"{_how_it_ended(code)}"
                )
        return None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """End the ranks as soon as a server ends: a signal to this process makes torchrun's agent
        take them down."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_POLL_SECONDS):
                self.lost = self.find_lost()
                if self.lost is not None:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        thread = threading.Thread(target=watch, name="server-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@contextmanager
def _feature_servers(config: Config, count: int, run_dir: Path) -> Iterator[_Servers]:
    """Start one feature server per partition, or use those that the configuration names."""
    if config.cluster.servers:
        yield _Servers([], list(config.cluster.servers))
        return
    folder = run_dir / "servers"
    folder.mkdir(exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for index in range(count):
            (folder / f"{index}.json").unlink(missing_ok=True)
            with (folder / f"{index}.log").open("ab") as log:
                processes.append(
                    subprocess.Popen(
                        [
                            *(sys.executable, "-m", "cache_server", config.data.partitioned),
                            *("--server", str(index), "--listen", "127.0.0.1:0"),
                            *("--port-file", str(folder / f"{index}.json"), "--die-with-parent"),
                        ],
                        stdout=log,
                        stderr=log,
                    )
                )
        limit = config.cluster.start_timeout_seconds
        deadline = time.monotonic() + limit
        addresses = [
            _await_address(process, folder, index, deadline, limit)
            for index, process in enumerate(processes)
        ]
        yield _Servers(processes, addresses)
    finally:
        _stop(processes)


def _await_address(
    process: subprocess.Popen[bytes], folder: Path, index: int, deadline: float, limit: float
) -> str:
    port_file = folder / f"{index}.json"
    while not port_file.exists():
        code = process.poll()
        if code is not None:
            said = (folder / f"{index}.log").read_text(errors="replace").strip()
            raise ServerLost(
                f"feature server {index} {_how_it_ended(code)} before it served: {said}"
            )
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"feature server {index}", "starting", limit)
        time.sleep(0.02)
    return str(json.loads(port_file.read_text())["address"])


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run_ranks(config_file: Path, ranks: int, servers: _Servers) -> None:
    """Run all ranks to their end under torchrun's agent.

    Raises
    ------
    ServerLost, RankLost, ClusterError: what ended first, and how.
    """
    environment = {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks)),
        # Ranks share cores: a thread that waits must not spin on one that another could use.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    environment = {name: os.environ.get(name, value) for name, value in environment.items()}
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=f"hopper-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=_POLL_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(config_file.parent / "torchrun")),
    )
    try:
        inherited = _environment(environment | {DIE_WITH_PARENT: "1"})
        with inherited, _signals_as_exceptions(), servers.watched():
            elastic_launch(launch, sys.executable)("-m", "hopper.train", str(config_file))
    except (ChildFailedError, SignalException) as error:
        lost = servers.lost or servers.find_lost()
        if lost is not None:
            raise ServerLost(f"{lost}; the ranks were ended") from error
        if isinstance(error, SignalException):
            raise ClusterError(
                f"ended by {error.sigval.name}; ranks and servers were ended"
            ) from error
        raise _explain(error) from error


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Raise on a signal to end, before torchrun's agent does so too; the caller's handlers return.

    torch installs its own when it starts the ranks, and leaves them there.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SignalException(f"process {os.getpid()} got a signal", signal.Signals(number))

    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {kind: signal.signal(kind, end) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set what ranks inherit, and put this process's own environment back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _explain(error: ChildFailedError) -> ClusterError:
    """The rank that failed first and why; the others fail only in consequence."""
    failures: dict[int, ProcessFailure] = error.failures
    killed = {
        rank: failure
        for rank, failure in failures.items()
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
    }
    # A rank that hung is killed too, by torchrun's agent: after the deadline of one that waited.
    waited = any(DeadlineExceeded.__name__ in _message(each) for each in failures.values())
    if killed and not waited:
        rank, failure = next(iter(sorted(killed.items())))
        return RankLost(
            f"rank {rank} (pid {failure.pid}) {_how_it_ended(failure.exitcode)}; "
            "the other ranks were ended"
        )
    rank, failure = error.get_first_failure()
    return ClusterError(f"rank {rank} (pid {failure.pid}) failed: {_message(failure)}")


def _message(failure: ProcessFailure) -> str:
    # torch declares a string; of a recorded exception it is a dictionary.
    recorded: Any = failure.message
    text = str(recorded["message"] if isinstance(recorded, dict) else recorded)
    return text.strip().splitlines()[-1] if text.strip() else "no message"


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
