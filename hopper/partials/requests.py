"""What ranks tell the owners of the sources that they found: which rows, and which sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster import Cluster
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.partials.plan import Weighted
from hopper.partials.wire import Kind, Sums

_WORD: Final = np.dtype(np.int32)

Words = NDArray[np.int32]


@dataclass(frozen=True)
class SumEdges:
    """The edges of one relation that another rank adds up, in order of their sums.

    ends: [sums] int32, the edges of each sum; as they are told, [n] int32, the sum of each edge,
    where that is not longer. ids: [n] int32 sources. weights: [n].
    """

    ends: Words
    ids: Words
    weights: NDArray[Any]

    @classmethod
    def join(cls, parts: Sequence[SumEdges]) -> SumEdges:
        """Those of several ranks, of which the sums stand behind one another."""
        names = ("ends", "ids", "weights")
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))

    def block(self, relation: Relation, rows: NDArray[np.int64], num_src: int) -> Weighted:
        """The sums as a pattern over rows.

        Parameters
        ----------
        rows: [n], of the sources.
        """
        indptr = np.zeros(self.ends.size + 1, np.int64)
        np.cumsum(self.ends, out=indptr[1:])
        block = Block.of_edges(relation, indptr, rows, num_src)
        return block, torch.from_numpy(self.weights)


@dataclass(frozen=True)
class Request:
    """What a rank wants of another for one hop.

    rows: by kind, [n] int32 ids whose rows. sums: by type of destinations, how many sums.
    edges: by relation, of the sums.
    """

    rows: dict[Kind, Words] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)
    edges: dict[Relation, SumEdges] = field(default_factory=dict)


class Language:
    """How requests for the rows of one layer are told.

    Parameters
    ----------
    kinds: of rows, in order. relations: that may be added up, in order.
    number: dtype of weights.
    """

    def __init__(
        self, kinds: Sequence[Kind], relations: Sequence[Relation], number: np.dtype[Any]
    ) -> None:
        self._rows = [each for each in kinds if not isinstance(each, Sums)]
        self._sums = [each.node_type for each in kinds if isinstance(each, Sums)]
        self._edges = [each for each in relations if each.dst in self._sums]
        self._number = number
        self._words = number.itemsize // _WORD.itemsize

    def header(self, request: Request) -> Words:
        """How long everything is."""
        return np.array(
            [
                *(request.rows[each].size if each in request.rows else 0 for each in self._rows),
                *(request.sums.get(each, 0) for each in self._sums),
                *(request.edges[e].ids.size if e in request.edges else 0 for e in self._edges),
            ],
            _WORD,
        )

    def words(self, request: Request) -> Words:
        """All of it as one array."""
        parts = [request.rows[each] for each in self._rows if each in request.rows]
        for each in self._edges:
            if each in request.edges:
                edges = request.edges[each]
                parts += [edges.ends, edges.ids, edges.weights.view(_WORD)]
        return np.concatenate(parts) if parts else np.empty(0, _WORD)

    def count_words(self, header: Words) -> int:
        """How many :meth:`words` follow a header."""
        rows, sums, edges = self._apart(header)
        ends = sum(min(sums[each.dst], count) for each, count in edges.items())
        return sum(rows.values()) + ends + (1 + self._words) * sum(edges.values())

    def read(self, header: Words, words: Words) -> Request:
        """From what was sent."""
        rows, sums, edges = self._apart(header)
        at = 0

        def take(count: int) -> Words:
            nonlocal at
            at += count
            return words[at - count : at]

        found = Request({each: take(count) for each, count in rows.items()}, sums)
        for each, count in edges.items():
            total = sums[each.dst]
            ends, ids = take(min(total, count)), take(count)
            weights = take(count * self._words).copy().view(self._number)
            sizes = ends if total < count else np.bincount(ends, minlength=total).astype(_WORD)
            found.edges[each] = SumEdges(sizes, ids, weights)
        return found

    def _apart(self, header: Words) -> tuple[dict[Kind, int], dict[str, int], dict[Relation, int]]:
        first, second = len(self._rows), len(self._rows) + len(self._sums)
        counts = header.tolist()
        return (
            dict(zip(self._rows, counts[:first], strict=True)),
            dict(zip(self._sums, counts[first:second], strict=True)),
            dict(zip(self._edges, counts[second:], strict=True)),
        )


def ask_owners(
    cluster: Cluster, language: Language, requests: Sequence[Request], where: str
) -> list[Request]:
    """Tell every rank what is wanted of it, lengths first; what every rank wants of this one.

    Parameters
    ----------
    requests: by rank; every rank has to call it.
    where: names the moment in errors.
    """
    headers = cluster.exchange(
        [torch.from_numpy(language.header(each)[None]) for each in requests],
        [1] * cluster.world,
        "control",
        f"planning, {where}",
    )
    shapes = [header[0].numpy() for header in headers]
    arrived = cluster.exchange(
        [torch.from_numpy(language.words(each)) for each in requests],
        [language.count_words(shape) for shape in shapes],
        "topology",
        f"telling which rows are needed, {where}",
    )
    return [
        language.read(shape, words.numpy()) for shape, words in zip(shapes, arrived, strict=True)
    ]
