"""``hopper inspect cache CONFIG.toml``: reads of rows, their cost, and what caches would keep."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hopper.cli.options import print_json, printing_to_stderr, whole
from hopper.display.console_tables import make_table, print_table

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
    parser.option("--json", "print JSON instead of tables")
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
        with printing_to_stderr() if options.json else nullcontext():
            profile(config)
    described = []
    for rank in ranks:
        visits = load_profile(profile_file(graph.path, profile_key(request), rank))
        described.append({"rank": rank, **_describe(visits, options.size)})
    if options.json:
        print_json(described)
        return 0
    console = Console()
    for of_rank in described:
        print_table(console, _profile_table(of_rank))
        if options.size:
            _print_policies(console, of_rank)
    return 0


def _describe(profile: CacheProfile, size: str) -> dict[str, Any]:
    """Return what ``--json`` prints of a rank's profile, and of each policy if there is a size."""
    import numpy as np

    from hopper.features.cache_plan import POLICIES, cache_bytes, plan_cache

    description: dict[str, Any] = {
        "iterations": profile.iterations,
        "types": {
            name: {
                "rows": of.rows,
                "visited": of.ids.size,
                "visits": of.total,
                "row_bytes": of.row_bytes,
                "seconds_a_byte": np.unique(of.penalty).tolist(),
            }
            for name, of in profile.types.items()
        },
    }
    if not size:
        return description
    total, policies = cache_bytes(size, profile.types), dict[str, dict[str, Any]]()
    for policy in POLICIES:
        plan = plan_cache(profile.types, policy, total)
        policies[policy] = {"rows": dict(plan.room)}
        if policy != "lru":  # it fills itself during training
            found = sum(plan.hits(profile.types).values())
            saved = plan.saved_seconds(profile.types)
            policies[policy] |= {"visits_found": found, "seconds_saved": saved}
    return description | {"cache_bytes": total, "policies": policies}


def _profile_table(described: Mapping[str, Any]) -> Table:
    headings = ("node type", "rows", "visited", "visits", "bytes a row", "penalty, ns/byte")
    rows = [
        (
            name,
            *(f"{of[key]:,}" for key in ("rows", "visited", "visits", "row_bytes")),
            " / ".join(f"{penalty * 1e9:.3g}" for penalty in of["seconds_a_byte"]),
        )
        for name, of in described["types"].items()
    ]
    title = f"rank {described['rank']}, {described['iterations']} iterations"
    return make_table(headings, rows, title, title_justify="left")


def _print_policies(console: Console, described: Mapping[str, Any]) -> None:
    from hopper.partition.memory import format_bytes

    names, total = list(described["types"]), sum(of["visits"] for of in described["types"].values())
    title, rows = f"a cache of {format_bytes(described['cache_bytes'])}", []
    headings = ("policy", *(f"{name}, rows" for name in names), "visits found", "s saved")
    for policy, plan in described["policies"].items():
        gains = ["fills itself", ""]
        if "visits_found" in plan:
            share = f"{plan['visits_found'] / total:.1%}" if total else "none"
            gains = [share, f"{plan['seconds_saved']:.3g}"]
        rows.append((policy, *(f"{plan['rows'][name]:,}" for name in names), *gains))
    print_table(console, make_table(headings, rows, title, title_justify="left"))
    console.print(
        f"Of {total:,} visits in {described['iterations']} iterations; seconds as they were "
        "measured, if rows came one type after the other.",
        highlight=False,
    )  # fmt: skip
