"""Decoders: how likely a link is, from the rows of its ends.

A target relation has parameters of its own, where a decoder has any. Sources: DistMult (Yang et
al., ICLR 2015), ComplEx (Trouillon et al., ICML 2016), RotatE (Sun et al., ICLR 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from hopper.config import Config
from hopper.errors import ConfigError, HopperError
from hopper.graph.schema import GraphSchema, Predicted
from hopper.micrograph.pairs import Pairs
from hopper.plug_ins import PlugIn, find_plug_in
from hopper.tasks.edge_decoders import EDGE_DECODERS, EdgeDecoder
from hopper.tasks.sides import Side
from hopper.tasks.target import Target

DECODER: Final = "link_decoder"
"""its name in a model"""
_LINKS: Final = 3
_TAILS: Final = 5
"""of what a decoder is tried on"""


class Decoder(nn.Module):
    """Scores pairs of rows. Its class is called with the keywords ``width`` (of rows) and
    ``relations`` (how many target relations there are), and the options of the configuration.
    """

    is_bilinear: ClassVar[bool] = False
    """whether a score is the dot product of :meth:`query` and the row at the other end, which makes
    comparing with all nodes one matrix product"""
    row_width: int = 0
    """of the rows that it was made for; told by :func:`make_decoder`"""

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """[n, c]: the score of each pair; larger is likelier.

        A pair's score depends on its own rows and relation alone.

        Parameters
        ----------
        heads, tails: [n or 1, c or 1, width], which broadcast to [n, c, width].
        relations: [n] int64.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """[n, width]: what the rows at the other end are multiplied by, of a bilinear decoder.

        Parameters
        ----------
        rows: [n, width], those that are known. side: the end that is looked for.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no query()")

    def against_all(
        self, rows: Tensor, relations: Tensor, candidates: Tensor, side: Side
    ) -> Tensor:
        """[n, m]: the scores of pairs of known rows [n, width] and candidates [m, width] for the
        end that is looked for."""
        if self.is_bilinear:
            return self.query(rows, relations, side) @ candidates.T
        known, others = rows.unsqueeze(1), candidates.unsqueeze(0)
        ends = (known, others) if side == "tail" else (others, known)
        found: Tensor = self(ends[0], relations, ends[1])
        return found


class Dot(Decoder):
    """The dot product of both rows; all relations alike."""

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__()

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """See :class:`Decoder`."""
        return (heads * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """See :class:`Decoder`."""
        return rows


class _OfRelations(Decoder):
    """A decoder with a vector for each relation."""

    def __init__(self, relations: int, width: int) -> None:
        super().__init__()
        self.relations = nn.Parameter(torch.empty(relations, width))

    def _of(self, relations: Tensor) -> Tensor:
        """[n, 1, ...]"""
        return self.relations.index_select(0, relations).unsqueeze(1)


class DistMult(_OfRelations):
    """``sum(head * relation * tail)``."""

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__(relations, width)
        nn.init.uniform_(self.relations, 0.5, 1.5)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """See :class:`Decoder`."""
        return (heads * self._of(relations) * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """See :class:`Decoder`."""
        return rows * self.relations.index_select(0, relations)


class ComplEx(_OfRelations):
    """The real part of ``sum(head * relation * conj(tail))``; the first half of a row has real, the
    second imaginary parts."""

    is_bilinear: ClassVar[bool] = True

    def __init__(self, *, width: int, relations: int) -> None:
        _check_even("complex", width)
        super().__init__(relations, width)
        nn.init.uniform_(self.relations, -1.0, 1.0)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """See :class:`Decoder`."""
        return (_times(heads, self._of(relations)) * tails).sum(-1)

    def query(self, rows: Tensor, relations: Tensor, side: Side) -> Tensor:
        """See :class:`Decoder`."""
        own = self.relations.index_select(0, relations)
        # Re(h r conj(t)) is Re(conj(conj(r) t) h), so the relation is conjugated for heads.
        return _times(rows, own if side == "tail" else _conjugated(own))


class RotatE(_OfRelations):
    """``margin - sum |head turned by the relation's angles - tail|``, rows as of :class:`ComplEx`.

    Parameters
    ----------
    margin: of the score of a pair that fits perfectly.
    """

    def __init__(self, *, width: int, relations: int, margin: float = 12.0) -> None:
        _check_even("rotate", width)
        super().__init__(relations, width // 2)
        self._margin = margin
        nn.init.uniform_(self.relations, -math.pi, math.pi)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """See :class:`Decoder`."""
        angles = self._of(relations)
        off = _times(heads, torch.cat((angles.cos(), angles.sin()), -1)) - tails
        real, imaginary = off.chunk(2, -1)
        # The root of 0 has no derivative.
        lengths = (real.square() + imaginary.square()).clamp_min(1e-24).sqrt()
        return self._margin - lengths.sum(-1)


class Mlp(Decoder):
    """Two layers over both rows side by side; each relation has a last layer of its own.

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
        for each in (self.head.weight, self.tail.weight, self.relations):
            nn.init.xavier_uniform_(each)
        nn.init.zeros_(self.head.bias)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        """See :class:`Decoder`."""
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
    """The decoder of a configuration, tried on a few rows.

    Raises
    ------
    ConfigError: there is none, it cannot be made, or it does not judge edges by themselves; names
        the key.
    """
    made = _make_decoder(config, schema, target)
    made.row_width = target.width
    return made


