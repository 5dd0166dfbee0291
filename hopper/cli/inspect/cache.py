"""``hopper inspect cache CONFIG.toml``: reads of rows, their cost, and what caches would keep."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hopper.cli.options import whole
from hopper.cli.tables import make_table
from hopper.display.console_tables import print_table

if TYPE_CHECKING:
    from hopper.hetero.cache_profile import CacheProfile


def add_parser(kinds: Any) -> None:
    """Add the subcommand."""
    parser = kinds.add_parser(
        "cache",
        help="show how often rows are read, what missing ones cost, and what a cache would keep",
        description="Read the profile that a run or --profile has saved for the same "
        "configuration. Any key of it can be overridden as --section.key VALUE. On a cluster: "
        "torchrun ... -m hopper.train.profile CONFIG.",
        allow_abbrev=False,
    )
    parser.option(
        "--profile",
        "first count visits by sampling and measure the cost of missing rows, with servers and "
        "ranks on this machine",
    )
    parser.option(
        "--size",
        "also show what each policy keeps in so much memory of a rank: 512M, or 10%% of all that "
        "could be missing",
        default="",
    )
    parser.option("--rank R", "only of this rank (default: of all)", type=whole)
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import load_config
    from hopper.engines import Request
    from hopper.errors import RequestError
    from hopper.features import open_graph
    from hopper.hetero.cache_profile import load_profile, profile_file
    from hopper.launch.run import profile
    from hopper.train.warm_cache import check_profile, profile_key

    config = load_config(options.config, options.overrides)
    graph = open_graph(config)
    request = Request(config, graph)
    check_profile(request)
    ranks = range(request.ranks) if options.rank is None else [options.rank]
    if options.rank is not None and not 0 <= options.rank < request.ranks:
        raise RequestError(f"--rank: expected 0 to {request.ranks - 1}, given {options.rank}")
    if options.profile:
        profile(config)
    console = Console()
    for rank in ranks:
        visits = load_profile(profile_file(graph.path, profile_key(request), rank))
        title = f"rank {rank}, {visits.iterations} iterations"
        print_table(console, _profile_table(title, visits))
        if options.size:
            _print_policies(console, visits, options.size)
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


def _print_policies(console: Console, profile: CacheProfile, text: str) -> None:
    from hopper.features.cache_plan import POLICIES, cache_bytes, plan_cache
    from hopper.partition.memory import format_bytes

    size = cache_bytes(text, profile.types)
    plans = [plan_cache(profile.types, policy, size) for policy in POLICIES]
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
