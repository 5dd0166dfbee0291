"""The draws of docs/inside/draws.md and a sampler made of them, in plain Python and from the page
alone: an independent implementation of the specification.

Nothing here imports the code under test: ids are original ids, integers are Python's, sets are
sets.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

WORDS = 1 << 64
GOLDEN = 0x9E3779B97F4A7C15
NEIGHBORS, ROOTS, LAYERS, LABOR, PHASES = 1, 2, 5, 6, 12

Triple = tuple[str, str, str]
Edge = tuple[int, int]
"""(source, destination)"""


@dataclass
class ReferenceSubgraph:
    """A subgraph of the reference sampler, in original ids."""

    nodes: dict[str, list[int]]
    """per type, in order of discovery"""
    sizes: list[dict[str, int]]
    """frontier sizes before each hop, and after the last"""
    edges: list[dict[Triple, list[tuple[int, int, int]]]] = field(default_factory=list)
    """per hop and relation: (destination, position, source) in order"""


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORDS
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORDS
    return x ^ (x >> 31)


def absorb(key: int, word: int) -> int:
    return mix(key ^ mix((word + GOLDEN) % WORDS))


def variate(key: int, counter: int) -> int:
    return mix((key + (counter + 1) * GOLDEN) % WORDS)


def below(x: int, bound: int) -> int:
    return x * bound // WORDS


def key(*words: int) -> int:
    key = 0
    for word in words:
        key = absorb(key, word % WORDS)
    return key


def node_key(
    use: int,
    moment: Sequence[int],
    node: int,
    *,
    draws_once: bool = False,
    dependence: int = 1,
) -> int:
    """Return the key of a node's draws; moment = (seed, epoch, iteration, hop, relation)."""
    seed, epoch, iteration, hop, relation = moment
    phase = below(key(PHASES, node), dependence)
    period = (iteration + phase) // dependence
    return key(use, seed, epoch, period, 0 if draws_once else hop, relation, node)


def relation_key(relation: Sequence[str]) -> int:
    digest = hashlib.sha256("\0".join(relation).encode("utf-8")).digest()
    return sum(byte << (8 * place) for place, byte in enumerate(digest[:8]))


def positions(key: int, population: int, count: int) -> list[int]:
    if count == population:
        return list(range(population))
    drawn: list[int] = []
    for i in range(count):
        top = population - count + i
        pick = below(variate(key, i), top + 1)
        drawn.append(top if pick in drawn else pick)
    return drawn


def by_weight(key: int, units: Sequence[int], size: int, replace: bool) -> list[int]:
    """Draw positions of a list in proportion to units."""

    def pick(left: Sequence[int], counter: int) -> int:
        x = below(variate(key, counter), sum(left))
        return next(p for p in range(len(left)) if sum(left[: p + 1]) > x)

    if replace:
        return [pick(units, i) for i in range(size if units else 0)]
    if len(units) <= size:
        return list(range(len(units)))
    drawn: list[int] = []
    for attempt in range(2 * size + 4 if len(units) > 128 else 0):
        place = pick(units, attempt)
        drawn += [place] if place not in drawn and len(drawn) < size else []
    while len(drawn) < size:
        left = [0 if place in drawn else u for place, u in enumerate(units)]
        drawn.append(pick(left, (1 << 32) + len(drawn)))
    return drawn


def weights(edges: Sequence[Edge]) -> dict[int, int]:
    """Return the weight in layer samples of each source that has an edge."""
    shares, out_degrees = Counter[int](), Counter(u for u, _ in edges)
    in_degrees = Counter(v for _, v in edges)
    for u, v in edges:
        shares[u] += (1 << 32) // (in_degrees[v] + 1)
    return {u: max(1, shares[u] // (out_degrees[u] + 1)) for u in out_degrees}


def thresholds(weights: Mapping[int, int], size: int) -> dict[int, int]:
    """Return for each source the least variate, of 2^64, that leaves it out of a sample."""
    total = max(1, sum(weights.values()))
    return {
        u: WORDS if w * size >= total else w * (size * WORDS // total) for u, w in weights.items()
    }


def places(
    kind: str,
    edges: Sequence[Edge],
    key: tuple[int, ...],
    node: int,
    size: int,
    options: Mapping[str, int],
) -> list[int]:
    """Draw positions of a node's neighbor list; ``key`` lacks its first and last word."""
    neighbors = sorted(u for u, v in edges if v == node)
    degree = len(neighbors)
    if size < 0:
        return list(range(degree))
    if kind == "node":
        return positions(node_key(NEIGHBORS, key, node, **options), degree, min(degree, size))
    word = LABOR if kind == "labor" else LAYERS
    variates = [variate(node_key(word, key, u, **options), 0) for u in neighbors]
    if kind == "labor":
        return [i for i, r in enumerate(variates) if Fraction(r * degree, WORDS) < size]
    limits = thresholds(weights(edges), size)
    return [i for i, u in enumerate(neighbors) if variates[i] < limits[u]]


def order(seed: int, epoch: int, count: int) -> list[int]:
    """Return which of ``count`` roots is at each place of an epoch."""
    bits = max(8, len(bin(count - 1)) - 2)
    high = bits // 2
    low = bits - high
    keys = [key(ROOTS, seed, epoch, number) for number in range(8)]
    roots = []
    for x in range(count):
        walking = True
        while walking:
            left, right = divmod(x, 1 << low)
            for even, odd in zip(keys[::2], keys[1::2], strict=True):
                left ^= variate(even, right) >> (64 - high)
                right ^= variate(odd, left) >> (64 - low)
            x = (left << low) + right
            walking = x >= count
        roots.append(x)
    return roots


def sample(
    relations: Mapping[Triple, Sequence[Edge]],
    types: Sequence[str],
    target: str,
    roots: Sequence[int],
    fanouts: Sequence[int],
    moment: tuple[int, int, int],
    kind: str = "node",
    **options: int,
) -> ReferenceSubgraph:
    """Sample, given edges in order of edge id and ``moment`` = (seed, epoch, iteration).

    ``fanouts`` are the sizes of layers where ``kind`` is "layer"; options are those of
    :func:`node_key`.
    """
    subgraph = ReferenceSubgraph({name: [] for name in types}, [])
    subgraph.nodes[target] += roots
    subgraph.sizes.append({name: len(ids) for name, ids in subgraph.nodes.items()})
    for hop, fanout in enumerate(fanouts):
        frontier = {name: list(ids) for name, ids in subgraph.nodes.items()}
        subgraph.edges.append({})
        for relation in sorted(relations):
            key = (*moment, hop, relation_key(relation))
            drawn = []
            for node in frontier[relation[2]]:
                # Python's sort is stable: parallel edges stay in order of edge id.
                neighbors = sorted(u for u, v in relations[relation] if v == node)
                drawn_places = places(kind, relations[relation], key, node, fanout, options)
                for place in drawn_places:
                    drawn.append((node, place, neighbors[place]))
                    if neighbors[place] not in subgraph.nodes[relation[0]]:
                        subgraph.nodes[relation[0]].append(neighbors[place])
            subgraph.edges[-1][relation] = drawn
        subgraph.sizes.append({name: len(ids) for name, ids in subgraph.nodes.items()})
    return subgraph
