"""Rows and partial sums that ranks exchange, and their gradients (docs/inside/data-flow.md)."""

from hopper.partials.exchange import KindsExchange, RowExchange
from hopper.partials.forward import Forward
from hopper.partials.input_rows import exchange_input_rows
from hopper.partials.kept_nodes import Costs, choose_kept, keep_all_or_none
from hopper.partials.plan import IterationPlan, LayerPlan
from hopper.partials.planner import Planner
from hopper.partials.split_layer import Parts, SplitLayer, split_layer
from hopper.partials.stack import LayerInputs, Stack, StackLayer, make_stack
from hopper.partials.wire import Form, RowKind, Sums, Wires, choose_wires, source_type

__all__ = [
    "Costs",
    "Form",
    "Forward",
    "IterationPlan",
    "KindsExchange",
    "LayerInputs",
    "LayerPlan",
    "Parts",
    "Planner",
    "RowExchange",
    "RowKind",
    "SplitLayer",
    "Stack",
    "StackLayer",
    "Sums",
    "Wires",
    "choose_kept",
    "choose_wires",
    "exchange_input_rows",
    "keep_all_or_none",
    "make_stack",
    "source_type",
    "split_layer",
]
