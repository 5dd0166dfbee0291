"""Rows and partial sums that ranks exchange, and their gradients (design.md, "cooperative")."""

from hopper.partials.exchange import RowExchange
from hopper.partials.plan import IterationPlan, LayerPlan
from hopper.partials.planner import Planner
from hopper.partials.typed_forward import TypedForward, make_typed_planner
from hopper.partials.typed_plan import TypedPlan
from hopper.partials.typed_planner import TypedPlanner
from hopper.partials.wire import Wire, choose_wires

__all__ = [
    "IterationPlan",
    "LayerPlan",
    "Planner",
    "RowExchange",
    "TypedForward",
    "TypedPlan",
    "TypedPlanner",
    "Wire",
    "choose_wires",
    "make_typed_planner",
]
