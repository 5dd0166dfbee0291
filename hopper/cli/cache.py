"""``hopper cache``: profile the reads of rows, and plan a cache."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hopper.cli.options import whole
from hopper.cli.tables import make_table
from hopper.display.console_tables import print_table

if TYPE_CHECKING:
    from hopper.config import Config
    from hopper.hetero.cache_profile import CacheProfile


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser = commands.add_parser("cache", help=text)
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    profile = steps.add_parser(
        "profile",
        help="count visits by sampling, measure the cost of missing rows, and save both",
        description="Start servers and ranks on this machine, as `hopper train` does, and end "
        "before the first iteration. On a cluster: torchrun ... -m hopper.train.profile CONFIG.",
    )
    profile.run_on_config(_run_profile)
    plan = steps.add_parser(
        "plan",
        help="show what a cache of a given size would keep under each policy",
        description="Read what `hopper cache profile` saved for the same configuration.",
    )
    plan.option(
        "--size",
        'memory for the rows of each rank: "512M", or "10%%" of all that could be missing',
        required=True,
    )
    plan.option("--rank R", "which rank (default 0)", type=whole, default=0)
    plan.run_on_config(_run_plan)


def _run_profile(options: argparse.Namespace) -> int:
    from hopper.config import load_config
    from hopper.launch.run import profile

    config = load_config(options.config, options.overrides)
    profiles = profile(config)
    console = Console()
    for rank, visits in enumerate(profiles):
        print_table(console, _profile_table(f"rank {rank}, {visits.iterations} iterations", visits))
    return 0


def _profile_table(title: str, profile: CacheProfile) -> Table:
    import numpy as np

    headings = ("node type", "rows", "visited", "visits", "bytes a row", "penalty, ns/byte")
    rows = [
        (
            name,
            *(f"{n:,}" for n in (of.rows, of.ids.size, of.total, of.row_bytes)),
            " / ".join(f"{penalty * 1e9:.3g}" for penalty in np.unique(of.penalty)),
        )
        for name, of in profile.types.items()
    ]
    return make_table(headings, rows, title, title_justify="left")


def _run_plan(options: argparse.Namespace) -> int:
    from hopper.config import load_config
    from hopper.features.cache_plan import POLICIES, cache_bytes, plan_cache
    from hopper.partition.memory import format_bytes

    config = load_config(options.config, options.overrides)
    profile = _load(config, options.rank)
    size = cache_bytes(options.size, profile.types)
    plans = [plan_cache(profile.types, policy, size) for policy in POLICIES]
    console = Console()
    print_table(console, _profile_table(f"rank {options.rank}", profile))
    title, names, rows = f"a cache of {format_bytes(size)}", list(profile.types), []
    headings = ("policy", *(f"{name}, rows" for name in names), "visits found", "s saved")
    total = sum(visits.total for visits in profile.types.values())
    for plan in plans:
        gains = ["fills itself", ""]
        if plan.policy != "lru":
            hits = sum(plan.hits(profile.types).values())
            share = f"{hits / total:.1%}" if total else "none"
            gains = [share, f"{plan.saved_seconds(profile.types):.3g}"]
        rows.append((plan.policy, *(f"{plan.room[name]:,}" for name in names), *gains))
    print_table(console, make_table(headings, rows, title, title_justify="left"))
    console.print(
        f"Of {total:,} visits in {profile.iterations} iterations; seconds as they were measured, "
        "if rows came one type after the other.",
        highlight=False,
    )  # fmt: skip
    return 0


def _load(config: Config, rank: int) -> CacheProfile:
    from hopper.engines import Request
    from hopper.errors import RequestError
    from hopper.features import open_graph
    from hopper.hetero.cache_profile import load_profile, profile_file
    from hopper.train.warm_cache import check_profile, profile_key

    graph = open_graph(config)
    request = Request(config, graph)
    check_profile(request)
    if not 0 <= rank < request.ranks:
        raise RequestError(f"--rank: expected 0 to {request.ranks - 1}, given {rank}")
    return load_profile(profile_file(graph.path, profile_key(request), rank))
