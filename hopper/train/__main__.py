"""One rank: ``torchrun ... -m hopper.train CONFIG [--section.key VALUE ...]``."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from cache_server.parent import end_with_parent
from hopper.config import Config, load_config
from hopper.errors import HopperError
from hopper.train.rank import run_rank
from hopper.train.rank_processes import DIE_WITH_PARENT

USAGE = "usage: torchrun ... -m hopper.train CONFIG.toml [--section.key VALUE ...]"


def main(arguments: list[str], work: Callable[[Config], None] = run_rank) -> int:
    """Run this process's rank to its end; 0 if it did its work, 1 on an error, 2 on misuse."""
    if not arguments or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    if os.environ.get(DIE_WITH_PARENT):
        end_with_parent()
    handler = get_error_handler()
    handler.initialize()
    try:
        work(load_config(arguments[0], arguments[1:]))
    except HopperError as error:
        handler.record_exception(error)
        print(f"rank {os.environ.get('RANK', '0')}: error: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        handler.record_exception(error)
        traceback.print_exc()
        return 1
    return 0


def run(work: Callable[[Config], None] = run_rank) -> None:
    """:func:`main`, and the process's end."""
    # A failed rank must not wait at exit for others that hang or are gone: leave at once.
    code = main(sys.argv[1:], work)
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)


if __name__ == "__main__":
    run()
