"""The programs of :mod:`hopper.ops.triton_kernels`, in Triton's subset of Python.

They have no annotations, since Triton would compile these too. Arrays are contiguous, except the
matrices of groups. Pointers and indices of patterns, tables of groups and keys of dropout are
int64; sizes are int32. A program computes a tile of ROWS rows and COLUMNS columns, which are powers
of two, in the dtype SUMS.
"""

import triton
import triton.language as tl


@triton.jit
def gather_sum(
    out,
    indptr,
    indices,
    x,
    weights,
    num_rows,
    width,
    heads,
    per_head,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute out [num_rows, width] from x [num_cols, width] and weights [entries, heads]."""
    row, column, present = _tile(num_rows, width, ROWS, COLUMNS)
    first, stop, longest = _entries(indptr, row, num_rows)
    total = tl.zeros((ROWS, COLUMNS), SUMS)
    for step in range(longest):
        entry = first + step
        source = tl.load(indices + entry, mask=entry < stop, other=0)
        inside = (entry < stop)[:, None] & present
        value = _load(x + source[:, None] * width + column[None, :], inside, SUMS)
        if weights is not None:
            places = entry[:, None] * heads + (column // per_head)[None, :]
            value *= _load(weights + places, inside, SUMS)
        total += value
    _store(out + row[:, None] * width + column[None, :], total, present)


@triton.jit
def edge_dot(
    out,
    sources,
    destinations,
    x,
    y,
    num_edges,
    heads,
    width,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute out [edges, heads] from x [num_src, heads, width], y [num_dst, heads, width]."""
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    source = tl.load(sources + edge, mask=edge < num_edges, other=0)
    destination = tl.load(destinations + edge, mask=edge < num_edges, other=0)
    left = (source * heads + head) * width
    right = (destination * heads + head) * width
    total = tl.zeros((ROWS,), SUMS)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = (edge < num_edges)[:, None] & (column < width)[None, :]
        value = _load(x + left[:, None] + column[None, :], inside, SUMS)
        value *= _load(y + right[:, None] + column[None, :], inside, SUMS)
        total += tl.sum(value, axis=1)
    _store(out + edge * heads + head, total, edge < num_edges)


@triton.jit
def softmax(
    shares,
    own_shares,
    indptr,
    logits,
    own,
    num_rows,
    heads,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute shares [edges, heads] and own_shares [num_rows, heads] from logits and own."""
    row, column, present = _tile(num_rows, heads, ROWS, COLUMNS)
    first, stop, longest = _entries(indptr, row, num_rows)
    own_places = row[:, None] * heads + column[None, :]
    top = tl.full((ROWS, COLUMNS), float("-inf"), SUMS)
    if own is not None:
        top = _load(own + own_places, present, SUMS)
    for step in range(longest):
        places, inside = _edges(first + step, stop, column, heads, present)
        logit = tl.where(inside, _load(logits + places, inside, SUMS), float("-inf"))
        top = tl.maximum(top, logit, propagate_nan=tl.PropagateNan.ALL)
    total = tl.zeros((ROWS, COLUMNS), SUMS)
    for step in range(longest):
        places, inside = _edges(first + step, stop, column, heads, present)
        total += _exponential(logits + places, inside, top, SUMS)
    if own is not None:
        mine = _exponential(own + own_places, present, top, SUMS)
        total += mine
        _store(own_shares + own_places, mine / tl.where(present, total, 1.0), present)
    # Rows without edges, or beyond the last row, must not divide by zero.
    total = tl.where(total == 0, 1.0, total)
    for step in range(longest):
        places, inside = _edges(first + step, stop, column, heads, present)
        share = _exponential(logits + places, inside, top, SUMS) / total
        _store(shares + places, share, inside)


@triton.jit
def softmax_gradient(
    out,
    own_out,
    indptr,
    shares,
    own,
    grad,
    grad_own,
    num_rows,
    heads,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute out and own_out, the gradients of logits, from shares and their gradients."""
    row, column, present = _tile(num_rows, heads, ROWS, COLUMNS)
    first, stop, longest = _entries(indptr, row, num_rows)
    total = tl.zeros((ROWS, COLUMNS), SUMS)
    for step in range(longest):
        places, inside = _edges(first + step, stop, column, heads, present)
        total += _load(shares + places, inside, SUMS) * _load(grad + places, inside, SUMS)
    if own is not None:
        own_places = row[:, None] * heads + column[None, :]
        mine = _load(own + own_places, present, SUMS)
        upstream = _load(grad_own + own_places, present, SUMS)
        total += mine * upstream
        _store(own_out + own_places, mine * (upstream - total), present)
    for step in range(longest):
        places, inside = _edges(first + step, stop, column, heads, present)
        share = _load(shares + places, inside, SUMS)
        _store(out + places, share * (_load(grad + places, inside, SUMS) - total), inside)


@triton.jit
def grouped_rows(
    out,
    tiles,
    shifts,
    x,
    matrices,
    biases,
    sign,
    heads,
    depth,
    width,
    of_group,
    of_head,
    of_depth,
    of_width,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute out [rows, heads, width] from x [rows, heads, depth] and the matrices of groups,
    whose strides are given; a tile reads x at its own rows plus ``sign`` times a group's shift."""
    tile = tiles + tl.program_id(0) * 4
    first, group, stop = tl.load(tile), tl.load(tile + 2), tl.load(tile + 3)
    row = first + tl.arange(0, ROWS)
    is_row = tl.arange(0, ROWS) < tl.load(tile + 1)
    head = tl.program_id(2)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), SUMS)
    if biases is not None:
        total += _load(biases + group * width + column, column < width, SUMS)[None, :]
    for one in range(group, stop):
        read = (row + sign * tl.load(shifts + one)) * heads + head
        matrix = matrices + one * of_group + head * of_head
        for start in range(0, depth, DEPTH):
            inner = start + tl.arange(0, DEPTH)
            places = x + read[:, None] * depth + inner[None, :]
            left = _read(places, is_row[:, None] & (inner < depth)[None, :])
            places = matrix + inner[:, None] * of_depth + column[None, :] * of_width
            right = _read(places, (inner < depth)[:, None] & (column < width)[None, :])
            total = tl.dot(left, right, total, input_precision="ieee", out_dtype=SUMS)
    written = (row * heads + head)[:, None] * width + column[None, :]
    _store(out + written, total, is_row[:, None] & (column < width)[None, :])


@triton.jit
def grouped_gradients(
    out,
    bias_out,
    chunks,
    shifts,
    x,
    grad,
    heads,
    depth,
    width,
    of_chunk,
    of_head,
    of_depth,
    of_width,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute, for each chunk, the product of x [rows, heads, depth], transposed, with grad [rows,
    heads, width], and the sum of grad's rows."""
    chunk = tl.program_id(0)
    first, number = tl.load(chunks + chunk * 3), tl.load(chunks + chunk * 3 + 1)
    shift = tl.load(shifts + tl.load(chunks + chunk * 3 + 2))
    head = tl.program_id(2)
    tiles = tl.cdiv(width, COLUMNS)
    inner = tl.program_id(1) // tiles * DEPTH + tl.arange(0, DEPTH)
    column = tl.program_id(1) % tiles * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((DEPTH, COLUMNS), SUMS)
    of_biases = tl.zeros((COLUMNS,), SUMS)
    for start in range(0, number, ROWS):
        step = start + tl.arange(0, ROWS)
        row = first + step
        places = x + ((row + shift) * heads + head)[None, :] * depth + inner[:, None]
        left = _read(places, (step < number)[None, :] & (inner < depth)[:, None])
        places = grad + (row * heads + head)[:, None] * width + column[None, :]
        right = _read(places, (step < number)[:, None] & (column < width)[None, :])
        total = tl.dot(left, right, total, input_precision="ieee", out_dtype=SUMS)
        if bias_out is not None:
            of_biases += tl.sum(right.to(SUMS), axis=0)
    written = chunk.to(tl.int64) * of_chunk + head * of_head
    written += inner[:, None] * of_depth + column[None, :] * of_width
    _store(out + written, total, (inner < depth)[:, None] & (column < width)[None, :])
    if bias_out is not None:
        # One program of each column stores them.
        stored = tl.where(tl.program_id(1) < tiles, width, 0)
        _store(bias_out + chunk * width + column, of_biases, column < stored)


@triton.jit(do_not_specialize=["key"])
def row_keys(out, key, first, second, num_rows, ROWS: tl.constexpr):
    """Compute out [num_rows], the keys of dropout of rows that have one word or two."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    present = row < num_rows
    keys = _absorb(key.to(tl.uint64), tl.load(first + row, mask=present, other=0))
    if second is not None:
        keys = _absorb(keys, tl.load(second + row, mask=present, other=0))
    tl.store(out + row, keys.to(tl.int64), mask=present)


@triton.jit(do_not_specialize=["threshold", "skipped"])
def drop(
    out,
    x,
    keys,
    num_rows,
    width,
    threshold,
    skipped,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SUMS: tl.constexpr,
):
    """Compute out [num_rows, width], the elements of x that their lanes keep, and scale them; a row
    begins at lane ``skipped``."""
    row, column, present = _tile(num_rows, width, ROWS, COLUMNS)
    key = tl.load(keys + row, mask=row < num_rows, other=0).to(tl.uint64)
    lane = (column + skipped)[None, :]
    word = _mix(key[:, None] + (lane // 4 + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    value = (word >> (16 * (lane % 4)).to(tl.uint64)) & 0xFFFF
    places = row[:, None] * width + column[None, :]
    scale = (1.0 / (1.0 - threshold.to(tl.float64) / 65536)).to(SUMS)
    scaled = _load(x + places, present, SUMS) * scale
    _store(out + places, tl.where(value >= threshold, scaled, 0.0), present)


@triton.jit
def _absorb(key, word):
    """Return the key that has absorbed a word (docs/inside/dropout.md)."""
    return _mix(key ^ _mix(word.to(tl.uint64) + 0x9E3779B97F4A7C15))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _tile(num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return this program's rows and columns, and a mask of those that exist."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return row, column, (row < num_rows)[:, None] & (column < width)[None, :]


@triton.jit
def _entries(indptr, row, num_rows):
    """Return the first and the end of each row's entries, and the most entries of any row."""
    first = tl.load(indptr + row, mask=row < num_rows, other=0)
    stop = tl.load(indptr + row + 1, mask=row < num_rows, other=0)
    return first, stop, tl.max(stop - first, axis=0)


@triton.jit
def _edges(entry, stop, column, heads, present):
    """Return the offsets of one edge of every row for all heads, and a mask of those that exist."""
    return entry[:, None] * heads + column[None, :], (entry < stop)[:, None] & present


@triton.jit
def _exponential(logits, inside, top, SUMS: tl.constexpr):
    return tl.exp(tl.where(inside, _load(logits, inside, SUMS) - top, float("-inf")))


@triton.jit
def _read(places, inside):
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def _load(places, inside, SUMS: tl.constexpr):
    return _read(places, inside).to(SUMS)


@triton.jit
def _store(places, values, inside):
    tl.store(places, values.to(places.dtype.element_ty), mask=inside)
