"""Decoders, which compute predictions of edges from the rows of their ends.

Those of links return scores, and those of labelled edges logits. A decoder with parameters has some
for each target relation. Sources: DistMult (Yang et al., ICLR 2015), ComplEx (Trouillon et al.,
ICML 2016), RotatE (Sun et al., ICLR 2019), bilinear (van den Berg et al., Graph Convolutional
Matrix Completion, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from hopper.errors import ConfigError
from hopper.tasks.target import Side


class Decoder(nn.Module):
    """Scores pairs of rows: the base class of all decoders of links.

    A decoder's class is called with the keywords ``width`` (of a row) and ``relations`` (number of
    target relations), and the options of the configuration.
    """

    is_bilinear: ClassVar[bool] = False
    """whether a score is the dot product of :meth:`query` and the row at the other end, so that
    scores against all nodes are a matrix product"""
    row_width: int = 0
    """width of the rows that the decoder was made for; set by
    :func:`hopper.tasks.scores.make_decoder`"""

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of pairs: [n, c]. A larger score means a likelier link.

        A pair's score must depend on its own rows and relation alone.

        Parameters
        ----------
        heads, tails: [n or 1, c or 1, width], which broadcast to [n, c, width].
        relations: [n] int64, numbers of target relations.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors by which a bilinear decoder multiplies rows at the other end.

        Parameters
        ----------
        rows: [n, width], the known rows.
        relations: [n] int64, numbers of target relations.
        side: the end that is searched.

        Returns
        -------
        [n, width].
        """
        raise NotImplementedError(f"{type(self).__name__} defines no query()")

    def against_all(
        self, rows: Tensor, relations: Tensor, candidates: Tensor, side: Side
    ) -> Tensor:
        """Return the scores of every known row with every candidate: [n, m].

        Parameters
        ----------
        rows: [n, width], the known rows.
        relations: [n] int64, numbers of target relations.
        candidates: [m, width], rows for the end that is searched.
        side: the end that is searched.
        """
        if self.is_bilinear:
            return self.query(rows, relations, side) @ candidates.T
        known, searched = rows.unsqueeze(1), candidates.unsqueeze(0)
        heads, tails = (known, searched) if side == "tail" else (searched, known)
        scores: Tensor = self(heads, relations, tails)
        return scores


class Dot(Decoder):
    """The dot product of both rows, the same for all relations."""

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__()

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of pairs; see :meth:`Decoder.forward`."""
        return (heads * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors to multiply rows by; see :meth:`Decoder.query`."""
        return rows


class _RelationDecoder(Decoder):
    """A decoder with a parameter vector for each relation."""

    def __init__(self, relations: int, width: int) -> None:
        super().__init__()
        self.relations = nn.Parameter(torch.empty(relations, width))

    def _of(self, relations: Tensor) -> Tensor:
        """Return the vectors of relations: [n, 1, ...]."""
        return self.relations.index_select(0, relations).unsqueeze(1)


class DistMult(_RelationDecoder):
    """Scores are ``sum(head * relation * tail)``."""

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__(relations, width)
        nn.init.uniform_(self.relations, 0.5, 1.5)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of pairs; see :meth:`Decoder.forward`."""
        return (heads * self._of(relations) * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the scores of pairs; see :meth:`Decoder.forward`."""
        return rows * self.relations.index_select(0, relations)


class ComplEx(_RelationDecoder):
    """Scores are the real part of ``sum(head * relation * conj(tail))``.

    The first half of a row has real parts, the second half imaginary parts.
    """

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        _check_even("complex", width)
        super().__init__(relations, width)
        nn.init.uniform_(self.relations, -1.0, 1.0)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of pairs; see :meth:`Decoder.forward`."""
        return (_times(heads, self._of(relations)) * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors to multiply rows by; see :meth:`Decoder.query`."""
        vectors = self.relations.index_select(0, relations)
        # Re(h r conj(t)) equals Re(conj(conj(r) t) h), so the relation is conjugated for heads.
        return _times(rows, vectors if side == "tail" else _conjugate(vectors))


