"""What a training step asks of a GPU: how many operations and launches, and no synchronisation."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hopper.models.relational import HGNN
from hopper.ops import selection
from tests.models.test_merged import INPUTS, build, sample

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU Triton's programs are compiled for it"
)

WAITS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.repeat_interleave.Tensor,
}
"""Operations of which the host waits for the result."""
PROGRAMS = (
    "gather_sum",
    "edge_dot",
    "softmax",
    "softmax_gradient",
    "row_keys",
    "drop",
    "grouped_rows",
    "grouped_gradients",
)
STEPS = {"rgcn": (49, 19), "rgat": (81, 43), "hgt": (185, 49)}
"""By model, the most operations of torch and launches of Triton in a step of two layers over eight
relations of five node types, with dropout."""


class Operations(TorchDispatchMode):
    """Counts operations that compute or copy something, and notes those that are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.waits = Counter[str](), list[str]()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_masked = func is torch.ops.aten.index.Tensor and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if func in WAITS or is_masked:
            self.waits.append(str(func))
        results = func._schema.returns
        is_view = any(one.alias_info and not one.alias_info.is_write for one in results)
        if not is_view and "empty" not in func.__name__ and "detach" not in func.__name__:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Launches:
    """A program that counts its launches, and runs apart from what is counted."""

    def __init__(self, program: Any, counts: Counter[str], name: str) -> None:
        self.program, self.counts, self.name = program, counts, name

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*arrays: Any, **options: Any) -> None:
            self.counts[self.name] += 1
            with _disable_current_modes():
                self.program[grid](*arrays, **options)

        return launch


def count_step(model: HGNN, monkeypatch: pytest.MonkeyPatch) -> tuple[Operations, Counter[str]]:
    """Run the forward and the backward pass of a batch that was laid out before."""
    from hopper.ops import triton_programs

    launches = Counter[str]()
    for name in PROGRAMS:
        program = Launches(getattr(triton_programs, name), launches, name)
        monkeypatch.setattr(triton_programs, name, program)
    blocks = sample(3)
    x = {
        name: torch.ones(blocks[0].sources[name], width, dtype=torch.float64)
        for name, width in INPUTS.items()
    }
    with selection.use_backend("triton"):
        model.lay_out(blocks)
        launches.clear()
        with Operations() as operations:
            model(blocks, x).sum().backward()
    return operations, launches


@pytest.mark.parametrize("name", STEPS)
def test_a_step_launches_so_much_and_waits_for_nothing(name, monkeypatch):
    operations, launches = count_step(build(name, dropout=0.5), monkeypatch)
    assert operations.waits == []
    most_operations, most_launches = STEPS[name]
    assert 0 < operations.counts.total() <= most_operations, operations.counts
    assert 0 < launches.total() <= most_launches, launches
