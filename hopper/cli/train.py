"""``hopper train CONFIG.toml [--section.key VALUE ...]``: train here, or on several machines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hopper.cli.numbers import whole
from hopper.process.quick_imports import quick_imports


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser(
        "train",
        help=text,
        description="Any key of the configuration can be overridden as --section.key VALUE.",
    )
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument(
        "--on",
        default="",
        metavar="WHERE",
        help="train on several machines: ssh:HOSTFILE, with a line HOST[:PORT] [slots=RANKS] "
        "[address=ADDRESS] for each partition; ray (a cluster on this machine for the time of the "
        "run) or ray:HOST:PORT (default: on this machine)",
    )
    add_restarts(parser)
    ssh = parser.add_argument_group("machines of a hostfile")
    ssh.add_argument(
        "--ssh", default="ssh", metavar="COMMAND", help="OpenSSH's client and its options"
    )
    ssh.add_argument(
        "--python",
        default=sys.executable,
        metavar="FILE",
        help="the interpreter that Hopper is installed for (default: this one)",
    )
    ssh.add_argument(
        "--folder", default="", metavar="DIR", help="working folder there (default: this one)"
    )
    ssh.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass on an environment variable; may be given several times",
    )
    parser.set_defaults(run=_run, takes_overrides=True)


def add_restarts(parser: argparse.ArgumentParser) -> None:
    """Add ``--restarts``."""
    parser.add_argument(
        "--restarts",
        type=whole,
        default=0,
        metavar="N",
        help="restart a run that loses a rank, a server or a machine, at most N times, from the "
        "newest checkpoint (train.checkpoint_every) or else from the beginning (default 0)",
    )


def _run(options: argparse.Namespace) -> int:
    way, _, where = options.on.partition(":")
    if not options.on:
        from hopper.config import read_config
        from hopper.launch.processes import forked_ahead

        config = read_config(options.config, options.overrides)
        with forked_ahead(config):
            with quick_imports():
                import hopper.launch.run
            hopper.train(config, restarts=options.restarts)
    elif way == "ray":
        with quick_imports():
            from hopper.launch.on_ray import train_on_ray
        train_on_ray(options.config, options.overrides, where, options.restarts)
    elif way == "ssh" and where:
        with quick_imports():
            from hopper.launch.on_ssh import SshOptions, train_over_ssh
        ssh = SshOptions(
            *(Path(where), options.ssh, options.python, options.folder, tuple(options.env))
        )
        train_over_ssh(options.config, options.overrides, ssh, options.restarts)
    else:
        from hopper.errors import RequestError

        raise RequestError(
            f"--on: expected ssh:HOSTFILE, ray or ray:HOST:PORT, given {options.on!r}"
        )
    return 0
