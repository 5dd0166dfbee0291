"""``hopper train CONFIG.toml [--section.key VALUE ...]``: train here, or on several machines."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import hopper
from hopper.cli.options import CommandParser, whole
from hopper.errors import RequestError
from hopper.process.quick_imports import quick_imports


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = "Any key of the configuration can be overridden as --section.key VALUE."
    parser.option(
        "--on WHERE",
        "train on several machines: ssh:HOSTFILE, with a line HOST[:PORT] [slots=RANKS] "
        "[address=ADDRESS] for each partition; ray (a cluster on this machine for the time of the "
        "run) or ray:HOST:PORT (default: on this machine)",
        default="",
    )
    parser.option(
        "--restarts N",
        "restart a run that loses a rank, a server or a machine, at most N times, from the newest "
        "checkpoint (train.checkpoint_every) or else from the beginning (default 0)",
        type=whole,
        default=0,
    )
    ssh = partial(parser.option, group=parser.add_argument_group("machines of a hostfile"))
    ssh("--ssh COMMAND", "OpenSSH's client and its options", default="ssh")
    ssh(
        "--python FILE",
        "the interpreter that Hopper is installed for (default: this one)",
        default=sys.executable,
    )
    ssh("--folder DIR", "working folder there (default: this one)", default="")
    ssh("--env NAME", "pass on an environment variable; may be given several times", several=True)
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    way, _, where = options.on.partition(":")
    if not options.on or way == "emulated":
        from hopper.config import read_config
        from hopper.launch.processes import forked_ahead

        config = read_config(options.config, options.overrides)
        # How benchmarks train on hosts that they have built. Memory that forked processes share
        # would count on no host.
        about = json.loads(Path(where).read_text()) if way else {"memory": None}
        with forked_ahead(None if about["memory"] else config):
            with quick_imports():
                from hopper.launch.on_emulated import train_on_emulated
            if way:
                train_on_emulated(config, about)
            else:
                hopper.train(config, restarts=options.restarts)
    elif way == "ray":
        with quick_imports():
            from hopper.launch.on_ray import train_on_ray
        train_on_ray(options.config, options.overrides, where, options.restarts)
    elif way == "ssh" and where:
        with quick_imports():
            from hopper.launch.on_ssh import SshOptions, train_over_ssh
        ssh = SshOptions(
            Path(where), options.ssh, options.python, options.folder, tuple(options.env)
        )
        train_over_ssh(options.config, options.overrides, ssh, options.restarts)
    else:
        raise RequestError(
            f"--on: expected ssh:HOSTFILE, ray or ray:HOST:PORT, given {options.on!r}"
        )
    return 0
