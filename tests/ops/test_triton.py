"""Kernels in Triton: compiled for GPUs that need not be there, and run on one where there is."""

import pytest
import torch

from hopper import ops
from hopper.graph.block import Edges
from tests.server_processes import run_python

pytest.importorskip("triton")

COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from hopper.ops import triton_programs as programs

def compile_for(capability, kernel, pointers, numbers, absent, sums):
    names = kernel.arg_names
    numbers = {name: "i64" if name == "key" else "i32" for name in numbers}
    signature = {name: "*" + ("i64" if name in WHOLE else sums) for name in pointers}
    signature |= numbers
    constants = dict(absent) | {"ROWS": 4}
    if "SUMS" in names:
        constants |= {"COLUMNS": 64, "SUMS": triton.language.float32}
        if "DEPTH" in names:
            constants |= {"ROWS": 64, "DEPTH": 32}
        if sums == "fp64":
            constants["SUMS"] = triton.language.float64
    signature |= {name: "constexpr" for name in constants}
    assert set(signature) == set(names), set(signature) ^ set(names)
    source = ASTSource(kernel, {n: signature[n] for n in names},
                       {(names.index(n),): v for n, v in constants.items()})
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32),
                              options={"enable_fp_fusion": False})
    assert compiled.asm["cubin"] and "atom." not in compiled.asm["ptx"]
    assert compiled.asm["ptx"].count(".local ") == 0, "spills"
    print(kernel.__name__, capability, sums)

WHOLE = ("tiles", "shifts", "chunks", "indptr", "indices", "sources", "destinations", "keys",
         "first", "second")
# Arithmetic in bf16 differs between architectures; that in other types does not.
for capability, types in ((80, ("fp64", "bf16")), (90, ("fp32", "bf16"))):
    for sums in types:
        def run(kernel, pointers, numbers, absent=()):
            compile_for(capability, kernel, pointers, numbers, absent, sums)
        sizes = ["num_rows", "width", "heads", "per_head"]
        gather, softmax = programs.gather_sum, programs.softmax
        gradient, dot = programs.softmax_gradient, programs.edge_dot
        run(gather, ["out", "indptr", "indices", "x", "weights"], sizes)
        run(gather, ["out", "indptr", "indices", "x"], sizes, {"weights": None})
        run(dot, ["out", "sources", "destinations", "x", "y"], ["num_edges", "heads", "width"])
        sizes = ["num_rows", "heads"]
        own = {"own": None, "own_shares": None}
        run(softmax, ["shares", "own_shares", "indptr", "logits", "own"], sizes)
        run(softmax, ["shares", "indptr", "logits"], sizes, own)
        own = {"own": None, "own_out": None, "grad_own": None}
        run(gradient, ["out", "own_out", "indptr", "shares", "own", "grad", "grad_own"], sizes)
        run(gradient, ["out", "indptr", "shares", "grad"], sizes, own)
        run(programs.drop, ["out", "x", "keys"], ["num_rows", "width", "threshold", "skipped"])
        run(programs.row_keys, ["out", "first", "second"], ["key", "num_rows"])
        strides = ["heads", "depth", "width", "of_head", "of_depth", "of_width"]
        grouped, sizes = programs.grouped_rows, ["sign", "of_group", *strides]
        run(grouped, ["out", "tiles", "shifts", "x", "matrices", "biases"], sizes)
        grouped, sizes = programs.grouped_gradients, ["of_chunk", *strides]
        run(grouped, ["out", "bias_out", "chunks", "shifts", "x", "grad"], sizes)
        run(programs.row_keys, ["out", "first"], ["key", "num_rows"], {"second": None})
"""


def test_every_kernel_compiles_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    run = run_python("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path), limit=240)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 4 * 12


def random_block(num_dst: int, num_src: int, seed: int) -> Edges:
    """Rows of 0 to 9 edges, one of 30, and one source that is read often."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 10, (num_dst,), generator=generator)
    counts[num_dst // 2] = 30
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    indices = torch.randint(num_src, (int(indptr[-1]),), generator=generator)
    indices[::3] = 1
    return Edges(num_src, num_dst, indptr, indices)


# Without a GPU test_conformance.py runs the programs interpreted.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("width", "dtype"),
    [(1, torch.float32), (1, torch.float64), (20, torch.float32), (70, torch.float64)],
)
def test_the_same_results_as_the_cpu(monkeypatch, dtype, width):
    monkeypatch.delenv("HOPPER_OPS", raising=False)
    generator = torch.Generator().manual_seed(3)
    num_dst, num_src, heads = 9, 12, 2

    def random_tensor(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    counts = num_src, num_dst
    values = [random_tensor(n, heads, *tail) for tail in ((width,), ()) for n in counts]

    def results(device: str, choice: ops.selection.Choice) -> list[torch.Tensor]:
        block = random_block(num_dst, num_src, 7).to(torch.device(device))
        x, y, a, b = (value.to(device).requires_grad_() for value in values)
        with ops.selection.use_backend(choice):
            assert ops.backend(device) == choice
            logits = ops.edge_add(block, a, b) + ops.edge_dot(block, x, y) / width
            shares, self_shares = ops.edge_softmax_with_self(block, logits, b)
            plain = ops.edge_softmax(block, logits)
            sums = ops.weighted_sum(block, x, shares) + self_shares.unsqueeze(-1) * ops.copy_sum(
                block, x
            )
            out = sums + ops.edge_sum(block, plain).unsqueeze(-1)
            grads = torch.autograd.grad(out.sin().sum(), (x, y, a, b))
        return [out.detach(), *grads]

    expected = results("cpu", "torch")
    actual = results("cuda", "triton")
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    for expected_tensor, tensor in zip(expected, actual, strict=True):
        torch.testing.assert_close(tensor.cpu(), expected_tensor, rtol=tolerance, atol=tolerance)
    assert all(map(torch.equal, actual, results("cuda", "triton")))
