"""A picture of miss penalties by node type, and of what each policy would cache.

Heta, Figure 7 and section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from hopper.display.palette import hex_of, series
from hopper.features.cache_plan import CachePlan, Profile
from hopper.files.whole_files import replacing


def draw_plans(profile: Profile, plans: Sequence[CachePlan], path: Path | str, title: str) -> None:
    """Write a PNG with three charts.

    They show the cost of a missing byte of each type, each type's share of the cache under every
    policy, and the visits that would find their row in the cache.
    """
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    costs, shares, hits = figure.subplots(1, 3)
    names = list(profile)
    colours = [series(number) for number in range(len(names))]
    labels = [f"{name}\n{visited.row_bytes:,} B" for name, visited in profile.items()]
    costs.bar(labels, [visited.penalty * 1e9 for visited in profile.values()], color=colours)
    costs.set_ylabel("nanoseconds")
    costs.set_title("What a missing byte costs", loc="left", fontsize=11)
    costs.tick_params(axis="x", labelrotation=90 if len(names) > 4 else 0)
    policies = [plan.policy for plan in plans]
    bottom = [0.0] * len(plans)
    for name, colour in zip(names, colours, strict=True):
        heights = [plan.room[name] * profile[name].row_bytes / 2**20 for plan in plans]
        shares.bar(policies, heights, bottom=bottom, color=colour, label=name)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    shares.set_ylabel("MiB")
    shares.set_title("What is cached, by node type", loc="left", fontsize=11)
    # Room for the legend above the bars.
    shares.set_ylim(0, 1.3 * max(bottom, default=0.0) or 1.0)
    shares.legend(fontsize=9, frameon=False, loc="upper center", ncols=2)
    total = sum(visited.total for visited in profile.values())
    planned = [plan for plan in plans if plan.policy != "lru"]
    rates = [sum(plan.hits(profile).values()) / max(1, total) for plan in planned]
    hits.bar(
        [plan.policy for plan in planned], [100 * rate for rate in rates], color=hex_of("grey")
    )
    hits.set_ylabel("share of visits, %")
    hits.set_ylim(0, 100)
    hits.set_title("Visits that find their row", loc="left", fontsize=11)
    for axes in (shares, hits):
        axes.tick_params(axis="x", labelrotation=20)
    for axes in (costs, shares, hits):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    with replacing(Path(path)) as unfinished:
        figure.savefig(unfinished, dpi=150, format="png")
