"""One rank that counts visits and measures penalties, and does not train:
``torchrun ... -m hopper.train.profile CONFIG [--section.key VALUE ...]``."""

from __future__ import annotations

from hopper.config import Config
from hopper.engines.build import make_engine, make_learnable
from hopper.run_log import RunLog
from hopper.train.console import RunConsole
from hopper.train.parent import follow_parent
from hopper.train.rank import joined
from hopper.train.rank_main import run
from hopper.train.warm_cache import CacheMaker


def profile_rank(config: Config) -> None:
    """Keep this rank's profile beside the partitions; see :func:`hopper.train.rank.run_rank`."""
    with joined(config) as (request, cluster, rows):
        learnable = make_learnable(request, cluster)
        engine = make_engine(request, cluster, rows, RunLog(), learnable)
        CacheMaker(engine, RunConsole(cluster.rank == 0, "").say).profile()
        engine.close()
        cluster.leave()


if __name__ == "__main__":
    follow_parent()
    run(profile_rank, "hopper.train.profile")
