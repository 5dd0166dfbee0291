"""``hopper launch ray CONFIG.toml [--section.key VALUE ...]``: train on a cluster."""

from __future__ import annotations

import argparse
from typing import Any

from hopper.cli.train import add_restarts
from hopper.quick_imports import quick_imports


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser(
        "launch",
        help=text,
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    ray = kinds.add_parser(
        "ray",
        help="train on a Ray cluster, with a node for each server if there are enough",
        description="Any key of the configuration can be overridden as --section.key VALUE.",
    )
    ray.add_argument("config", metavar="CONFIG.toml")
    ray.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="address of the cluster (default: a cluster on this machine for the time of the run)",
    )
    add_restarts(ray, "a rank, a server or a machine")
    ray.set_defaults(run=_run, takes_overrides=True)


def _run(options: argparse.Namespace) -> int:
    with quick_imports():
        from hopper.train.launch_ray import launch_on_ray
    launch_on_ray(options.config, options.overrides, options.address, options.restarts)
    return 0
