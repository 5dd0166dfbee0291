"""``python -m hopper.bench.emulate.agent CONFIG ...``: one host's ranks under torchrun's agent.

Runs inside the host. How ranks failed goes to a file, for the process that sees all hosts to judge
which failure came first.
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

from hopper.config import load_config
from hopper.errors import DeadlineExceeded
from hopper.train.rank_failures import Failure
from hopper.train.rank_processes import (
    Machine,
    RanksFailed,
    run_ranks,
    signals_as_exceptions,
    told_signal,
)
from hopper.train.results import write_text


def main(arguments: Sequence[str]) -> int:
    """Run the ranks; 0 if all ended well, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="agent")
    parser.add_argument("config", type=Path)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--failures", type=Path, required=True)
    options = parser.parse_args(arguments)
    machine = Machine(options.host, options.hosts, options.endpoint)
    try:
        with signals_as_exceptions():
            limit = load_config(options.config).cluster.timeout_seconds
            run_ranks(options.config, options.ranks, machine, end_limit=limit)
    except RanksFailed as error:
        write_text(options.failures, json.dumps([asdict(each) for each in error.failures]))
        return 1
    except DeadlineExceeded as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except SignalException as error:
        print(f"ended by {told_signal(error).name}", file=sys.stderr)
        return 1
    return 0


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
