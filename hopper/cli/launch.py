"""``hopper launch ray CONFIG.toml``: the former name of ``hopper train CONFIG.toml --on ray``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from hopper.cli.train import add_restarts
from hopper.process.quick_imports import quick_imports


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser("launch", help=text)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    ray = kinds.add_parser(
        "ray",
        help="the former name of hopper train --on ray",
        description="Any key of the configuration can be overridden as --section.key VALUE.",
    )
    ray.option(
        "--address HOST:PORT",
        "address of the cluster (default: a cluster on this machine for the time of the run)",
        default="",
    )
    add_restarts(ray)
    ray.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    with quick_imports():
        from hopper.launch.on_ray import train_on_ray
    where = f"ray:{options.address}" if options.address else "ray"
    print(f"hopper launch ray is now hopper train CONFIG --on {where}", file=sys.stderr)
    train_on_ray(options.config, options.overrides, options.address, options.restarts)
    return 0
