"""Decoders of labelled edges, which compute an edge's logits from the rows of its ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn


class EdgeDecoder(nn.Module):
    """Computes logits of edges: the base class of all decoders of labelled edges.

    A decoder's class is called with the keywords ``width`` (of a row), ``relations`` (number of
    target relations) and ``outputs`` (number of classes or values), and the options of the
    configuration.
    """

    row_width: int = 0
    """width of the rows that the decoder was made for; set by
    :func:`hopper.tasks.decoders.make_decoder`"""

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
    al., Graph Convolutional Matrix Completion, 2017, section 2.3).

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


EDGE_DECODERS: Final[Mapping[str, Callable[..., EdgeDecoder]]] = {
    "mlp": EdgeMlp,
    "bilinear": Bilinear,
}
