"""Rows and partial sums that ranks exchange, and their gradients (docs/data-flow.md)."""

from hopper.partials.exchange import RowExchange
from hopper.partials.forward import Forward
from hopper.partials.plan import IterationPlan, LayerPlan
from hopper.partials.planner import Planner
from hopper.partials.stack import Stack, make_stack
from hopper.partials.wire import Form, Sums, Wires, choose_wires

__all__ = [
    "Form",
    "Forward",
    "IterationPlan",
    "LayerPlan",
    "Planner",
    "RowExchange",
    "Stack",
    "Sums",
    "Wires",
    "choose_wires",
    "make_stack",
]
