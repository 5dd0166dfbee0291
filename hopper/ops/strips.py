"""The innermost loops of the CPU's kernels, which sum a strip of columns in vector registers.

numba has no vectors, and LLVM does not vectorise these loops by itself. The sums of a strip must
stay in registers over all entries of a row, which LLVM rules out because arrays could overlap. Both
functions are therefore written in LLVM's language. It also fixes the order of additions, which is
the same on every processor.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_AHEAD: Final = 8
"""How many entries ahead rows of x are prefetched, as memory is slower than adding a row."""
_LINE_BYTES: Final = 64


def make_sum_strip(vectors: int, lanes: int, weighted: bool) -> Any:
    """Make a function that sums ``vectors * lanes`` columns over the entries of one row.

    ``sum_strip(out, row, x, indices, weights, first, stop, column, width, head, heads)`` sets
    ``out[row * width + column + j]`` to the sum of ``weights[i * heads + head] * x[indices[i] *
    width + column + j]`` over ``first <= i < stop``, added in that order. Arrays are
    one-dimensional and contiguous. Without ``weighted``, the function ignores the weights.
    """

    @intrinsic
    def sum_strip(  # type: ignore[no-untyped-def]
        typing_context, out, row, x, indices, weights, first, stop, column, width, head, heads
    ):
        """Give numba the types of the arguments, and what generates the loop in LLVM's language."""
        arguments = (out, types.intp, x, indices, weights, *(types.intp,) * 6)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            out, x, indices, weights = (
                _array(context, builder, signature, values, at) for at in (0, 2, 3, 4)
            )
            _, row, _, _, _, first, stop, column, width, head, heads = values
            index = first.type
            vector = ir.VectorType(out.data.type.pointee, lanes)
            item_bytes = context.get_abi_sizeof(vector.element)
            last = builder.sub(builder.extract_value(indices.shape, 0), index(1))
            loop = _Loop(builder, first, stop, index(1), [vector] * vectors)

            def start_of(row: Any) -> Any:
                """Build the place at which the strip of a row begins."""
                return builder.add(builder.mul(row, width), column)

            def row_of(entry: Any) -> Any:
                """Build the row of x that an entry gathers."""
                return builder.sext(builder.load(builder.gep(indices.data, [entry])), index)

            ahead = builder.add(loop.counter, index(_AHEAD))
            ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, last)
            fetched = start_of(row_of(ahead))
            for skipped in range(0, vectors * lanes * item_bytes, _LINE_BYTES):
                place_ahead = builder.add(fetched, index(skipped // item_bytes))
                _prefetch(builder, builder.gep(x.data, [place_ahead]))
            start = start_of(row_of(loop.counter))
            if weighted:
                weight_place = builder.add(builder.mul(loop.counter, heads), head)
                weight = _broadcast(
                    builder, builder.load(builder.gep(weights.data, [weight_place])), vector
                )
            sums = []
            for number, total in enumerate(loop.sums):
                value = _load(builder, x, builder.add(start, index(number * lanes)), vector)
                if weighted:
                    value = builder.fmul(weight, value)
                sums.append(builder.fadd(total, value))
            loop.close(sums)
            place = start_of(row)
            for number, total in enumerate(loop.sums):
                _store(builder, total, out, builder.add(place, index(number * lanes)))
            return context.get_dummy_value()

        return types.void(*arguments), generate

    return sum_strip


def make_dot_strip(vectors: int, lanes: int) -> Any:
    """Make a function that computes the dot product of two rows.

    ``dot_strip(x, x_place, y, y_place, width)`` sums ``x[x_place + j] * y[y_place + j]`` over the
    first ``width`` columns, which must be a multiple of ``vectors * lanes``. Columns with the same
    remainder by that number are summed first, and then these sums.
    """

    @intrinsic
    def dot_strip(typing_context, x, x_place, y, y_place, width):  # type: ignore[no-untyped-def]
        arguments = (x, types.intp, y, types.intp, types.intp)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, y = (_array(context, builder, signature, values, at) for at in (0, 2))
            _, x_place, _, y_place, width = values
            index = width.type
            vector = ir.VectorType(x.data.type.pointee, lanes)
            loop = _Loop(builder, index(0), width, index(vectors * lanes), [vector] * vectors)
            sums = []
            for number, total in enumerate(loop.sums):
                column = builder.add(loop.counter, index(number * lanes))
                left = _load(builder, x, builder.add(x_place, column), vector)
                right = _load(builder, y, builder.add(y_place, column), vector)
                sums.append(builder.fadd(total, builder.fmul(left, right)))
            loop.close(sums)
            total = loop.sums[0]
            for vector_sum in loop.sums[1:]:
                total = builder.fadd(total, vector_sum)
            lane_sums = [builder.extract_element(total, ir.IntType(32)(at)) for at in range(lanes)]
            while len(lane_sums) > 1:
                half = len(lane_sums) // 2
                pairs = zip(lane_sums[:half], lane_sums[half:], strict=True)
                lane_sums = [builder.fadd(left, right) for left, right in pairs]
            return lane_sums[0]

        return x.dtype(*arguments), generate

    return dot_strip


class _Loop:
    """Builds ``for (counter = first; counter < stop; counter += step)`` with sums from zero.

    The loop's body is what is built between the constructor and :meth:`close`. ``sums`` are the
    sums before an iteration in the body, and the final ones after the loop.
    """

    def __init__(self, builder: Any, first: Any, stop: Any, step: Any, kinds: list[Any]) -> None:
        self._builder, self._step = builder, step
        before = builder.block
        self._head = builder.append_basic_block("strip")
        body, self._done = (builder.append_basic_block(name) for name in ("entry", "done"))
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self.counter = builder.phi(first.type)
        self.counter.add_incoming(first, before)
        self.sums = [builder.phi(kind) for kind in kinds]
        for total in self.sums:
            total.add_incoming(ir.Constant(total.type, [0.0] * total.type.count), before)
        builder.cbranch(builder.icmp_signed("<", self.counter, stop), body, self._done)
        builder.position_at_end(body)

    def close(self, sums: list[Any]) -> None:
        """End the loop's body, with the sums after an iteration."""
        builder = self._builder
        self.counter.add_incoming(builder.add(self.counter, self._step), builder.block)
        for before, after in zip(self.sums, sums, strict=True):
            before.add_incoming(after, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._done)


def _array(context: Any, builder: Any, signature: Any, values: Any, at: int) -> Any:
    return context.make_array(signature.args[at])(context, builder, values[at])


def _broadcast(builder: Any, value: Any, vector: Any) -> Any:
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(single, single, places)


def _place(builder: Any, array: Any, place: Any, vector: Any) -> Any:
    return builder.bitcast(builder.gep(array.data, [place]), vector.as_pointer())


def _load(builder: Any, array: Any, place: Any, vector: Any) -> Any:
    # Without the alignment LLVM assumes that rows begin at a multiple of a vector's size.
    return builder.load(_place(builder, array, place, vector), align=_item_bytes(vector))


def _store(builder: Any, value: Any, array: Any, place: Any) -> None:
    builder.store(value, _place(builder, array, place, value.type), align=_item_bytes(value.type))


def _item_bytes(vector: Any) -> int:
    return 8 if isinstance(vector.element, ir.DoubleType) else 4


def _prefetch(builder: Any, pointer: Any) -> None:
    byte_pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    # The flags mean: for reading, to all levels of the cache, data.
    builder.call(function, [builder.bitcast(pointer, byte_pointer), flag(0), flag(3), flag(1)])
