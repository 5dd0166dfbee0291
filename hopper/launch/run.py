"""A whole run on one machine: checks, servers and ranks, restarts, and the result."""

from __future__ import annotations

import datetime
import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from cache_server.events import events
from hopper.cluster.security import absolute_files
from hopper.config import Config, change_config, read_config
from hopper.engines import Request
from hopper.errors import ClusterError, RankFailed, RequestError, RunEnded
from hopper.features import open_graph
from hopper.files.scratch import scratch_folder
from hopper.files.whole_files import remove_unfinished, write_text
from hopper.hetero.cache_profile import profile_file
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.supervisor import Place, Supervisor, hold_store
from hopper.partition import PartitionedGraph
from hopper.process.signal_handlers import recorded_signals
from hopper.train.checkpoint_files import CheckpointFiles, will_resume
from hopper.train.rank_process import LOGS_FOLDER
from hopper.train.results import SUMMARY_FILE, refuse_finished
from hopper.train.run_checks import checks_of_graph, checks_without_graph
from hopper.train.run_files import CONFIG_FILE
from hopper.train.run_lock import lock_run_folder, make_run_folder
from hopper.train.run_metrics import RESTARTS
from hopper.train.run_result import RunResult
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
_RANKS: Final = "hopper.train"


def train(
    config: Config | Mapping[str, Any] | str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    restarts: int = 0,
) -> RunResult:
    """Train, as :func:`hopper.train` documents."""
    checked = read_config(config, overrides)
    return train_with(partial(run_on_this_machine, module=_RANKS), checked, restarts, _RANKS)


def train_with(
    run: Callable[[Config, PartitionedGraph, Path], None],
    config: Config,
    restarts: int,
    command: str,
) -> RunResult:
    """Check a run and make its folder, then train until it is finished.

    Parameters
    ----------
    run: starts all processes for a configuration, waits for them, and ends them.
    restarts: how many times a run that lost a rank, server or machine is started again.
    command: what asks for the run, for errors.
    """
    require_main_thread(command)
    if restarts < 0:
        raise RequestError(f"--restarts: expected 0 or more, given {restarts}")
    events.set_format(config.cluster.log_format, process="launcher")
    graph, run_dir = prepare(config)
    with lock_run_folder(run_dir, "launcher"):
        _run_again_where_lost(
            lambda attempt: run(attempt, graph, run_dir), config, run_dir, restarts
        )
    # A script of the user's own may leave no summary.
    if config.train.script and not (run_dir / SUMMARY_FILE).exists():
        return RunResult(run_dir, _NoSummary())
    return RunResult.open(run_dir)


class _NoSummary(dict[str, Any]):
    """Stands for the summary of a script that has written none."""

    def __missing__(self, key: str) -> Any:
        raise RequestError(f"{key}: a train.script leaves no {SUMMARY_FILE} unless it writes one")


def require_main_thread(function: str) -> None:
    """Refuse a call from any thread but the main one; the error names the function."""
    if threading.current_thread() is not threading.main_thread():
        raise RequestError(f"{function}: call it from the main thread: it handles signals")


def run_on_this_machine(
    config: Config, graph: PartitionedGraph, run_dir: Path, module: str
) -> None:
    """Start feature servers and ranks here, wait for the ranks, and end the servers.

    A ClusterError says which process ended first, and how, or which signal came.

    Parameters
    ----------
    config: a configuration that has passed all checks.
    module: the Python module that each rank runs.
    """
    places = [Place(server) for server in range(graph.book.servers)]
    world, given = Request(config, graph).ranks, list(config.cluster.servers)
    try:
        with (
            recorded_signals() as check,
            hold_store("127.0.0.1") as meeting,
            Supervisor(config, run_dir, places, world) as supervisor,
        ):
            write_config(config, run_dir, given or supervisor.start_servers(check))
            supervisor.start_ranks(module, meeting)
            supervisor.await_ranks(check)
    except RanksFailed as error:
        raise explain(error.failures) from error
    finally:
        # A rank that is ended while it writes cannot remove its unfinished files.
        remove_unfinished(run_dir)


