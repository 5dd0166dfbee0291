"""Every rank of many worlds as a copy of one process, so that what they import is imported once.

usage: forked_ranks.py PARENT; not a test by itself. PARENT is the process to end with. Every line
of the standard input is a world: {"script", "world": number of ranks, "folder", "arguments",
"environment": the rest of torchrun's}. Rank r runs ``script folder/rank-r.json arguments...`` and
prints into ``folder/rank-r.log``; the ranks' exit codes are written into ``folder/codes.json``.
Tells two lines for a world: the process group of its ranks, and then the exit code of their parent.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

from cache_server.parent import end_with_parent
from hopper.quick_imports import quick_imports

with quick_imports():
    # What ranks import; nothing of it starts a thread.
    import hopper.hetero.metatree
    import hopper.train.rank  # noqa: F401


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


def run(script: Path, world: int, folder: Path, arguments: list[str]) -> None:
    """All ranks of a world, to their end."""
    ranks = [start(script, rank, folder, arguments) for rank in range(world)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in ranks]
    (folder / "codes.json").write_text(json.dumps(codes))


def main(parent: int) -> None:
    end_with_parent(parent)
    server = os.getpid()
    for line in sys.stdin:
        asked = json.loads(line)
        process = os.fork()
        if not process:
            # A group of its own, to be ended as a whole.
            os.setsid()
            end_with_parent(server)
            os.environ |= asked["environment"]
            run(Path(asked["script"]), asked["world"], Path(asked["folder"]), asked["arguments"])
            os._exit(0)
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
