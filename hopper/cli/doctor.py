"""``hopper doctor CONFIG.toml``: what is wrong with it, with this machine, and with its cluster."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopper.doctor import DEFAULT_LIMIT, STATES, Finding, State, examine, worst_of
from hopper.errors import RequestError
from hopper.whole_files import write_text

_STYLES: Final[dict[State, str]] = {"fine": "green", "warning": "yellow", "wrong": "bold red"}


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand; ``text`` says in the list of commands what it does."""
    parser = commands.add_parser(
        "doctor",
        help=text,
        description="Looks at a configuration, this machine and the feature servers that it names. "
        "Nothing is started, and nothing is written. Any key of the configuration can be "
        "overridden as --section.key VALUE. The exit code is 1 where anything is wrong.",
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument(
        "--checksums", action="store_true",
        help="read all files of the graph, and compare them with their checksums",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=float, default=DEFAULT_LIMIT, metavar="SECONDS",
        help="that all servers together have to answer in, and again to send rows in (default "
        f"{DEFAULT_LIMIT:g})",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings there")
    parser.set_defaults(run=_run, takes_overrides=True)


def _run(options: argparse.Namespace) -> int:
    if not 0 < options.limit < float("inf"):
        raise RequestError(f"--limit: expected seconds above 0, given {options.limit}")
    # What gRPC would print of servers that do not answer is among the findings.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    console = Console(highlight=False)
    with console.status("looking"):
        findings = list(
            examine(
                *(options.config, options.overrides),
                checksums=options.checksums,
                limit=options.limit,
            )
        )
    if options.json is not None:
        write_text(options.json, _as_json(findings))
    console.print(_table(findings))
    console.print(_summary(findings))
    return int(worst_of(findings) == "wrong")


def _as_json(findings: Sequence[Finding]) -> str:
    told = {"state": worst_of(findings), "findings": [asdict(each) for each in findings]}
    return json.dumps(told, indent=1) + "\n"


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(show_lines=True)
    table.add_column("looked at", overflow="fold", max_width=22)
    table.add_column("state", no_wrap=True)
    table.add_column("what was found, and what to do", overflow="fold")
    for each in findings:
        # As text, since what was found may look like rich's markup.
        told = Text(each.found)
        if each.advice:
            told.append("\nto do: ", style="bold").append(each.advice)
        table.add_row(Text(each.subject), Text(each.state, style=_STYLES[each.state]), told)
    return table


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(each.state for each in findings)
    return ", ".join(f"{counts[state]} {state}" for state in reversed(STATES))
