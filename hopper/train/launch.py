"""A whole run on one machine: feature servers, ranks, and the end of both.

The ranks are started and watched by torchrun's own agent. Whatever ends first is named, everything
else is taken down, and nothing is left behind.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException

from cache_server.events import events
from hopper.config import Config, read_config
from hopper.engines import Request
from hopper.errors import RequestError, RunEnded, ServerLost
from hopper.features import open_graph
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file
from hopper.partition import PartitionedGraph
from hopper.scratch import scratch_folder
from hopper.train.feature_servers import FeatureServers, Place, feature_servers
from hopper.train.rank_failures import explain
from hopper.train.rank_processes import (
    Machine,
    RanksFailed,
    run_ranks,
    signals_as_exceptions,
    told_signal,
)
from hopper.train.restarts import check_restarts, run_again_where_lost
from hopper.train.results import refuse_finished
from hopper.train.resume import will_resume
from hopper.train.run_checks import checks_of_graph, checks_without_graph
from hopper.train.run_files import CONFIG_FILE
from hopper.train.run_lock import lock_run_folder, make_run_folder
from hopper.train.run_result import RunResult
from hopper.train.security import absolute_files
from hopper.train.warm_cache import check_profile, made_for
from hopper.whole_files import remove_unfinished, write_text


def train(
    config: Config | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    restarts: int = 0,
) -> RunResult:
    """The work of :func:`hopper.train`, which documents parameters, result and errors."""
    require_main_thread("hopper.train")
    check_restarts(restarts)
    checked = read_config(config, overrides)
    events.set_format(checked.cluster.log_format, process="launcher")
    graph, run_dir = prepare(checked)
    with lock_run_folder(run_dir, "launcher"):
        run_again_where_lost(
            lambda own: run_on_this_machine(own, graph, run_dir, "hopper.train"),
            *(checked, run_dir, restarts),
        )
    return RunResult.open(run_dir)


def require_main_thread(function: str) -> None:
    """Refuse to start anything from another thread.

    Raises
    ------
    RequestError: names the function.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RequestError(f"{function}: call it from the main thread: it handles signals")


def run_on_this_machine(
    config: Config, graph: PartitionedGraph, run_dir: Path, module: str
) -> None:
    """Start feature servers and ranks here, wait for the ranks, and take the servers down.

    Parameters
    ----------
    config: checked. run_dir: of the run, where files of servers and ranks go.
    module: what each rank runs.

    Raises
    ------
    ServerLost, RankLost, ClusterError: what ended first, and how.
    """
    places = [Place()] * graph.book.servers
    try:
        with _ended_in_order(), feature_servers(config, run_dir, places) as servers:
            config_file = write_config(config, run_dir, servers.addresses)
            _run_ranks(config_file, ranks_of(config, graph), servers, config, module)
    finally:
        # Ranks that are ended while they write have no time to.
        remove_unfinished(run_dir)


def ranks_of(config: Config, graph: PartitionedGraph) -> int:
    """How many ranks a configuration asks for."""
    return graph.book.servers * config.cluster.ranks_per_server


def profile(config: Config) -> list[CacheProfile]:
    """Count visits and measure what missing rows cost, as a run of this configuration would before
    its first iteration; what is found is kept beside the partitions.

    Returns
    -------
    By rank.

    Raises
    ------
    As :func:`train`; RequestError also where neither rows of other servers nor records on disk are
    read.
    """
    graph = open_graph(config)
    check_profile(Request(config, graph))
    with scratch_folder("hopper-profile-") as folder:
        values = config.model_dump()
        values["train"] |= {"run_dir": str(folder), "resume": False}
        if not config.learnable.folder:
            # On the disk that training will use, whose penalties are measured.
            values["learnable"]["folder"] = config.train.run_dir or "runs"
        own = Config.model_validate(values)
        graph, run_dir = prepare(own)
        run_on_this_machine(own, graph, run_dir, "hopper.train.profile")
    key = made_for(Request(config, graph))
    return [
        load_profile(profile_file(graph.path, key, rank)) for rank in range(ranks_of(own, graph))
    ]


def prepare(config: Config) -> tuple[PartitionedGraph, Path]:
    """Check a run before anything is started, and make its folder.

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
    """Write what the ranks read: the configuration with its places made absolute."""
    path = run_dir / CONFIG_FILE
    write_text(path, _resolved(config, run_dir, addresses).model_dump_json(indent=1))
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


def _resolved(config: Config, run_dir: Path, addresses: list[str]) -> Config:
    values = config.model_dump()
    values["train"] |= {"run_dir": str(run_dir), "resume": will_resume(config, lambda _: None)}
    values["cluster"] |= absolute_files(config) | {"servers": addresses}
    if config.train.init_from:
        values["train"]["init_from"] = str(Path(config.train.init_from).absolute())
    values["data"]["partitioned"] = str(Path(config.data.partitioned).absolute())
    if config.data.verify == "full":
        # Everything has been, just now.
        values["data"]["verify"] = "off"
    return Config.model_validate(values)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Around all that a run starts: a signal to end takes it down before this process ends.

    Raises
    ------
    RunEnded: names the signal.
    """
    try:
        with signals_as_exceptions():
            yield
    except SignalException as error:
        raise RunEnded(
            f"ended by {told_signal(error).name}; ranks and servers were ended"
        ) from error


def _run_ranks(
    config_file: Path,
    ranks: int,
    servers: FeatureServers,
    config: Config,
    module: str,
) -> None:
    """Run all ranks to their end under torchrun's agent.

    Raises
    ------
    ServerLost, RankLost, ClusterError: what ended first, and how.
    SignalException: this process was told to end.
    """
    try:
        with signals_as_exceptions(), servers.watched():
            run_ranks(
                config_file,
                ranks,
                Machine(),
                module,
                end_limit=config.cluster.timeout_seconds,
                threads=config.train.threads,
            )
    except (RanksFailed, SignalException) as error:
        lost = servers.lost or servers.find_lost()
        if lost is not None:
            raise ServerLost(f"{lost}; the ranks were ended") from error
        if isinstance(error, SignalException):
            raise
        raise explain(error.failures) from error
