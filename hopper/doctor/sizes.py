"""How large what a run trains is."""

from __future__ import annotations

from dataclasses import dataclass

from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.build import make_learning
from hopper.engines.learnable_tables import make_tables
from hopper.engines.training_parts import make_optimizer
from hopper.engines.trial_configs import all_configs
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.migrate.packed_model import PackedModel


@dataclass(frozen=True)
class Sizes:
    """Bytes.

    Attributes
    ----------
    models: how many are trained.
    parameters, gradients, state: of the largest of them; state is its optimiser's.
    rows: learnable rows of all ranks.
    records: the same with what their optimiser keeps of each, and with the best rows so far.
    """

    models: int
    parameters: int
    gradients: int
    state: int
    rows: int
    records: int


def measure_sizes(request: Request) -> Sizes:
    """Make each model once, and count; errors as of :func:`make_model`."""
    configs = all_configs(request.config, request.ranks)
    found = [_measure_model(request.under(each)) for each in configs]
    parameters, gradients, state = max(found, key=sum)
    rows, records = _measure_rows(request)
    return Sizes(len(configs), parameters, gradients, state, rows, records)


def _measure_model(request: Request) -> tuple[int, int, int]:
    packed = PackedModel(make_model(request))
    state = make_optimizer(request.config, packed, iterations=1).state().values()
    parameters = packed.parameters.nbytes
    return parameters, packed.buffer.nbytes - parameters, sum(each.nbytes for each in state)


def _measure_rows(request: Request) -> tuple[int, int]:
    learning, rows, records = make_learning(request), 0, 0
    for table in make_tables(request):
        size = int(table.offsets[-1]) * learning.dim * learning.dtype.itemsize
        rows += size
        learned = OPTIMIZERS[learning.optimizer].parts + learning.keeps
        records += size * (1 if table.frozen else 1 + learned)
    return rows, records
