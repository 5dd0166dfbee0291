"""Decoders, which score links from the rows of their ends.

A decoder with parameters has some for each target relation. Sources: DistMult (Yang et al., ICLR
2015), ComplEx (Trouillon et al., ICML 2016), RotatE (Sun et al., ICLR 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.errors import ConfigError, HopperError
from hopper.graph.schema import GraphSchema, Predicted
from hopper.micrograph.subgraph import Pairs
from hopper.tasks.edge_decoders import EDGE_DECODERS, EdgeDecoder
from hopper.tasks.sides import Side
from hopper.tasks.target import Target

DECODER: Final = "link_decoder"
"""name of the decoder in a model"""
_LINKS: Final = 3
_TAILS: Final = 5
"""links, and tails of each, that a new decoder is tried on"""


class Decoder(nn.Module):
    """Scores pairs of rows: the base class of all decoders of links.

    A decoder's class is called with the keywords ``width`` (of a row) and ``relations`` (number of
    target relations), and the options of the configuration.
    """

    is_bilinear: ClassVar[bool] = False
    """whether a score is the dot product of :meth:`query` and the row at the other end, so that
    scores against all nodes are a matrix product"""
    row_width: int = 0
    """width of the rows that the decoder was made for; set by :func:`make_decoder`"""

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


DECODERS: Final[Mapping[str, Callable[..., Decoder]]] = {
    "dot": Dot,
    "distmult": DistMult,
    "complex": ComplEx,
    "rotate": RotatE,
    "mlp": Mlp,
}


DEFAULT_DECODERS: Final[Mapping[Predicted, str]] = {"link": "dot", "edge": "mlp"}


def make_decoder(config: Config, schema: GraphSchema, target: Target) -> Decoder | EdgeDecoder:
    """Make the decoder of a configuration, and try it on a few rows.

    Raises
    ------
    ConfigError: the decoder does not exist, cannot be made, or returns scores of a wrong shape;
        names the key.
    """
    decoder = _make_decoder(config, schema, target)
    decoder.row_width = target.width
    return decoder


def _make_decoder(config: Config, schema: GraphSchema, target: Target) -> Decoder | EdgeDecoder:
    task, relations, width = config.task, len(schema.target_relations), target.width
    name = DEFAULT_DECODERS[target.predicted] if task.decoder == "auto" else task.decoder
    asked = ("task.decoder", name)
    keywords, options = ["width", "relations"], task.decoder_options
    if target.predicted == "link":
        plug_in: PlugIn[Decoder] = find_plug_in(
            *asked, Decoder, DECODERS, options, keywords, derives=True
        )
        decoder = plug_in.make(width=width, relations=relations)
        heads, tails = torch.zeros(_LINKS, 1, width), torch.zeros(_LINKS, _TAILS, width)
        _check(plug_in, decoder, heads, tails, (_LINKS, _TAILS))
        return decoder
    keywords.append("outputs")
    edge_plug_in: PlugIn[EdgeDecoder] = find_plug_in(
        *asked, EdgeDecoder, EDGE_DECODERS, options, keywords, derives=True
    )
    edge_decoder = edge_plug_in.make(width=width, relations=relations, outputs=target.classes)
    rows = torch.zeros(_LINKS, width)
    _check(edge_plug_in, edge_decoder, rows, rows, (_LINKS, target.classes))
    return edge_decoder


def decoder_of(model: nn.Module) -> Decoder:
    """Return a model's decoder of links."""
    decoder = getattr(model, DECODER)
    assert isinstance(decoder, Decoder)
    return decoder


def edge_decoder_of(model: nn.Module) -> EdgeDecoder:
    """Return a model's decoder of labelled edges."""
    decoder = getattr(model, DECODER)
    assert isinstance(decoder, EdgeDecoder)
    return decoder


def rows_width(model: nn.Module) -> int | None:
    """Return the width of the rows that a model's decoder reads; None if it has no decoder."""
    decoder = getattr(model, DECODER, None)
    return decoder.row_width if isinstance(decoder, Decoder | EdgeDecoder) else None


def pair_scores(model: nn.Module, rows: Tensor, pairs: Pairs) -> Tensor:
    """Return the scores of pairs, or the logits of labelled edges.

    Parameters
    ----------
    model: the model with the decoder.
    rows: [roots, width], the roots of all types in the order of :class:`Pairs`.

    Returns
    -------
    [links, 1 + k] scores, or [edges, outputs] logits.
    """
    ends = []
    for places in (pairs.heads, pairs.tails):
        flat_places = torch.from_numpy(places.reshape(-1)).to(rows.device)
        ends.append(rows.index_select(0, flat_places).view(*places.shape, rows.shape[1]))
    relations = torch.from_numpy(pairs.relations).to(rows.device)
    decoder = getattr(model, DECODER)
    if isinstance(decoder, EdgeDecoder):
        ends = [end[:, 0] for end in ends]
    scores: Tensor = decoder(ends[0], relations, ends[1])
    return scores


def _check(
    plug_in: PlugIn, decoder: nn.Module, heads: Tensor, tails: Tensor, expected: tuple[int, int]
) -> None:
    """Try a decoder on a few rows, to find errors before the run begins."""
    where = f"{plug_in.key}: {plug_in.name}"
    relations = torch.zeros(_LINKS, dtype=torch.int64)
    try:
        with torch.no_grad():
            scores = [decoder(heads[:n], relations[:n], tails[:n]) for n in (_LINKS, 0)]
    except HopperError:
        raise
    # A user's decoder may raise anything; the error must name the key.
    except Exception as error:
        raise ConfigError(
            f"{where} cannot be computed ({type(error).__name__}: {error})"
        ) from error
    shapes = [tuple(score.shape) for score in scores]
    expected_shapes = [expected, (0, expected[1])]
    if shapes != expected_shapes:
        raise ConfigError(
            f"{where}: expected something of each pair by itself, of shapes {expected_shapes}; got "
            f"{shapes}"
        )


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
