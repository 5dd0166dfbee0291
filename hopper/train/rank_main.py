"""One rank as a process: how it runs, reports an error and ends."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cache_server.events import events
from hopper.config import Config, load_config
from hopper.errors import StorageError, explain_os_error
from hopper.process.override_words import split_overrides
from hopper.train.rank import run_rank
from hopper.train.rank_failures import tell_failure
from hopper.train.rank_output import output


def main(
    arguments: list[str],
    work: Callable[[Config], None] = run_rank,
    module: str = "hopper.train",
) -> int:
    """Run this process's rank to its end.

    Parameters
    ----------
    arguments: the configuration file and overrides, in any order.
    work: the work of the rank.
    module: the module that this process runs.

    Returns
    -------
    The exit code: 0 on success, 1 on an error, 2 on wrong usage.
    """
    files, overrides = split_overrides(arguments)
    if len(files) != 1 or files[0].startswith("-"):
        usage = f"usage: torchrun ... -m {module} CONFIG [--section.key VALUE ...]"
        print(usage, file=sys.stderr)
        return 2
    faulthandler.enable()
    try:
        config = load_config(files[0], overrides)
        rank = int(os.environ.get("RANK", 0))
        events.set_format(config.cluster.log_format, process="rank", rank=rank)
        if config.train.run_dir:
            output.keep(Path(config.train.run_dir), rank)
        work(config)
    except Exception as error:
        tell_failure(_explain(error))
        return 1
    return 0


def _explain(error: Exception) -> Exception:
    """Turn an error of the file system into one with a clear line; return others unchanged."""
    text = explain_os_error(error, "train.run_dir") if isinstance(error, OSError) else None
    return error if text is None else StorageError(text)


def run(work: Callable[[Config], None] = run_rank, module: str = "hopper.train") -> None:
    """Run :func:`main` and, on an error, end the process. ``ps`` shows "hopper rank N" for it."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"hopper rank {os.environ.get('RANK', 0)}")
    # A failed rank leaves at once: at a normal exit it would wait for ranks that hang or are gone.
    code = main(sys.argv[1:], work, module)
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)
