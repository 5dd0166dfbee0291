"""Asking for what is read soon, so that kernels wait for memory less."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj


@intrinsic
def prefetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of an element of a one-dimensional array; nothing waits for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = arrayobj.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        takes = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], takes)
        # To be read, kept in all caches, data.
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
