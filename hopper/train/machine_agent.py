"""``python -m hopper.train.machine_agent GIVEN ...``: runs one machine's ranks under torchrun.

It writes its ranks' failures to a file. The process that sees all machines reads these files and
finds out which failure came first.
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
from hopper.train.parent import follow_parent
from hopper.train.rank_failures import Failure
from hopper.train.rank_processes import (
    Machine,
    RanksFailed,
    ending_signal,
    run_ranks,
    signals_as_exceptions,
)
from hopper.whole_files import write_text


def main(arguments: Sequence[str]) -> int:
    """Run the machine's ranks; return 0 if all of them ended well, and 1 otherwise."""
    parser = argparse.ArgumentParser(prog="machine_agent")
    parser.add_argument("given", type=Path, help="what ranks are given")
    parser.add_argument("--module", required=True, help="what a rank runs")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--machine", type=int, required=True)
    parser.add_argument("--machines", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--end-limit", type=float, required=True)
    parser.add_argument("--failures", type=Path, required=True)
    options = parser.parse_args(arguments)
    machine = Machine(options.machine, options.machines, options.endpoint)
    try:
        with signals_as_exceptions():
            run_ranks(
                *(options.given, options.ranks, machine, options.module),
                end_limit=options.end_limit,
            )
        return 0
    except RanksFailed as error:
        write_text(options.failures, json.dumps([asdict(failure) for failure in error.failures]))
    except DeadlineExceeded as error:
        print(f"error: {error}", file=sys.stderr)
    except SignalException as error:
        print(f"ended by {ending_signal(error).name}", file=sys.stderr)
    return 1


def agent_words(
    given: Path, module: str, ranks: int, machine: Machine, end_limit: float, failures: Path
) -> list[str]:
    """Return the command that starts a machine's agent.

    Parameters
    ----------
    given, module, ranks, machine, end_limit: the arguments of :func:`run_ranks`.
    failures: the file for the ranks' failures, which :func:`read_failures` reads.
    """
    return [
        # -P keeps modules in the current folder from being imported.
        *(sys.executable, "-P", "-m", "hopper.train.machine_agent", str(given)),
        *(f"--module={module}", "--ranks", str(ranks)),
        *("--machine", str(machine.index), "--machines", str(machine.count)),
        *("--endpoint", machine.endpoint, "--end-limit", str(end_limit)),
        *("--failures", str(failures)),
    ]


def read_failures(path: Path) -> list[Failure]:
    """Return the failures that an agent wrote; empty if all ranks ended well or it could not
    write."""
    if not path.exists():
        return []
    return [Failure(**facts) for facts in json.loads(path.read_text())]


if __name__ == "__main__":
    follow_parent()
    # A signal may have ended torchrun's agent at any point, so do not wait for its threads.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
