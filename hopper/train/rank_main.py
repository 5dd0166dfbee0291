"""One rank as a process: what it runs, how it tells of an error, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from cache_server.events import events
from hopper.config import Config, load_config
from hopper.errors import HopperError, StorageError, explain_os_error
from hopper.train.rank import run_rank
from hopper.train.rank_failures import record_failure


def main(
    arguments: list[str],
    work: Callable[[Config], None] = run_rank,
    module: str = "hopper.train",
) -> int:
    """Run this process's rank to its end; 0 if it did its work, 1 on an error, 2 on misuse.

    Parameters
    ----------
    module: that torchrun was given.
    """
    if not arguments or arguments[0].startswith("-"):
        usage = f"usage: torchrun ... -m {module} CONFIG [--section.key VALUE ...]"
        print(usage, file=sys.stderr)
        return 2
    get_error_handler().initialize()
    try:
        config = load_config(arguments[0], arguments[1:])
        events.set_format(config.cluster.log_format, process="rank", rank=_rank())
        work(config)
    except Exception as error:
        told = _explain(error)
        record_failure(told)
        if isinstance(told, HopperError):
            events.fail("error", f"rank {_rank()}: error: {told}")
        else:
            traceback.print_exc()
        return 1
    return 0


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def _explain(error: Exception) -> Exception:
    """The error, or, where the system refused a file, one that says so in a line."""
    told = explain_os_error(error, "train.run_dir") if isinstance(error, OSError) else None
    return error if told is None else StorageError(told)


def run(work: Callable[[Config], None] = run_rank, module: str = "hopper.train") -> None:
    """:func:`main`, and the process's end."""
    # A failed rank must not wait at exit for others that hang or are gone: leave at once.
    code = main(sys.argv[1:], work, module)
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)
