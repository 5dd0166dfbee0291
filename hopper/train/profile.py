"""One rank that counts visits and measures penalties without training.

``torchrun ... -m hopper.train.profile CONFIG [--section.key VALUE ...]`` runs it.
"""

from __future__ import annotations

from hopper.config import Config
from hopper.engines.build import make_engine, make_learnable
from hopper.timing.run_log import RunLog
from hopper.train.console import RunConsole
from hopper.train.rank import join_cluster
from hopper.train.rank_process import follow_parent, run
from hopper.train.warm_cache import make_profile


def profile_rank(config: Config) -> None:
    """Make this rank's profile and save it beside the partitions; errors are those of a run."""
    with join_cluster(config) as (request, cluster, rows):
        learnable = make_learnable(request, cluster)
        engine = make_engine(request, cluster, rows, RunLog(), learnable)
        make_profile(engine, RunConsole(cluster.rank == 0).say)
        engine.close()
        cluster.leave()


if __name__ == "__main__":
    follow_parent()
    run(profile_rank, "hopper.train.profile")
