"""``python -m hopper.bench.emulate.agent FOLDER ...``: one host's ranks under torchrun's agent.

Runs inside the host; its ranks train the runs that are ordered in the folder
(:mod:`hopper.bench.emulate.waiting_rank`). How ranks failed goes to a file, for the process that
sees all hosts to judge which failure came first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException

from hopper.errors import DeadlineExceeded
from hopper.train.rank_failures import Failure
from hopper.train.rank_processes import (
    Machine,
    RanksFailed,
    run_ranks,
    signals_as_exceptions,
    told_signal,
)
from hopper.whole_files import write_text


def main(arguments: Sequence[str]) -> int:
    """Run the ranks until they are ended; always 1, since they end of themselves by errors only."""
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--end-limit", type=float, required=True)
    parser.add_argument("--failures", type=Path, required=True)
    options = parser.parse_args(arguments)
    machine = Machine(options.host, options.hosts, options.endpoint)
    try:
        with signals_as_exceptions():
            run_ranks(
                *(options.folder, options.ranks, machine, "hopper.bench.emulate.waiting_rank"),
                end_limit=options.end_limit,
            )
    except RanksFailed as error:
        write_text(options.failures, json.dumps([asdict(each) for each in error.failures]))
    except DeadlineExceeded as error:
        print(f"error: {error}", file=sys.stderr)
    except SignalException as error:
        print(f"ended by {told_signal(error).name}", file=sys.stderr)
    return 1


def read_failures(path: Path) -> list[Failure]:
    """What an agent wrote of its ranks; none where they ended well or it could not write."""
    if not path.exists():
        return []
    return [Failure(**each) for each in json.loads(path.read_text())]


if __name__ == "__main__":
    # A signal may have ended torchrun's agent anywhere: its threads are not waited for.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
