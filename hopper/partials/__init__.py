"""Rows and partial sums that ranks exchange, and their gradients (design.md, "cooperative")."""

from hopper.partials.exchange import RowExchange
from hopper.partials.plan import IterationPlan, LayerPlan
from hopper.partials.planner import Planner
from hopper.partials.typed_plan import SumsIn, SumsOut, TypedLayerPlan, TypedPlan
from hopper.partials.typed_planner import TypedPlanner
from hopper.partials.wire import Wire, choose_wires

__all__ = [
    "IterationPlan",
    "LayerPlan",
    "Planner",
    "RowExchange",
    "SumsIn",
    "SumsOut",
    "TypedLayerPlan",
    "TypedPlan",
    "TypedPlanner",
    "Wire",
    "choose_wires",
]
