"""Restarting a run that lost a rank or a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cache_server.events import events
from hopper.config import Config, change_config
from hopper.errors import ClusterError, RankFailed, RequestError, RunEnded
from hopper.train.checkpoint_files import CheckpointFiles, will_resume
from hopper.train.rank_process import LOGS_FOLDER
from hopper.train.run_metrics import RESTARTS


def run_again_where_lost(
    run: Callable[[Config], None], config: Config, run_dir: Path, restarts: int
) -> None:
    """Run, and restart a run that ends early, from its newest checkpoint or from the beginning.

    Errors that a restart would meet again are raised at once: a signal to end, and a wrong
    configuration or graph.

    Parameters
    ----------
    run: starts all processes for a configuration, waits for them, and ends them.
    config: the configuration of the first start.
    run_dir: the folder of the run.
    restarts: the maximum number of restarts.

    Raises
    ------
    ClusterError: the last start ended early too.
    """
    files = CheckpointFiles(run_dir)
    before = _stamps(files)
    for number in range(restarts + 1):
        try:
            with set_environment({RESTARTS: str(number)}):
                run(config)
        except ClusterError as error:
            if number == restarts or _would_recur(error):
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
        else:
            return


def check_restarts(restarts: int) -> None:
    """Refuse a negative number of restarts.

    Raises
    ------
    RequestError: names the option.
    """
    if restarts < 0:
        raise RequestError(f"--restarts: expected 0 or more, given {restarts}")


def _would_recur(error: ClusterError) -> bool:
    """Return whether a restart would end with the same error."""
    return isinstance(error, RunEnded) or (
        isinstance(error, RankFailed) and error.is_of_the_request
    )


def _tell_how_to_resume(error: ClusterError, files: CheckpointFiles, run_dir: Path) -> None:
    """Add a note to an error: how to go on, and where the output of ranks is."""
    newest = files.newest
    if isinstance(error, RankFailed) and error.is_of_the_request:
        return
    if newest is not None:
        how = f"to go on from {newest.stem}, add --train.run_dir {run_dir} --train.resume true"
    elif isinstance(error, RunEnded):
        return
    else:
        how = "no checkpoint was written; train.checkpoint_every asks for them"
    error.add_note(f"{how}; output of ranks: {run_dir / LOGS_FOLDER}")


def _stamps(files: CheckpointFiles) -> dict[str, int]:
    """Return the times at which the checkpoints were written, by step."""
    return {str(step): files.model(step).stat().st_mtime_ns for step in files.steps}


@contextmanager
def set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the context lasts, for processes that it starts."""
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
