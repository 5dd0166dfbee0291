"""Dividing graphs once for all tests, training cases on ranks, comparing each with one process."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hopper.bench.parity import RecordedGradient, check_engine, compare_gradients, read_recorded
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.reference import Reference
from hopper.partition import PartitionedGraph
from hopper.rehearsal.world import run_ranks
from hopper.train.rank import check_training, make_deterministic

from .features import FEATURES, Case, Sections, merged
from .parity_rank import open_once, train_in_turn


class Run(NamedTuple):
    """A case that was trained: its configuration, its folder, and what rank 0 counted."""

    case: Case
    values: dict[str, Any]
    folder: Path
    result: dict[str, Any]


TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
Divided = Callable[[Case], PartitionedGraph]
Train = Callable[[Sequence[tuple[Case, Sections]]], list[Run]]


@pytest.fixture(scope="session")
def divided(graph_of, tmp_path_factory) -> Divided:
    """Divide a case's graph, once for all tests."""
    folder, divisions = tmp_path_factory.mktemp("divided"), dict[Any, PartitionedGraph]()

    def divide(case: Case) -> PartitionedGraph:
        if case.division not in divisions:
            graph = graph_of(FEATURES[case.feature].graph)
            divisions[case.division] = case.divide(graph, folder / f"parts {len(divisions)}")
        return divisions[case.division]

    return divide


@pytest.fixture(scope="session")
def train_cases() -> TrainCases:
    """Train every configuration in turn on ``world`` ranks, and return rank 0's results by case.

    What a run would refuse is refused. The ranks are threads; test_processes.py has processes.
    """

    def train(configs: list[dict[str, Any]], world: int, folder: Path) -> list[dict[str, Any]]:
        cases = [make_config(config) for config in configs]
        make_deterministic()
        for case in cases:
            check_training(Request(case, open_once(case)))
        with pytest.MonkeyPatch.context() as patch, one_processor():
            # Nobody reads these files after a power failure.
            patch.setattr(os, "fsync", lambda _file: None)
            ranks = run_ranks(
                world, cases[0].cluster.ranks_per_server, partial(train_in_turn, cases), timeout=60
            )
        return list(ranks[0])

    return train


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep threads that are made meanwhile on one processor: handing the interpreter's lock from
    one to another took a third of the time of ranks that are threads."""
    allowed = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(allowed)[worker % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.fixture
def train(divided, train_cases, tmp_path) -> Train:
    """Train cases, each with more sections, those of a world on one set of ranks."""
    numbers = count()

    def train(asked: Sequence[tuple[Case, Sections]]) -> list[Run]:
        def world_of(number: int) -> tuple[int, int]:
            world = asked[number][0].world
            return world.servers, world.ranks_per_server

        runs = dict[int, Run]()
        for world, chosen in groupby(sorted(range(len(asked)), key=world_of), key=world_of):
            of_world = []
            for number in chosen:
                case, sections = asked[number]
                folder = tmp_path / f"run {next(numbers)}"
                values = merged(case.values(divided(case), folder), sections)
                of_world.append((number, case, values, Path(values["train"]["run_dir"])))
            results = train_cases([run[2] for run in of_world], world[0] * world[1], tmp_path)
            for (number, *run), result in zip(of_world, results, strict=True):
                runs[number] = Run(*run, result)
        return [runs[number] for number in range(len(asked))]

    return train


def assert_exact(
    values: Mapping[str, Any], world: int, name: str = "", *, in_other_orders: bool = True
) -> list[RecordedGradient]:
    """Assert that loss and gradient of every recorded iteration are those of one process.

    Parameters
    ----------
    values: the run's configuration. world: how many ranks trained it. name: of the case.
    in_other_orders: assert that one process computes the same in another order of summation.
    """
    config = make_config(dict(values))
    recorded = read_recorded(Path(config.train.run_dir) / "gradients")
    assert [moment.step for moment in recorded] == list(config.train.record_gradients), name
    reference = Reference(config, open_once(config), world)
    parity = check_engine(name or str(values), "float64", reference, recorded)
    assert parity.gradient_difference < 1e-10, parity
    assert parity.loss_difference < 1e-10, parity
    if in_other_orders:
        first = recorded[0]
        where = first.epoch, first.iteration, first.parameters
        (loss, gradients), (other_loss, others) = (reference.gradient(*where, n) for n in (0, 1))
        difference = compare_gradients(first.step, others, gradients, other_loss, loss)
        assert difference.largest < 1e-10, (name, difference)
        assert difference.loss < 1e-10, (name, difference)
    return recorded
