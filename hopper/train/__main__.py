"""One rank: ``torchrun ... -m hopper.train CONFIG [--section.key VALUE ...]``."""

from __future__ import annotations

import os
import sys
import traceback

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from cache_server.parent import end_with_parent
from hopper.config import load_config
from hopper.errors import HopperError
from hopper.train.rank import run_rank
from hopper.train.rank_processes import DIE_WITH_PARENT

USAGE = "usage: torchrun ... -m hopper.train CONFIG.toml [--section.key VALUE ...]"


def main(arguments: list[str]) -> int:
    """Run this process's rank to its end; 0 if it trained, 1 on an error, 2 on misuse."""
    if not arguments or arguments[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    if os.environ.get(DIE_WITH_PARENT):
        end_with_parent()
    handler = get_error_handler()
    handler.initialize()
    try:
        run_rank(load_config(arguments[0], arguments[1:]))
    except HopperError as error:
        handler.record_exception(error)
        print(f"rank {os.environ.get('RANK', '0')}: error: {error}", file=sys.stderr, flush=True)
        return 1
    except Exception as error:
        handler.record_exception(error)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    # A failed rank must not wait at exit for others that hang or are gone: leave at once.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)
