"""``hopper doctor CONFIG.toml``: check a configuration, this machine and its cluster."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hopper.cli.options import CommandParser, print_json
from hopper.doctor import DEFAULT_LIMIT, STATES, Finding, State, examine, worst_of
from hopper.errors import RequestError

_STYLES: Final[dict[State, str]] = {"fine": "green", "warning": "yellow", "wrong": "bold red"}


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Check a configuration, this machine and the feature servers that it names. "
        "The command starts nothing and changes nothing. Any key of the configuration can be "
        "overridden as --section.key VALUE. The exit code is 1 if anything is wrong."
    )
    parser.allow_abbrev = False
    parser.option(
        "--checksums", "read all files of the graph and compare them with their checksums"
    )
    parser.option(
        "--limit SECONDS",
        "time for all servers to answer, and again for them to send rows (default "
        f"{DEFAULT_LIMIT:g})",
        type=float,
        default=DEFAULT_LIMIT,
    )
    parser.option("--json", "print JSON instead of a table")
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    if not 0 < options.limit < float("inf"):
        raise RequestError(f"--limit: expected seconds above 0, given {options.limit}")
    # The findings have what gRPC would print about servers that do not answer.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    console = Console(highlight=False, stderr=options.json)
    with console.status("looking"):
        findings = list(
            examine(
                options.config,
                options.overrides,
                checksums=options.checksums,
                limit=options.limit,
            )
        )
    state = worst_of(findings)
    if options.json:
        print_json({"state": state, "findings": [asdict(finding) for finding in findings]})
    else:
        console.print(_table(findings))
        counts = Counter(finding.state for finding in findings)
        console.print(", ".join(f"{counts[state]} {state}" for state in reversed(STATES)))
    return int(state == "wrong")


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(show_lines=True)
    table.add_column("looked at", overflow="fold", max_width=22)
    table.add_column("state", no_wrap=True)
    table.add_column("what was found, and what to do", overflow="fold")
    for finding in findings:
        # A plain text, since a finding may look like rich's markup.
        cell = Text(finding.found)
        if finding.advice:
            cell.append("\nto do: ", style="bold").append(finding.advice)
        state = Text(finding.state, style=_STYLES[finding.state])
        table.add_row(Text(finding.subject), state, cell)
    return table
