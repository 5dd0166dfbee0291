"""Measuring the sizes of a run's models and learnable rows."""

from __future__ import annotations

from dataclasses import dataclass

from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.build import make_learning
from hopper.engines.learnable_tables import make_tables
from hopper.engines.training_parts import make_optimizer
from hopper.engines.trial_configs import all_configs
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.migrate.flat_model import FlatModel


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes, and the number of models.

    Attributes
    ----------
    models: number of models.
    parameters, gradients, state: sizes of the largest model; state is that of its optimiser.
    rows: learnable rows of all ranks.
    records: learnable rows with their optimiser's state and the best rows so far.
    """

    models: int
    parameters: int
    gradients: int
    state: int
    rows: int
    records: int


def measure_sizes(request: Request) -> Sizes:
    """Make each model once and measure it; raises the errors of :func:`make_model`."""
    configs = all_configs(request.config, request.ranks)
    by_model = [_measure_model(request.under(config)) for config in configs]
    parameters, gradients, state = max(by_model, key=sum)
    rows, records = _measure_rows(request)
    return Sizes(len(configs), parameters, gradients, state, rows, records)


def _measure_model(request: Request) -> tuple[int, int, int]:
    packed = FlatModel(make_model(request))
    state = make_optimizer(request.config, packed, iterations=1).state().values()
    parameters = packed.parameters.nbytes
    return parameters, packed.buffer.nbytes - parameters, sum(tensor.nbytes for tensor in state)


def _measure_rows(request: Request) -> tuple[int, int]:
    learning, rows, records = make_learning(request), 0, 0
    for table in make_tables(request):
        size = int(table.offsets[-1]) * learning.dim * learning.dtype.itemsize
        rows += size
        copies = OPTIMIZERS[learning.optimizer].parts + learning.keeps
        records += size * (1 if table.frozen else 1 + copies)
    return rows, records
