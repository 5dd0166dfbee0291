"""Jobs that tell nobody, and a graph of two node types, one without features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.paper.cells import make_cells
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.job import Job
from benchmarks.paper.materials import Materials
from hopper.graph import GraphDirectory


def ignore(_: str) -> None:
    """Tell nobody."""


def start_job(
    experiment: Experiment,
    graph: Path,
    folder: Path,
    out: str = "out",
    say: Any = ignore,
    **more: Any,
) -> Job:
    """Return the job of an experiment on one graph, with a few roots, on loopback."""
    grid = experiment.grid.model_copy(update={"graphs": (str(graph),)})
    job = Job(
        experiment.model_copy(update={"grid": grid}), make_cells(grid, batch_size=20), (), False,
        folder / out, Materials(folder / "work", say), say, ignore,
    )  # fmt: skip
    return replace(job, **more)


@pytest.fixture(scope="session")
def typed_graph(tmp_path_factory) -> GraphDirectory:
    """Its roots are papers; rows of authors are learned."""
    generator, counts = np.random.default_rng(0), {"author": 60, "paper": 90}
    relations = (
        ("author", "writes", "paper"),
        ("paper", "of", "author"),
        ("paper", "cites", "paper"),
    )
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("typed") / "graph",
        {r: [generator.integers(0, counts[name], 300) for name in r[::2]] for r in relations},
        features={"paper": generator.standard_normal((90, 5), dtype=np.float32)},
        labels={"paper": generator.integers(0, 3, 90)},
        counts=counts,
        target="paper",
        splits={"train": np.arange(45), "val": np.arange(45, 54), "test": np.arange(54, 90)},
    )
