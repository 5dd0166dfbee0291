"""``hopper doctor CONFIG.toml``: check a configuration, this machine and its cluster."""

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
from hopper.files.whole_files import write_text

_STYLES: Final[dict[State, str]] = {"fine": "green", "warning": "yellow", "wrong": "bold red"}


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser(
        "doctor",
        help=text,
        description="Check a configuration, this machine and the feature servers that it names. "
        "The command starts nothing and changes nothing. Any key of the configuration can be "
        "overridden as --section.key VALUE. The exit code is 1 if anything is wrong.",
        allow_abbrev=False,
    )
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
    parser.option("--json FILE", "also write the findings as JSON", type=Path)
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    if not 0 < options.limit < float("inf"):
        raise RequestError(f"--limit: expected seconds above 0, given {options.limit}")
    # The findings have what gRPC would print about servers that do not answer.
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
    report = {"state": worst_of(findings), "findings": [asdict(finding) for finding in findings]}
    return json.dumps(report, indent=1) + "\n"


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


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.state for finding in findings)
    return ", ".join(f"{counts[state]} {state}" for state in reversed(STATES))
