"""The counter-based draw: every random decision as a pure function of integers.

Specified, with test vectors, in docs/draws.md. Only 64-bit unsigned integer arithmetic (wrapping)
is used, so any language or device can draw the same numbers. Sources: SplitMix64's finaliser
(Steele, Lea and Flood, OOPSLA 2014), Floyd's sampling without replacement (Bentley and Floyd,
CACM 30(9), 1987), multiply-high range reduction (Lemire, ACM TOMACS 29(1), 2019).
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from cache_server.kernel import kernel

VERSION: Final = 2
"""of docs/draws.md: what began under another one draws otherwise"""
GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 0xFFFFFFFFFFFFFFFF

# The first word absorbed says what is drawn, so that no two uses share a stream.
NEIGHBOURS: Final = 1
ROOTS: Final = 2
DROPOUT: Final = 3
SYNTHESIS: Final = 4
LAYERS: Final = 5
LABOR: Final = 6
MERGING: Final = 8
LEARNABLE: Final = 9
NEGATIVES: Final = 10
ARRIVALS: Final = 11

# Of the network that permutes roots; fewer bits give too few functions for a good round.
_ROUNDS: Final = 8
_LEAST_BITS: Final = 8

# Up to this many draws, scanning what was drawn is cheaper than a hash set.
_SCANNED: Final = 48


@kernel
def mix(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def absorb(key: np.uint64, word: np.uint64) -> np.uint64:
    """Extend a key by one word."""
    return mix(key ^ mix(word + np.uint64(GOLDEN)))


@kernel
def variate(key: np.uint64, counter: np.uint64) -> np.uint64:
    """The counter-th 64-bit variate of a key."""
    return mix(key + (counter + np.uint64(1)) * np.uint64(GOLDEN))


@intrinsic
def _high_word(typing_context: Any, x: Any, y: Any) -> Any:
    """The high 64 bits of the 128-bit product of two uint64: one machine instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@kernel
def below(x: np.uint64, bound: np.uint64) -> np.uint64:
    """Map a variate to [0, bound): the high word of the 128-bit product."""
    return _high_word(x, bound)


@kernel
def draw_positions(
    key: np.uint64, population: np.int64, count: np.int64, out: NDArray[np.int64]
) -> None:
    """Write ``count`` distinct positions of [0, population) to ``out[:count]``.

    Floyd's algorithm, in the order of its draws; all positions, ascending, where ``count`` equals
    ``population``. Requires 0 <= count <= population.
    """
    if count == population:
        for i in range(count):
            out[i] = i
        return
    if count > _SCANNED:
        _draw_many(key, population, count, out)
        return
    # One bit for every residue modulo 64 drawn so far: usually settles without a scan that a pick
    # is new, and is exact where the population has no more than 64 members.
    seen = np.uint64(0)
    for i in range(count):
        top = population - count + i
        pick = np.int64(below(variate(key, np.uint64(i)), np.uint64(top + 1)))
        if (seen >> np.uint64(pick & 63)) & np.uint64(1) and (
            population <= 64 or _contains(out, i, pick)
        ):
            pick = top
        seen |= np.uint64(1) << np.uint64(pick & 63)
        out[i] = pick


@kernel
def _contains(values: NDArray[np.int64], size: int, wanted: np.int64) -> bool:
    found = False
    for j in range(size):
        found |= values[j] == wanted
    return found


@kernel
def _draw_many(
    key: np.uint64, population: np.int64, count: np.int64, out: NDArray[np.int64]
) -> None:
    """The same draws with a hash set in place of the scan over what was drawn."""
    bits = np.uint64(2)
    while (np.int64(1) << np.int64(bits)) < 2 * count:
        bits += np.uint64(1)
    mask = (np.int64(1) << np.int64(bits)) - 1
    drawn = np.full(mask + 1, -1, np.int64)
    for i in range(count):
        top = population - count + i
        pick = np.int64(below(variate(key, np.uint64(i)), np.uint64(top + 1)))
        slot = np.int64(mix(np.uint64(pick))) & mask
        while drawn[slot] != -1 and drawn[slot] != pick:
            slot = (slot + 1) & mask
        if drawn[slot] == pick:
            # ``top`` exceeds everything drawn so far, so it is new.
            pick = top
            slot = np.int64(mix(np.uint64(pick))) & mask
            while drawn[slot] != -1:
                slot = (slot + 1) & mask
        drawn[slot] = pick
        out[i] = pick


def key_of(*words: int) -> int:
    """The key of a sequence of integer words (each taken modulo 2**64), in plain Python.

    Agrees with repeated :func:`absorb` from the key 0.
    """
    key = 0
    for word in words:
        key = _mix_int(key ^ _mix_int((word + GOLDEN) & _MASK))
    return key


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@kernel(parallel=True)
def absorb_each(key: np.uint64, words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[n] uint64: ``absorb(key, word)`` for every word of an int64 array."""
    out = np.empty(words.size, np.uint64)
    for i in numba.prange(words.size):
        out[i] = absorb(key, np.uint64(words[i]))
    return out


@kernel
def _permute(
    keys: NDArray[np.uint64], count: np.uint64, bits: np.uint64, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[n] int64: where the bijection takes each place; ``bits`` of the range that it is of."""
    low = bits - bits // np.uint64(2)
    high_shift, low_shift = np.uint64(64) - (bits - low), np.uint64(64) - low
    mask = (np.uint64(1) << low) - np.uint64(1)
    out = np.empty(places.size, np.int64)
    for i in range(places.size):
        x = np.uint64(places[i])
        while True:
            left, right = x >> low, x & mask
            for pair in range(keys.size // 2):
                left ^= variate(keys[2 * pair], right) >> high_shift
                right ^= variate(keys[2 * pair + 1], left) >> low_shift
            x = left << low | right
            if x < count:
                break
        out[i] = x
    return out


def permuted(seed: int, epoch: int, count: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """What stands at some places of the order in which an epoch visits its roots.

    A keyed bijection of [0, count): a Feistel network with cycle walking (Black and Rogaway,
    CT-RSA 2002), so that no array is as long as there are roots.

    Parameters
    ----------
    count: of the roots, counted in ascending order of their original ids. places: [n] int64.

    Returns
    -------
    [n] int64, of [0, count): the root at each place.
    """
    key = key_of(ROOTS, seed, epoch)
    keys = absorb_each(np.uint64(key), np.arange(_ROUNDS))
    bits = max(_LEAST_BITS, (count - 1).bit_length())
    return _permute(keys, np.uint64(count), np.uint64(bits), np.asarray(places, np.int64))
