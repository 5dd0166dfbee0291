"""Rows and partial sums that ranks exchange, and their gradients (docs/inside/data-flow.md)."""

from hopper.partials.exchange import KindsExchange, RowExchange
from hopper.partials.forward import Forward
from hopper.partials.plan import IterationPlan
from hopper.partials.planner import Planner
from hopper.partials.stack import LayerInputs, Stack, StackLayer, make_stack
from hopper.partials.transfer import (
    LayerTransfer,
    RowKind,
    RowLayout,
    Sums,
    choose_transfers,
    source_type,
)

__all__ = [
    "Forward",
    "IterationPlan",
    "KindsExchange",
    "LayerInputs",
    "LayerTransfer",
    "Planner",
    "RowExchange",
    "RowKind",
    "RowLayout",
    "Stack",
    "StackLayer",
    "Sums",
    "choose_transfers",
    "make_stack",
    "source_type",
]
