"""Every rank of a world as a copy of one process, so that what they import is imported once.

usage: forked_ranks.py PARENT SCRIPT WORLD FOLDER [ARGUMENT...], with the rest of torchrun's
environment; not a test by itself. PARENT is the process to end with. Rank r runs
``SCRIPT FOLDER/rank-r.json ARGUMENT...`` and prints into ``FOLDER/rank-r.log``. Writes the ranks'
exit codes into ``FOLDER/codes.json``.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

# What ranks import; nothing of it starts a thread.
import hopper.train.rank  # noqa: F401
from cache_server.parent import end_with_parent
from hopper.ops.selection import load_dgl


def start(script: Path, rank: int, folder: Path, arguments: list[str]) -> int:
    """Its process id."""
    launcher = os.getpid()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        end_with_parent(launcher)
        log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        sys.argv = [str(script), str(folder / f"rank-{rank}.json"), *arguments]
        sys.path[0] = str(script.parent)
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(parent: int, script: Path, world: int, folder: Path, arguments: list[str]) -> None:
    end_with_parent(parent)
    load_dgl()
    ranks = [start(script, rank, folder, arguments) for rank in range(world)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    (folder / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
