"""The counter-based draw, which makes every random decision a pure function of integers.

Any language or device can draw the same numbers. Specified, with sources and test vectors, in
docs/inside/draws.md.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from cache_server.draws.spec import DrawKey
from cache_server.kernel import kernel

GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 0xFFFFFFFFFFFFFFFF

# The first absorbed word names the use of a key, so that no two uses share a stream.
NEIGHBORS: Final = 1
ROOTS: Final = 2
DROPOUT: Final = 3
SYNTHESIS: Final = 4
LAYERS: Final = 5
LABOR: Final = 6
MERGING: Final = 8
LEARNABLE: Final = 9
NEGATIVES: Final = 10
PHASES: Final = 12

_MOST_SCANNED: Final = 48
"""up to this many draws, a scan of earlier draws is cheaper than a hash set"""


@kernel
def mix(x: np.uint64) -> np.uint64:
    """Apply SplitMix64's finaliser, a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def absorb(key: np.uint64, word: np.uint64) -> np.uint64:
    """Return a key extended by one word."""
    return mix(key ^ mix(word + np.uint64(GOLDEN)))


@kernel
def variate(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return the 64-bit variate of a key with index ``counter``."""
    return mix(key + (counter + np.uint64(1)) * np.uint64(GOLDEN))


@intrinsic
def _high_word(typing_context: Any, x: Any, y: Any) -> Any:
    """Return the high 64 bits of the 128-bit product of two uint64, in one machine instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@kernel
def below(x: np.uint64, bound: np.uint64) -> np.uint64:
    """Map a variate to [0, bound) by the high word of their 128-bit product."""
    return _high_word(x, bound)


@kernel
def draw_positions(
    key: np.uint64, population: np.int64, count: np.int64, out: NDArray[np.int64]
) -> None:
    """Write ``count`` distinct positions of [0, population) to ``out[:count]``, in the order of
    Floyd's algorithm, or ascending if these are all."""
    if count == population:
        for i in range(count):
            out[i] = i
        return
    if count > _MOST_SCANNED:
        _draw_many(key, population, count, out)
        return
    # One bit for each residue modulo 64 drawn so far. A clear bit proves without a scan that a pick
    # is new. For a population of at most 64 a set bit proves that it is not.
    picks = np.uint64(0)
    for i in range(count):
        top = population - count + i
        pick = np.int64(below(variate(key, np.uint64(i)), np.uint64(top + 1)))
        if (picks >> np.uint64(pick & 63)) & np.uint64(1) and (
            population <= 64 or _contains(out, i, pick)
        ):
            pick = top
        picks |= np.uint64(1) << np.uint64(pick & 63)
        out[i] = pick


@kernel
def _contains(values: NDArray[np.int64], size: int, value: np.int64) -> bool:
    is_contained = False
    for j in range(size):
        is_contained |= values[j] == value
    return is_contained


@kernel
def _draw_many(
    key: np.uint64, population: np.int64, count: np.int64, out: NDArray[np.int64]
) -> None:
    """Make the draws of :func:`draw_positions` with a hash set instead of a scan."""
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
            # ``top`` exceeds all earlier draws, so it is new.
            pick = top
            slot = np.int64(mix(np.uint64(pick))) & mask
            while drawn[slot] != -1:
                slot = (slot + 1) & mask
        drawn[slot] = pick
        out[i] = pick


def key_of(*words: int) -> int:
    """Return the key of words, modulo 2**64: :func:`absorb` of each in turn, from the key 0."""
    key = 0
    for word in words:
        key = _mix_int(key ^ _mix_int((word + GOLDEN) & _MASK))
    return key


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def draw_key(
    use: int,
    seed: int,
    epoch: int,
    iteration: int,
    hop: int,
    relation_key: int,
    dependence: int = 1,
) -> DrawKey:
    """Make the key of a relation's draws at a hop (docs/inside/draws.md, "The key of a node"); the
    hop is 0 if a node draws the same wherever it appears."""
    period, elapsed = divmod(iteration, dependence)
    keys = [key_of(use, seed, epoch, period + ahead, hop, relation_key) for ahead in (0, 1)]
    return DrawKey(*(np.uint64(word) for word in (*keys, dependence, elapsed)))


_PHASE_KEY: Final = key_of(PHASES)


@kernel
def node_key(
    now: np.uint64, later: np.uint64, dependence: np.uint64, elapsed: np.uint64, node: np.int64
) -> np.uint64:
    """Return the key of the draws of an original id, given the fields of a :class:`DrawKey`."""
    word = np.uint64(node)
    if dependence > np.uint64(1):
        phase = below(absorb(np.uint64(_PHASE_KEY), word), dependence)
        if phase + elapsed >= dependence:
            return absorb(later, word)
    return absorb(now, word)


@kernel(parallel=True)
def node_keys(key: DrawKey, nodes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return [n] uint64: the keys of the draws of nodes, given as original ids."""
    now, later, dependence, elapsed = key
    out = np.empty(nodes.size, np.uint64)
    for i in numba.prange(nodes.size):
        out[i] = node_key(now, later, dependence, elapsed, nodes[i])
    return out


@kernel(parallel=True)
def absorb_each(key: np.uint64, words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return [n] uint64: ``absorb(key, word)`` for every word of an int64 array."""
    out = np.empty(words.size, np.uint64)
    for i in numba.prange(words.size):
        out[i] = absorb(key, np.uint64(words[i]))
    return out