class RotatE(_RelationDecoder):
    """Scores are ``margin - sum |head rotated by the relation's angles - tail|``.

    Rows have the form that :class:`ComplEx` reads.

    Parameters
    ----------
    margin: the score of a pair whose rotated head equals its tail.
    """

    def __init__(self, *, width: int, relations: int, margin: float = 12.0) -> None:
        _check_even("rotate", width)
        super().__init__(relations, width // 2)
        self._margin = margin
        nn.init.uniform_(self.relations, -math.pi, math.pi)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of pairs; see :meth:`Decoder.forward`."""
        angles = self._of(relations)
        difference = _times(heads, torch.cat((angles.cos(), angles.sin()), -1)) - tails
        real, imaginary = difference.chunk(2, -1)
        # The square root has no derivative at 0.
        lengths = (real.square() + imaginary.square()).clamp_min(1e-24).sqrt()
        return self._margin - lengths.sum(-1)


class Mlp(Decoder):
    """A perceptron of two layers over both concatenated rows, with a last layer per relation.

    Parameters
    ----------
    hidden: width of the inner layer; 0 = that of a row.
    """

    def __init__(self, *, width: int, relations: int, hidden: int = 0) -> None:
        super().__init__()
        inner = hidden or width
        self.head = nn.Linear(width, inner)
        self.tail = nn.Linear(width, inner, bias=False)
        self.relations = nn.Parameter(torch.empty(relations, inner))
        for weight in (self.head.weight, self.tail.weight, self.relations):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of pairs; see :meth:`Decoder.forward`."""
        inner = torch.relu(self.head(heads) + self.tail(tails))
        return (inner * self.relations.index_select(0, relations).unsqueeze(1)).sum(-1)


class EdgeDecoder(Decoder):
    """Computes logits of edges: the base class of all decoders of labelled edges.

    A decoder's class is called with the keywords ``width`` (of a row), ``relations`` (number of
    target relations) and ``outputs`` (number of classes or values), and the options of the
    configuration.
    """

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the edges' logits, or values: [n, outputs].

        Those of an edge must depend on its own rows and relation alone.

        Parameters
        ----------
        heads, tails: [n, width], rows of the edges' sources and destinations.
        relations: [n] int64, numbers of target relations.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")


class EdgeMlp(EdgeDecoder):
    """A perceptron of two layers over both concatenated rows, with a last layer per relation.

    Parameters
    ----------
    hidden: width of the inner layer; 0 = that of a row.
    """

    def __init__(self, *, width: int, relations: int, outputs: int, hidden: int = 0) -> None:
        super().__init__()
        inner = hidden or width
        self.head = nn.Linear(width, inner)
        self.tail = nn.Linear(width, inner, bias=False)
        self.last = nn.Parameter(torch.empty(relations, inner, outputs))
        self.bias = nn.Parameter(torch.zeros(relations, outputs))
        for weight in (self.head.weight, self.tail.weight, *self.last):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the edges' logits; see :meth:`EdgeDecoder.forward`."""
        inner = torch.relu(self.head(heads) + self.tail(tails))
        return self.bias.index_select(0, relations) + _of_relations(inner, self.last, relations)


class Bilinear(EdgeDecoder):
    """Logits are ``head M tail`` with a matrix M for each class.

    M is a weighted sum of ``bases`` matrices that all classes and relations share (van den Berg et
    al., section 2.3).

    Parameters
    ----------
    bases: number of matrices.
    """

    def __init__(self, *, width: int, relations: int, outputs: int, bases: int = 2) -> None:
        super().__init__()
        self.bases = nn.Parameter(torch.empty(bases, width, width))
        self.weights = nn.Parameter(torch.empty(relations, bases, outputs))
        for basis in self.bases:
            nn.init.orthogonal_(basis)
        for weights in self.weights:
            nn.init.xavier_uniform_(weights)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the edges' logits; see :meth:`EdgeDecoder.forward`."""
        products = [((heads @ basis) * tails).sum(-1) for basis in self.bases]
        return _of_relations(torch.stack(products, 1), self.weights, relations)


def _of_relations(rows: Tensor, matrices: Tensor, relations: Tensor) -> Tensor:
    """Multiply each row [n, inner] by its relation's matrix: [n, outputs].

    Parameters
    ----------
    matrices: [relations, inner, outputs].
    """
    if len(matrices) == 1:
        return rows @ matrices[0]
    return torch.bmm(rows.unsqueeze(1), matrices.index_select(0, relations)).squeeze(1)


DECODERS: Final[Mapping[str, Callable[..., Decoder]]] = {
    "dot": Dot,
    "distmult": DistMult,
    "complex": ComplEx,
    "rotate": RotatE,
    "mlp": Mlp,
}
EDGE_DECODERS: Final[Mapping[str, Callable[..., EdgeDecoder]]] = {
    "mlp": EdgeMlp,
    "bilinear": Bilinear,
}


def _check_even(name: str, width: int) -> None:
    if width % 2:
        raise ConfigError(
            f"task.dim: {name} reads rows as complex numbers; expected an even width, got {width}"
        )


def _times(rows: Tensor, others: Tensor) -> Tensor:
    """Multiply complex numbers, whose halves are real and imaginary parts."""
    (a, b), (c, d) = rows.chunk(2, -1), others.chunk(2, -1)
    return torch.cat((a * c - b * d, a * d + b * c), -1)


def _conjugate(rows: Tensor) -> Tensor:
    real, imaginary = rows.chunk(2, -1)
    return torch.cat((real, -imaginary), -1)