def _run_again_where_lost(
    run: Callable[[Config], None], config: Config, run_dir: Path, restarts: int
) -> None:
    """Run, and restart a run that ends early, from its newest checkpoint or from the beginning.

    Errors that a restart would meet again are raised at once: a signal to end, and a wrong
    configuration or graph. So is the error of the last start.
    """
    files = CheckpointFiles(run_dir)
    before = _stamps(files)
    try:
        for number in range(restarts + 1):
            os.environ[RESTARTS] = str(number)
            try:
                return run(config)
            except ClusterError as error:
                of_the_request = isinstance(error, RankFailed) and error.is_of_the_request
                if number == restarts or isinstance(error, RunEnded) or of_the_request:
                    if not of_the_request and not config.train.script:
                        _tell_how_to_resume(error, files, run_dir)
                    raise
                # Do not continue from checkpoints of an earlier run that this one replaces.
                goes_on = bool(config.train.resume) or _stamps(files) != before
                resume = "auto" if goes_on else False
                config = change_config(config, train={"resume": resume, "run_dir": str(run_dir)})
                newest = files.newest if will_resume(config) else None
                where = "the beginning" if newest is None else newest.name
                text = f"{error}; restart {number + 1} of {restarts}, from {where}"
                events.warn("restart", text, restart=number + 1, of=restarts)
    finally:
        os.environ.pop(RESTARTS, None)


def _tell_how_to_resume(error: ClusterError, files: CheckpointFiles, run_dir: Path) -> None:
    """Add a note to an error: how to go on, and where the output of ranks is."""
    newest = files.newest
    if newest is not None:
        how = f"to go on from {newest.stem}, add --train.run_dir {run_dir} --train.resume true"
    elif isinstance(error, RunEnded):
        return
    else:
        how = "no checkpoint was written; train.checkpoint_every asks for them"
    error.add_note(f"{how}; output of ranks: {run_dir / LOGS_FOLDER}")


def _stamps(files: CheckpointFiles) -> dict[str, int]:
    return {str(step): files.model(step).stat().st_mtime_ns for step in files.steps}


def profile(config: Config) -> None:
    """Count visits and measure the cost of missing rows, as a run does before its first iteration.

    The profiles of all ranks are saved beside the partitions.

    Raises
    ------
    RequestError: the run reads neither rows of other servers nor records on disk. Other errors are
        those of :func:`train`.
    """
    graph = open_graph(config)
    request = Request(config, graph)
    check_profile(request)
    profiles = profile_file(graph.path, profile_key(request), 0).parent
    try:
        profiles.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=profiles):
            pass
    except OSError as error:
        text = f"{profiles}: profiles cannot be written there: {error.strerror}"
        raise RequestError(text) from error
    with scratch_folder("hopper-profile-") as folder:
        # Penalties are measured on the disk that training will use.
        disk = config.learnable.folder or config.train.run_dir or "runs"
        changes = {"run_dir": str(folder), "resume": False}
        config = change_config(config, train=changes, learnable={"folder": disk})
        graph, run_dir = prepare(config)
        run_on_this_machine(config, graph, run_dir, "hopper.train.profile")


def prepare(config: Config) -> tuple[PartitionedGraph, Path]:
    """Check a run before any process starts, and make its folder; return the graph, and the folder
    as an absolute path. A ConfigError, RequestError or GraphError names what is wrong."""
    for check in checks_without_graph(config):
        check.run()
    graph = open_graph(config)
    for check in checks_of_graph(Request(config, graph), range(graph.book.servers)):
        check.run()
    moment = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    default = f"runs/{moment}-{config.train.engine}-{os.getpid()}"
    run_dir = Path(config.train.run_dir or default)
    make_run_folder(run_dir)
    if not will_resume(config):
        refuse_finished(run_dir)
    return graph, run_dir.absolute()


def write_config(config: Config, run_dir: Path, addresses: list[str]) -> Path:
    """Write the configuration file that ranks read, and return it.

    Relative paths, "auto" for resuming and the servers' addresses are replaced by final values.
    """
    values = config.model_dump()
    values["train"] |= {"run_dir": str(run_dir), "resume": will_resume(config, lambda _: None)}
    values["cluster"] |= absolute_files(config) | {"servers": addresses}
    for section, key in _FOLDERS:
        folder = values[section][key]
        if folder and "://" not in folder:
            values[section][key] = str(Path(folder).absolute())
    if config.train.script:
        script, *words = shlex.split(config.train.script)
        values["train"]["script"] = shlex.join([str(Path(script).absolute()), *words])
    if config.data.verify == "full":
        # The launcher has just verified all files.
        values["data"]["verify"] = "off"
    path = run_dir / CONFIG_FILE
    write_text(path, Config.model_validate(values).model_dump_json(indent=1))
    return path
