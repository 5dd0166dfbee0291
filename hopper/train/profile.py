"""One rank that counts visits and measures penalties, and does not train:
``torchrun ... -m hopper.train.profile CONFIG [--section.key VALUE ...]``."""

from __future__ import annotations

from hopper.config import Config
from hopper.train.cache_sources import cached_tables
from hopper.train.console import RunConsole
from hopper.train.parent import follow_parent
from hopper.train.rank import joined, make_learnable
from hopper.train.rank_main import run
from hopper.train.warm_cache import CacheMaker


def profile_rank(config: Config) -> None:
    """Keep this rank's profile beside the partitions; see :func:`hopper.train.rank.run_rank`."""
    with joined(config) as (graph, cluster, rows):
        say = RunConsole(cluster.rank == 0, "").say
        is_on_disk = bool(cached_tables(config, graph.schema))
        learnable = make_learnable(config, graph, cluster) if is_on_disk else None
        CacheMaker(config, graph, cluster, rows, learnable, say).profile()
        cluster.leave()


if __name__ == "__main__":
    follow_parent()
    run(profile_rank)
