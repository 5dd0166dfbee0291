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
    """Scores links, or computes the logits of labelled edges: the base class of all decoders.

    A decoder's class is called with the keywords ``width`` (of a row), ``relations`` (number of
    target relations) and, where labelled edges are predicted, ``outputs`` (number of classes or
    values), and with the options of the configuration.
    """

    is_bilinear: ClassVar[bool] = False
    """whether the score of a link is the dot product of :meth:`query` and the row at the other end,
    so that scores against all nodes are a matrix product"""
    row_width: int = 0
    """width of the rows that the decoder was made for; :func:`hopper.tasks.make_decoder` sets it"""

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of links, or the logits or values of labelled edges.

        Those of a pair of rows must depend on its own rows and relation alone.

        Parameters
        ----------
        heads, tails: of links, [n or 1, c or 1, width], which broadcast to [n, c, width]; of
            labelled edges, [n, width].
        relations: [n] int64, numbers of target relations.

        Returns
        -------
        Of links, [n, c]: a larger score means a likelier link. Of labelled edges, [n, outputs].
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors [n, width] by which a bilinear decoder multiplies rows at the end that
        is searched, ``side``, for known rows [n, width] and their relations, [n] int64 numbers."""
        raise NotImplementedError(f"{type(self).__name__} defines no query()")

    def against_all(
        self, rows: Tensor, relations: Tensor, candidates: Tensor, side: Side
    ) -> Tensor:
        """Return the scores [n, m] of known rows [n, width] with all candidates [m, width] for the
        end that is searched, ``side``. ``relations``, [n] int64, are numbers of the known rows'."""
        if self.is_bilinear:
            return self.query(rows, relations, side) @ candidates.T
        known, searched = rows.unsqueeze(1), candidates.unsqueeze(0)
        heads, tails = (known, searched) if side == "tail" else (searched, known)
        return self(heads, relations, tails)


class Dot(Decoder):
    """The dot product of both rows, the same for all relations."""

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__()

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of links; see :meth:`Decoder.forward`."""
        return (self.query(heads, relations, "tail") * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors to multiply rows by; see :meth:`Decoder.query`."""
        return rows


class DistMult(Dot):
    """Scores are ``sum(head * relation * tail)``."""

    _range: ClassVar[tuple[float, float]] = 0.5, 1.5
    """of the numbers of relations' vectors at first"""

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__(width=width, relations=relations)
        self.relations = nn.Parameter(torch.empty(relations, width))
        nn.init.uniform_(self.relations, *self._range)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors to multiply rows by; see :meth:`Decoder.query`."""
        return rows * self._vectors_beside(rows, relations)

    def _vectors_beside(self, rows: Tensor, relations: Tensor) -> Tensor:
        """Return the vectors of relations: [n, width], or [n, 1, width] for rows [n, c, width]."""
        vectors = self.relations.index_select(0, relations)
        return vectors if rows.ndim == 2 else vectors.unsqueeze(1)


class ComplEx(DistMult):
    """Scores are the real part of ``sum(head * relation * conj(tail))``.

    The first half of a row has real parts, the second half imaginary parts.
    """

    _range = -1.0, 1.0

    def __init__(self, *, width: int, relations: int) -> None:
        _check_even("complex", width)
        super().__init__(width=width, relations=relations)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Return the vectors to multiply rows by; see :meth:`Decoder.query`."""
        vectors = self._vectors_beside(rows, relations)
        # Re(h r conj(t)) equals Re(conj(conj(r) t) h), so the relation is conjugated for heads.
        return _times(rows, vectors if side == "tail" else _conjugate(vectors))


class RotatE(Decoder):
    """Scores are ``margin - sum |head rotated by the relation's angles - tail|``.

    Rows have the form that :class:`ComplEx` reads. ``margin`` is the score of a pair whose rotated
    head equals its tail.
    """

    def __init__(self, *, width: int, relations: int, margin: float = 12.0) -> None:
        _check_even("rotate", width)
        super().__init__()
        self.relations = nn.Parameter(torch.empty(relations, width // 2))
        self._margin = margin
        nn.init.uniform_(self.relations, -math.pi, math.pi)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of links; see :meth:`Decoder.forward`."""
        angles = self.relations.index_select(0, relations).unsqueeze(1)
        difference = _times(heads, torch.cat((angles.cos(), angles.sin()), -1)) - tails
        real, imaginary = difference.chunk(2, -1)
        # The square root has no derivative at 0.
        lengths = (real.square() + imaginary.square()).clamp_min(1e-24).sqrt()
        return self._margin - lengths.sum(-1)


class _Perceptron(Decoder):
    """Two layers over both rows; the inner one is ``hidden`` wide, 0 = as wide as a row."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, hidden or width)
        self.tail = nn.Linear(width, hidden or width, bias=False)
        for weight in (self.head.weight, self.tail.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.head.bias)

    def _inner(self, heads: Tensor, tails: Tensor) -> Tensor:
        return torch.relu(self.head(heads) + self.tail(tails))


class Mlp(_Perceptron):
    """A perceptron of two layers, the inner one ``hidden`` wide, that scores links."""

    def __init__(self, *, width: int, relations: int, hidden: int = 0) -> None:
        super().__init__(width, hidden)
        self.relations = nn.Parameter(torch.empty(relations, hidden or width))
        nn.init.xavier_uniform_(self.relations)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the scores of links; see :meth:`Decoder.forward`."""
        vectors = self.relations.index_select(0, relations).unsqueeze(1)
        return (self._inner(heads, tails) * vectors).sum(-1)


class EdgeMlp(_Perceptron):
    """A perceptron of two layers, the inner one ``hidden`` wide, for labelled edges."""

    def __init__(self, *, width: int, relations: int, outputs: int, hidden: int = 0) -> None:
        super().__init__(width, hidden)
        self.last = nn.Parameter(torch.empty(relations, hidden or width, outputs))
        self.bias = nn.Parameter(torch.zeros(relations, outputs))
        for weight in self.last:
            nn.init.xavier_uniform_(weight)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """Return the logits of edges; see :meth:`Decoder.forward`."""
        products = _of_relations(self._inner(heads, tails), self.last, relations)
        return self.bias.index_select(0, relations) + products


class Bilinear(Decoder):
    """Logits are ``head M tail`` with a matrix M for each class.

    M is a weighted sum of ``bases`` matrices that all classes and relations share (van den Berg et
    al., section 2.3).
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
        """Return the logits of edges; see :meth:`Decoder.forward`."""
        products = [((heads @ basis) * tails).sum(-1) for basis in self.bases]
        return _of_relations(torch.stack(products, 1), self.weights, relations)


def _of_relations(rows: Tensor, matrices: Tensor, relations: Tensor) -> Tensor:
    """Multiply rows [n, inner] by their relations' matrices [relations, inner, outputs]."""
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
EDGE_DECODERS: Final[Mapping[str, Callable[..., Decoder]]] = {"mlp": EdgeMlp, "bilinear": Bilinear}


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
