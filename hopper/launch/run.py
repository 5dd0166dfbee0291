"""A whole run on one machine: checks, servers and ranks, restarts, and the result."""

from __future__ import annotations

import datetime
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cache_server.events import events
from hopper.config import Config, read_config
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.features import open_graph
from hopper.files.scratch import scratch_folder
from hopper.files.whole_files import remove_unfinished, write_text
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.restarts import check_restarts, run_again_where_lost
from hopper.launch.supervisor import MeetingPoint, Place, Supervisor
from hopper.partition import PartitionedGraph
from hopper.process.signal_handlers import EndSignals
from hopper.train.checkpoint_files import will_resume
from hopper.train.results import refuse_finished
from hopper.train.run_checks import checks_of_graph, checks_without_graph
from hopper.train.run_files import CONFIG_FILE
from hopper.train.run_lock import lock_run_folder, make_run_folder
from hopper.train.run_result import RunResult
from hopper.train.security import absolute_files
from hopper.train.warm_cache import check_profile, profile_key

_FOLDERS: Final = (
    ("data", "partitioned"),
    ("learnable", "folder"),
    ("learnable", "initial"),
    ("train", "checkpoint_copy"),
    ("train", "init_from"),
    ("train", "replay"),
)
"""The keys of folders that ranks read or write, which may run in another directory."""


def train(
    config: Config | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    restarts: int = 0,
) -> RunResult:
    """Train, as :func:`hopper.train` documents."""
    require_main_thread("hopper.train")
    check_restarts(restarts)
    checked = read_config(config, overrides)
    events.set_format(checked.cluster.log_format, process="launcher")
    graph, run_dir = prepare(checked)
    with lock_run_folder(run_dir, "launcher"):
        run_again_where_lost(
            lambda attempt: run_on_this_machine(attempt, graph, run_dir, "hopper.train"),
            *(checked, run_dir, restarts),
        )
    return RunResult.open(run_dir)


def require_main_thread(function: str) -> None:
    """Refuse a call from any thread but the main one.

    Raises
    ------
    RequestError: names the function.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RequestError(f"{function}: call it from the main thread: it handles signals")


def run_on_this_machine(
    config: Config, graph: PartitionedGraph, run_dir: Path, module: str
) -> None:
    """Start feature servers and ranks here, wait for the ranks, and end the servers.

    Parameters
    ----------
    config: a configuration that has passed all checks.
    run_dir: the folder for the files of servers and ranks.
    module: the Python module that each rank runs.

    Raises
    ------
    ServerLost, RankLost, ClusterError: says which process ended first, and how.
    RunEnded: a signal told this process to end.
    """
    places = [Place(server) for server in range(graph.book.servers)]
    given = list(config.cluster.servers)
    try:
        with (
            EndSignals() as signals,
            MeetingPoint("127.0.0.1") as meeting,
            Supervisor(config, run_dir, places, ranks_of(config, graph)) as supervisor,
        ):
            supervisor.start(module, meeting.address, serve=not given)
            addresses = given or supervisor.await_servers(signals.check)
            write_config(config, run_dir, addresses)
            supervisor.release()
            supervisor.await_ranks(signals.check)
    except RanksFailed as error:
        raise explain(error.failures) from error
    finally:
        # A rank that is ended while it writes cannot remove its unfinished files.
        remove_unfinished(run_dir)


def ranks_of(config: Config, graph: PartitionedGraph) -> int:
    """Return the number of ranks that a configuration asks for."""
    return graph.book.servers * config.cluster.ranks_per_server


def profile(config: Config) -> list[CacheProfile]:
    """Count visits and measure the cost of missing rows, as a run does before its first iteration.

    The profiles are saved beside the partitions.

    Returns
    -------
    The profile of each rank.

    Raises
    ------
    RequestError: the run reads neither rows of other servers nor records on disk. Other errors are
        those of :func:`train`.
    """
    graph = open_graph(config)
    check_profile(Request(config, graph))
    key = profile_key(Request(config, graph))
    _require_writable(profile_file(graph.path, key, 0).parent)
    with scratch_folder("hopper-profile-") as folder:
        values = config.model_dump()
        values["train"] |= {"run_dir": str(folder), "resume": False}
        if not config.learnable.folder:
            # Penalties are measured on the disk that training will use.
            values["learnable"]["folder"] = config.train.run_dir or "runs"
        profile_config = Config.model_validate(values)
        graph, run_dir = prepare(profile_config)
        run_on_this_machine(profile_config, graph, run_dir, "hopper.train.profile")
    ranks = ranks_of(profile_config, graph)
    return [load_profile(profile_file(graph.path, key, rank)) for rank in range(ranks)]


def _require_writable(folder: Path) -> None:
    """Refuse a folder that profiles cannot be saved in.

    Raises
    ------
    RequestError: names the folder and the reason.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(
            f"{folder}: profiles cannot be written there: {error.strerror}"
        ) from error


def prepare(config: Config) -> tuple[PartitionedGraph, Path]:
    """Check a run before any process starts, and make its folder.

    Returns
    -------
    The graph, and the folder as an absolute path.

    Raises
    ------
    ConfigError, RequestError, GraphError: names what is wrong.
    """
    for check in checks_without_graph(config):
        check.run()
    graph = open_graph(config)
    for check in checks_of_graph(Request(config, graph), range(graph.book.servers)):
        check.run()
    return graph, _make_run_dir(config)


def write_config(config: Config, run_dir: Path, addresses: list[str]) -> Path:
    """Write the configuration file that the ranks read, with absolute paths.

    Parameters
    ----------
    addresses: "host:port" of each feature server.

    Returns
    -------
    The file.
    """
    path = run_dir / CONFIG_FILE
    write_text(path, _resolve(config, run_dir, addresses).model_dump_json(indent=1))
    return path


def _make_run_dir(config: Config) -> Path:
    if config.train.run_dir:
        run_dir = Path(config.train.run_dir)
    else:
        moment = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        run_dir = Path("runs") / f"{moment}-{config.train.engine}-{os.getpid()}"
    make_run_folder(run_dir)
    if not will_resume(config):
        refuse_finished(run_dir)
    return run_dir.absolute()


def _resolve(config: Config, run_dir: Path, addresses: list[str]) -> Config:
    """Replace relative paths, "auto" for resuming and the servers' addresses by final values."""
    values = config.model_dump()
    values["train"] |= {"run_dir": str(run_dir), "resume": will_resume(config, lambda _: None)}
    values["cluster"] |= absolute_files(config) | {"servers": addresses}
    for section, key in _FOLDERS:
        folder = values[section][key]
        if folder and "://" not in folder:
            values[section][key] = str(Path(folder).absolute())
    if config.data.verify == "full":
        # The launcher has just verified all files.
        values["data"]["verify"] = "off"
    return Config.model_validate(values)
