"""A rank of a test: two ranks have different memory for plans, and rest longer than their deadline.

usage: resting_rank.py OUT.json PARTITIONED, with torchrun's environment.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hopper.cluster import Cluster
from hopper.config import make_config
from hopper.device_choice import choose_device
from hopper.engines import Request
from hopper.features import PartitionedRows
from hopper.partition import PartitionedGraph
from hopper.pipeline import Pipeline, moments_left
from hopper.train.rank import make_trainer

DEADLINE_SECONDS = 4.0
REST_SECONDS = 5.0
EPOCHS = 2


def main(out: Path, partitioned: Path) -> None:
    cluster = Cluster.join(1, choose_device("cpu"), DEADLINE_SECONDS, 60.0)
    graph = PartitionedGraph.open(partitioned)
    config = make_config(
        {
            "data": {"partitioned": str(partitioned)},
            "model": {"name": "sage", "layers": 2, "hidden": 4},
            "sampler": {"fanouts": [4, 3]},
            "train": {
                "engine": "cooperative",
                "batch_size": 8,
                "epochs": EPOCHS,
                "run_dir": str(out.parent / f"run-{cluster.rank}"),
            },
            # One rank has room for all plans of the run, the other for one.
            "pipeline": {"memory": "1" if cluster.rank else "1G"},
        }
    )
    rows = PartitionedRows(graph, cluster.server, None, cluster.traffic)
    trainer = make_trainer(Request(config, graph), cluster, rows)
    losses = []
    moments = moments_left(0, 0, trainer.schedule.iterations, EPOCHS)
    with Pipeline(trainer.engine, trainer.schedule, moments) as pipeline:
        for epoch in range(EPOCHS):
            pipeline.start_epoch(epoch)
            for _ in range(trainer.schedule.iterations):
                losses.append(pipeline.train_next().losses[0])
            if epoch == 0:
                with pipeline.resting():
                    time.sleep(REST_SECONDS)
    out.write_text(json.dumps(losses))
    cluster.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
