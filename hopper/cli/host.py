"""``hopper host CONFIG.toml --server I --meet HOST:PORT``: one machine's part of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from hopper.cli.options import CommandParser, whole
from hopper.process.quick_imports import quick_imports


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Start a feature server and its ranks on this machine, and wait for the ranks. "
        "Whatever ends first ends the others. cluster.servers has the addresses of all servers of "
        "the run, in order. Any key can be overridden as --section.key VALUE."
    )
    parser.option(
        "--server I",
        "number of the server that runs here, from 0; may be given several times",
        type=whole,
        action="append",
        required=True,
    )
    parser.option(
        "--meet HOST:PORT", "where ranks meet; the machine of server 0 listens there", default=""
    )
    parser.option(
        "--listen ADDRESS",
        "address that the server listens on, at the port that cluster.servers says (default all)",
        default="0.0.0.0",  # noqa: S104 - refused without certificates or cluster.insecure
    )
    parser.option("--driven ADDRESS", argparse.SUPPRESS, default="")
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import read_config
    from hopper.launch.processes import forked_ahead

    if options.driven:
        with quick_imports():
            from hopper.launch.host import follow_launcher
        return follow_launcher(Path(options.config), options.server[0], options.driven)
    config = read_config(options.config, options.overrides)
    with forked_ahead(config, len(options.server)):
        with quick_imports():
            from hopper.launch.host import run_host
        run_host(config, options.server, options.meet, options.listen)
    return 0
