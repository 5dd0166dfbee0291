"""A prefetch instruction for kernels, which hides the latency of memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj


@intrinsic
def prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Start to load the cache line of an element of a one-dimensional array, without waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        """Emit LLVM's prefetch of the element's address."""
        data = arrayobj.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        takes = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], takes)
        # Read access, highest temporal locality, data cache.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
