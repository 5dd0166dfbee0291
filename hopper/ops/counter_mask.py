"""Counter-based dropout, whose masks are a pure function of integers.

docs/inside/dropout.md specifies it, with test vectors. The mask of a row depends on the iteration,
the layer, the site, and the node or edge of the row. It never depends on where the row is computed,
or with which other rows. Masks are not stored, since the backward pass draws them again.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import Any, Final

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draws.counter import GOLDEN, absorb, absorb_each, mix
from cache_server.kernel import kernel
from hopper.device.kernel_threads import FEW_NUMBERS, threads_for
from hopper.errors import ConfigError, RequestError
from hopper.ops import selection
from hopper.ops.linear_map import linear_map

LANES: Final = 4
"""The 16-bit lanes of one 64-bit variate. One lane decides one element."""
_LANE_VALUES: Final = 1 << 16


class Site(IntEnum):
    """A place in a layer at which a mask is applied. Sites never share masks."""

    ROWS = 0
    """the layer's input rows, keyed by node type and original id"""
    EDGES = 1
    """a value per edge and head, keyed by relation, destination and position"""
    SELF = 2
    """a destination's attention to itself per head, keyed by relation and destination"""


def drop_threshold(p: float) -> int:
    """Return the lane value below which an element is dropped: ``round(p * 65536)``.

    A ConfigError tells that p is outside [0, 1), or so close to 1 that every element would be
    dropped.
    """
    if not (0.0 <= p < 1.0) or round(p * _LANE_VALUES) == _LANE_VALUES:
        raise ConfigError(f"dropout: expected a probability in [0, 1 - 2**-17); given {p!r}")
    return round(p * _LANE_VALUES)


def site_key(iteration_key: int, layer: int, site: Site, type_key: int) -> int:
    """Return the uint64 key of one site of one layer in one iteration.

    It is made of ``Nodes.iteration_key`` and the uint64 key of the node type
    (:func:`node_type_key`) or of the relation (``Relation.draw_key``).
    """
    key = np.uint64(iteration_key)
    for word in (layer, int(site), type_key):
        key = np.uint64(absorb(key, np.uint64(word)))
    return int(key)


