"""Rows and partial sums that ranks exchange, and their gradients (design.md, "cooperative")."""

from hopper.partials.exchange import RowExchange
from hopper.partials.plan import IterationPlan, LayerPlan
from hopper.partials.planner import Planner
from hopper.partials.typed_planner import TypedLayerPlan, TypedPlan, TypedPlanner
from hopper.partials.wire import Wire, choose_wires

__all__ = [
    "IterationPlan",
    "LayerPlan",
    "Planner",
    "RowExchange",
    "TypedLayerPlan",
    "TypedPlan",
    "TypedPlanner",
    "Wire",
    "choose_wires",
]