def _make_decoder(config: Config, schema: GraphSchema, target: Target) -> Decoder | EdgeDecoder:
    task, relations, width = config.task, len(schema.target_relations), target.width
    name = DEFAULT_DECODERS[target.predicted] if task.decoder == "auto" else task.decoder
    asked = ("task.decoder", name)
    given, options = ["width", "relations"], task.decoder_options
    if target.predicted == "link":
        found: PlugIn[Decoder] = find_plug_in(
            *asked, Decoder, DECODERS, options, given, derives=True
        )
        made = found.make(width=width, relations=relations)
        others = torch.zeros(_LINKS, _TAILS, width)
        _check(found, made, torch.zeros(_LINKS, 1, width), others, (_LINKS, _TAILS))
        return made
    given.append("outputs")
    of_edges: PlugIn[EdgeDecoder] = find_plug_in(
        *asked, EdgeDecoder, EDGE_DECODERS, options, given, derives=True
    )
    own = of_edges.make(width=width, relations=relations, outputs=target.classes)
    rows = torch.zeros(_LINKS, width)
    _check(of_edges, own, rows, rows, (_LINKS, target.classes))
    return own


def decoder_of(model: nn.Module) -> Decoder:
    """The decoder of links that is part of a model."""
    found = getattr(model, DECODER)
    assert isinstance(found, Decoder)
    return found


def edge_decoder_of(model: nn.Module) -> EdgeDecoder:
    """The decoder of edges with labels that is part of a model."""
    found = getattr(model, DECODER)
    assert isinstance(found, EdgeDecoder)
    return found


def rows_width(model: nn.Module) -> int | None:
    """How many numbers the decoder that is part of a model reads of a node; None where it has
    none."""
    found = getattr(model, DECODER, None)
    return found.row_width if isinstance(found, Decoder | EdgeDecoder) else None


def pair_scores(model: nn.Module, rows: Tensor, pairs: Pairs) -> Tensor:
    """[links, 1 + k]: the scores of pairs; of edges with labels [edges, outputs], their logits.

    Parameters
    ----------
    model: that has the decoder.
    rows: [roots, width], of all types one behind the other, as of :class:`Pairs`.
    """
    ends = []
    for places in (pairs.heads, pairs.tails):
        chosen = torch.from_numpy(places.reshape(-1)).to(rows.device)
        ends.append(rows.index_select(0, chosen).view(*places.shape, rows.shape[1]))
    relations = torch.from_numpy(pairs.relations).to(rows.device)
    decoder = getattr(model, DECODER)
    if isinstance(decoder, EdgeDecoder):
        ends = [each[:, 0] for each in ends]
    found: Tensor = decoder(ends[0], relations, ends[1])
    return found


def _check(
    found: PlugIn, decoder: nn.Module, heads: Tensor, tails: Tensor, expected: tuple[int, int]
) -> None:
    """Try a decoder on a few rows, before a run depends on it."""
    told = f"{found.key}: {found.name}"
    relations = torch.zeros(_LINKS, dtype=torch.int64)
    try:
        with torch.no_grad():
            scores = [decoder(heads[:n], relations[:n], tails[:n]) for n in (_LINKS, 0)]
    except HopperError:
        raise
    # Whatever somebody else's decoder raises, the key to look at is this one.
    except Exception as error:
        raise ConfigError(f"{told} cannot be computed ({type(error).__name__}: {error})") from error
    shapes = [tuple(each.shape) for each in scores]
    wanted = [expected, (0, expected[1])]
    if shapes != wanted:
        raise ConfigError(
            f"{told}: expected something of each pair by itself, of shapes {wanted}; got {shapes}"
        )


def _check_even(name: str, width: int) -> None:
    if width % 2:
        raise ConfigError(
            f"task.dim: {name} reads rows as complex numbers; expected an even width, got {width}"
        )


def _times(rows: Tensor, others: Tensor) -> Tensor:
    """Products of complex numbers."""
    (a, b), (c, d) = rows.chunk(2, -1), others.chunk(2, -1)
    return torch.cat((a * c - b * d, a * d + b * c), -1)


def _conjugated(rows: Tensor) -> Tensor:
    real, imaginary = rows.chunk(2, -1)
    return torch.cat((real, -imaginary), -1)