def row_keys(key: int, original_ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """Return the key of each row of a site, [n] int64 (the bits of uint64).

    It is made of :func:`site_key` and the [n] int64 original ids of nodes. For edges these are the
    ids of their destinations, and the [n] int64 positions in the destinations' neighbour lists are
    given too.
    """
    if (kernels := selection.triton_for(original_ids.device)) is not None:
        return kernels.row_keys(_to_signed(key), original_ids, positions)
    if original_ids.device.type == "cpu":
        site, ids = np.uint64(key), original_ids.contiguous().numpy()
        with threads_for(ids.size, FEW_NUMBERS):
            if positions is None:
                keys = absorb_each(site, ids)
            else:
                keys = _absorb_pairs(site, ids, positions.contiguous().numpy())
        return torch.from_numpy(keys.view(np.int64))
    first = _absorb(torch.full_like(original_ids, _to_signed(key)), original_ids)
    return first if positions is None else _absorb(first, positions)


def keep_mask(keys: Tensor, width: int, threshold: int, first: int = 0) -> Tensor:
    """Return which elements are not dropped, [n, width] bool, by torch on any device.

    Keys are [n] int64 of :func:`row_keys`, and the threshold is one of
    :func:`drop_threshold`. ``first`` is the index of the first element in its row, if other servers
    have those before it.
    """
    skipped_words, skipped_lanes = divmod(first, LANES)
    end = -(-(first + width) // LANES)
    counters = torch.arange(skipped_words + 1, end + 1, device=keys.device)
    words = _mix(keys.unsqueeze(1) + counters * _to_signed(GOLDEN))
    # Lanes as int16 keep their unsigned order once the sign bit is flipped (little-endian).
    signed = words.view(torch.int16)[:, skipped_lanes : skipped_lanes + width]
    lanes = signed ^ -(_LANE_VALUES // 2)
    return lanes >= threshold - _LANE_VALUES // 2


def drop(x: Tensor, keys: Tensor, threshold: int, first: int = 0) -> Tensor:
    """Drop elements of x, and scale the others by 1 / (1 - threshold / 65536).

    x is [n, ...] floating point, whose elements are counted in row-major order within a row. Keys
    are [n] int64 on x's device; a RequestError tells that there is not one for each row. ``first``
    is as in :func:`keep_mask`.
    """
    if threshold == 0:
        return x
    if x.dim() == 0 or keys.shape != x.shape[:1]:
        raise RequestError(
            f"dropout: expected one key per row of x {list(x.shape)}; given {list(keys.shape)}"
        )
    # The gradient's mask is made again from the keys, so that no mask is stored.
    apply = partial(drop_and_scale, keys=keys, threshold=threshold, first=first)
    return linear_map(x, apply, apply)


def drop_and_scale(x: Tensor, keys: Tensor, threshold: int, first: int = 0) -> Tensor:
    """Compute :func:`drop` without a gradient; ``threshold`` must be above 0."""
    if x.numel() == 0:
        return torch.empty_like(x)
    rows = x.detach().reshape(x.shape[0], -1).contiguous()
    if (kernels := selection.triton_for(x.device)) is not None:
        return kernels.drop(rows, keys, threshold, first).view(x.shape)
    scale = 1.0 / (1.0 - threshold / _LANE_VALUES)
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        values = rows.numpy()
        out = np.empty_like(values)
        bits = keys.contiguous().numpy().view(np.uint64)
        with threads_for(values.size, FEW_NUMBERS):
            numbers = np.uint16(threshold), values.dtype.type(scale)
            _drop_and_scale_rows(values, bits, *numbers, first, out)
        return torch.from_numpy(out).view(x.shape)
    is_kept = keep_mask(keys, rows.shape[1], threshold, first)
    return torch.where(is_kept, rows * scale, rows.new_zeros(())).view(x.shape)


@kernel(parallel=True)
def _drop_and_scale_rows(
    x: NDArray[Any],
    keys: NDArray[np.uint64],
    threshold: np.uint16,
    scale: Any,
    first: int,
    out: NDArray[Any],
) -> None:
    zero, width = x.dtype.type(0), x.shape[1]
    skipped = first // 4
    words = (first + width + 3) // 4 - skipped
    for row in numba.prange(x.shape[0]):
        # All words of a row first: both loops are then vectorised (little-endian).
        drawn = np.empty(words, np.uint64)
        counter = keys[row] + np.uint64(skipped) * np.uint64(GOLDEN)
        for word in range(words):
            counter += np.uint64(GOLDEN)
            drawn[word] = mix(counter)
        lanes = drawn.view(np.uint16)[first % 4 :]
        values, results = x[row], out[row]
        for j in range(width):
            results[j] = values[j] * scale if lanes[j] >= threshold else zero


@kernel(parallel=True)
def _absorb_pairs(
    key: np.uint64, first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.uint64]:
    out = np.empty(first.size, np.uint64)
    for i in numba.prange(first.size):
        out[i] = absorb(absorb(key, np.uint64(first[i])), np.uint64(second[i]))
    return out


def _absorb(keys: Tensor, words: Tensor) -> Tensor:
    """Compute ``draw.absorb`` on int64 bit patterns; torch's int64 arithmetic wraps around."""
    return _mix(keys ^ _mix(words + _to_signed(GOLDEN)))


def _mix(x: Tensor) -> Tensor:
    """Compute ``draw.mix`` on int64 bit patterns."""
    x = (x ^ _shift_right(x, 30)) * _to_signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _to_signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, places: int) -> Tensor:
    """Shift right without copying the sign bit, as torch's operator would."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def _to_signed(word: int) -> int:
    """Return the int64 with the same bits as a uint64."""
    return word - (1 << 64) if word >= 1 << 63 else word
