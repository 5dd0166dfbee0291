"""Scores of links: each link is ranked among links in which other nodes replace one of its ends.

The owners of nodes compute their rows over whole neighbourhoods and keep them. Block by block,
every rank receives the rows of the links' known ends and compares its own candidates with them.
Only counts are then added up, so a rank holds no more than its share of rows and a block of scores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draw import NEGATIVES, absorb_each, key_of
from hopper.config import Task
from hopper.inference import EndRows, Inference, Wanted, exchange_by_owner, parts_of
from hopper.models import Objective
from hopper.tasks import (
    Decoder,
    FixedNegatives,
    LinkTable,
    Side,
    decoder_of,
    open_fixed,
    sides_of,
    type_at,
)
from hopper.tasks.target_edges import TargetEdges
from hopper.train.evaluate import Evaluator

_BLOCK_BYTES: Final = 64 << 20
"""Bytes of the scores of a block of links on one rank."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Candidates:
    """Rows of links' ends of a type, and of the candidates to replace them.

    Attributes
    ----------
    nodes: [m] int64, ascending: all candidates, the same on every rank.
    """

    ends: EndRows
    nodes: Ids

    @cached_property
    def own(self) -> Ids:
        """[k] int64, ascending: the candidates whose rows this rank has."""
        return self.ends.own[np.isin(self.ends.own, self.nodes)]

    @cached_property
    def rows(self) -> Tensor:
        """[k, width]: the rows of this rank's candidates."""
        places = np.searchsorted(self.ends.own, self.own)
        return self.ends.rows.index_select(0, torch.from_numpy(places))

    def find(self, ids: Ids) -> tuple[Ids, Ids]:
        """Find nodes among this rank's candidates: return the places of the nodes in ``ids``, and
        their numbers among the candidates."""
        places = np.flatnonzero(np.isin(ids, self.own))
        return places, np.searchsorted(self.own, ids[places])


@dataclass(frozen=True)
class _Moment:
    """Links that are ranked among the same rows: all, or those of one time.

    Attributes
    ----------
    links: all links of the split.
    places: [n] int64, ascending: the numbers of the links of this moment.
    time: their time; None if rows are the same at all times.
    """

    links: LinkTable
    places: Ids
    inference: Inference
    time: int | None

    def versions(self, node_type: str, nodes: Ids) -> Ids:
        """Return [n] int64: the versions of nodes at this moment."""
        times = None if self.time is None else np.full(nodes.size, self.time)
        return self.inference.versions_at(node_type, nodes, times)


@dataclass(frozen=True)
class _Block:
    """Links of one relation, one end of which is searched.

    Attributes
    ----------
    number: the number of the relation.
    side: the end that candidates replace.
    known, true: [k] int64 global ids of the other end, and of the end that is searched.
    versions: makes versions of nodes of the searched end's type.
    there: rows of the known ends.
    here: rows of the searched ends, and of the candidates.
    """

    decoder: Decoder
    number: int
    side: Side
    known: Ids
    known_versions: Ids
    true: Ids
    versions: Callable[[Ids], Ids]
    there: _Candidates
    here: _Candidates

    def score(self, known_rows: Tensor, rows: Tensor) -> Tensor:
        """Score known ends, [n or 1, 1, width], with other ends, [n, c, width]: [n, c]."""
        pair = (known_rows, rows) if self.side == "tail" else (rows, known_rows)
        scores: Tensor = self.decoder(pair[0], torch.full((len(rows),), self.number), pair[1])
        return scores


class LinkEvaluator(Evaluator):
    """Scores a model's links on a split, on all ranks together.

    Parameters
    ----------
    inference: computes rows of nodes.
    task: says how links are ranked.
    seed: seed of the draw of candidates.
    """

    baseline_text = "what a random order reaches"
    divides_roots: ClassVar[bool] = False

    def __init__(self, inference: Inference, objective: Objective, task: Task, seed: int) -> None:
        super().__init__(inference, objective)
        self._task, self._seed = task, seed
        self._table = cache(lambda split: LinkTable.of(self._graph, self._graph.links(split)))
        self._fixed = cache(lambda split: open_fixed(self._graph, task, split))
        self._edges = TargetEdges(self._graph, self._cluster, inference.placement)
        self._known_links = cache(self._find_known)

    def _predict(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Return the rank of each link of a split, once for each end that candidates replace, and
        ones as labels: [n, 1], float64, the same on every rank; collective."""
        # A copy, so that the model's own parameters stay on their device.
        decoder, ranks = copy.deepcopy(decoder_of(model)).cpu(), [torch.empty(0).double()]
        for moment in self._moments(self._table(split)):
            rows = {
                node_type: self._compute_rows(model, node_type, moment, split)
                for node_type in sorted(self._graph.schema.root_types)
            }
            ranks += self._rank_links(decoder, moment, rows, split)
        joined = torch.cat(ranks).unsqueeze(1)
        return joined, torch.ones_like(joined)

    @torch.no_grad()
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the expected scores of a random order of candidates, by split that is scored."""
        scores = {}
        for split in filter(self.has_split, ("val", "test")):
            links, sums = self._table(split), torch.zeros(0)
            for number, relation in enumerate(links.targets):
                share = int((links.relations == number).sum()) / max(1, links.ids.size)
                for side in sides_of(self._task):
                    fixed = self._fixed(split)
                    count = self._number_of_candidates(type_at(relation, side))
                    count = count if fixed is None else 1 + fixed.count
                    ranks = torch.arange(1.0, count + 1, dtype=torch.float64).unsqueeze(1)
                    expected = self.objective.metric_sums(ranks, torch.ones_like(ranks)) / count
                    sums = share * expected if not len(sums) else sums + share * expected
            scores[split] = self.objective.scores(sums)
        return scores

    def _number_of_candidates(self, node_type: str) -> int:
        count = self._graph.schema.node_types[node_type].count
        return min(count, self._task.candidates or count)

    def _moments(self, links: LinkTable) -> Iterator[_Moment]:
        """Divide links into those that are ranked among the same rows: all, or one time each."""
        if links.times is None or not self._inference.is_in_time:
            yield _Moment(links, np.arange(links.ids.size), self._inference, None)
            return
        for time in np.unique(links.times).tolist():
            yield _Moment(links, np.flatnonzero(links.times == time), self._inference, time)

    def _candidates(self, node_type: str) -> Ids:
        """Return [m] int64 global ids, ascending: the nodes of a type that links are ranked
        among."""
        globals_ = np.asarray(self._graph.global_ids(node_type))
        count = self._number_of_candidates(node_type)
        if count == globals_.size:
            return np.arange(count)
        originals = np.arange(globals_.size)
        keys = absorb_each(np.uint64(key_of(NEGATIVES, self._seed)), originals)
        return np.sort(globals_[np.lexsort((originals, keys))[:count]])

    def _compute_rows(
        self, model: torch.nn.Module, node_type: str, moment: _Moment, split: str
    ) -> _Candidates:
        """Compute the rows of candidates and of links' ends of a type; collective."""
        fixed = self._fixed(split)
        candidates = self._candidates(node_type) if fixed is None else fixed.nodes(node_type)
        candidates = np.unique(moment.versions(node_type, candidates))
        ends = moment.versions(node_type, moment.links.ends(node_type, moment.places))
        name = split if moment.time is None else f"{split} at {moment.time}"
        nodes = np.unique(np.concatenate([candidates, ends]))
        wanted = Wanted(name, nodes, node_type=node_type)
        return _Candidates(self._inference.ends(model, wanted), candidates)

    def _rank_links(
        self, decoder: Decoder, moment: _Moment, rows: Mapping[str, _Candidates], split: str
    ) -> Iterator[Tensor]:
        """Yield the ranks [k], float64, of all links of a moment, once for each end that candidates
        replace.

        Parameters
        ----------
        decoder: a decoder in host memory.
        """
        links, fixed, where = moment.links, self._fixed(split), f"ranking links of {split}"
        for number, relation in enumerate(links.targets):
            of_relation = moment.places[links.relations[moment.places] == number]
            for side in sides_of(self._task):
                searched = type_at(relation, side)
                other = type_at(relation, "head" if side == "tail" else "tail")
                versions = partial(moment.versions, searched)
                for places in self._blocks(of_relation, searched, fixed):
                    src, dst = links.src[places], links.dst[places]
                    known, true = (src, dst) if side == "tail" else (dst, src)
                    block = _Block(
                        *(decoder, number, side, known, moment.versions(other, known)),
                        *(true, versions, rows[other], rows[searched]),
                    )
                    if fixed is not None:
                        yield self._rank_among(block, fixed.of(places, number, side), where)
                        continue
                    known_links = None
                    if self._task.filtered:
                        known_links = self._known_links(split, number, side)
                    yield self._rank_among_all(block, known_links, where)

    def _blocks(self, links: Ids, node_type: str, fixed: FixedNegatives | None) -> Iterator[Ids]:
        # The size must be the same on every rank, so it assumes all candidates on each.
        row_bytes = 8 * max(1, self._number_of_candidates(node_type))
        if fixed is not None:
            # At worst all negatives are different nodes.
            row_bytes = 8 * fixed.count * self._inference.scene.classes
        size = max(1, _BLOCK_BYTES // row_bytes)
        for first in range(0, links.size, size):
            yield links[first : first + size]

    def _rank_among_all(
        self, block: _Block, known_links: tuple[Ids, Ids] | None, where: str
    ) -> Tensor:
        """Rank a block of links among all candidates, each rank comparing its own.

        A link's rank is one, plus the number of candidates with a higher score, plus half the
        number of those with an equal score. It is NaN if one of these scores is.

        Parameters
        ----------
        known_links: links to leave out, from :meth:`_find_known`; None = all candidates count.
        """
        cluster, here = self._cluster, block.here
        rows = block.there.ends.fetch_everywhere(block.known_versions, where)
        relations = torch.full((len(rows),), block.number)
        scores = block.decoder.against_all(rows, relations, here.rows, block.side)
        true = block.versions(block.true)
        is_candidate = np.isin(true, here.nodes)
        true_scores = scores.new_empty(len(rows))
        if not is_candidate.all():
            # All links are scored at once, since products of other shapes may round differently.
            ends = rows.new_zeros(rows.shape)
            others = torch.from_numpy(~is_candidate)
            ends[others] = here.ends.fetch_everywhere(true[~is_candidate], where)
            true_scores = block.score(rows.unsqueeze(1), ends.unsqueeze(1))[:, 0]
        # For the same reason the score of a true end that is a candidate is taken from the product
        # of all candidates, so that equal rows tie.
        mine, places = map(torch.from_numpy, here.find(true))
        true_scores[torch.from_numpy(is_candidate)] = exchange_by_owner(
            cluster,
            [scores[mine, places]] * cluster.world,
            here.ends.owners_of(true[is_candidate]),
            *("control", where),
        )
        scores[mine, places] = -torch.inf
        if known_links is not None:
            _leave_out_known(scores, block, known_links)
        ranks = _count_better(scores, true_scores.unsqueeze(1))
        cluster.all_reduce(ranks, "control", where)
        return 1.0 + ranks

    def _rank_among(self, block: _Block, others: Ids, where: str) -> Tensor:
        """Rank a block of links, each among negatives of its own; each rank ranks a part of it.

        Parameters
        ----------
        others: [k, n] int64 global ids of each link's negatives.

        Returns
        -------
        [k] float64 ranks, defined as in :meth:`_rank_among_all`.
        """
        cluster = self._cluster
        parts = parts_of(np.arange(block.true.size), cluster)
        known = [block.known_versions[part] for part in parts]
        rows = block.there.ends.fetch(known, where).unsqueeze(1)
        searched = [np.concatenate((block.true[part, None], others[part]), 1) for part in parts]
        ends = block.here.ends.fetch([block.versions(ids.reshape(-1)) for ids in searched], where)
        mine = searched[cluster.rank]
        scores = block.score(rows, ends.view(*mine.shape, -1))
        true_scores = scores[:, :1].clone()
        # The link itself does not count, even if it is among its negatives.
        scores[torch.from_numpy(mine == mine[:, :1])] = -torch.inf
        owners = np.repeat(np.arange(cluster.world), [part.size for part in parts])
        ranks = 1.0 + _count_better(scores, true_scores)
        return exchange_by_owner(cluster, [ranks] * cluster.world, owners, "control", where)

    def _find_known(self, split: str, number: int, side: Side) -> tuple[Ids, Ids]:
        """Find the known links that share an end with a split's links: those of all splits, and all
        message edges; collective.

        Parameters
        ----------
        number: the number of the target relation.
        side: the end that candidates replace; the other end is the known one.

        Returns
        -------
        bounds: [nodes + 1] int64, where the links of each known end begin.
        others: [links] int64, the global ids of the other ends, of those that this rank owns.
        """
        schema = self._graph.schema
        relation = schema.target_relations[number]
        known_type = relation.src if side == "tail" else relation.dst
        is_asked = np.zeros(schema.node_types[known_type].count, np.bool_)
        asked = self._table(split).of_relation(number)
        is_asked[asked.src if side == "tail" else asked.dst] = True
        _, src, dst = self._edges.find_known(relation, side, is_asked)
        tables = [self._table(name).of_relation(number) for name in schema.splits]
        src = np.concatenate([src, *(table.src for table in tables)])
        dst = np.concatenate([dst, *(table.dst for table in tables)])
        known, others = (src, dst) if side == "tail" else (dst, src)
        known, others = known[is_asked[known]], others[is_asked[known]]
        order = np.argsort(known, kind="stable")
        counts = np.bincount(known, minlength=is_asked.size)
        return np.concatenate(([0], np.cumsum(counts))), others[order]


def _count_better(scores: Tensor, true_scores: Tensor) -> Tensor:
    """Count the scores [k, n] above each true score [k, 1], and half of those that equal it.

    Returns
    -------
    [k] float64, NaN where a score is, since comparisons with NaN are false.
    """
    counts = (scores > true_scores).sum(1) + (scores == true_scores).sum(1).double() / 2
    return counts.masked_fill(scores.isnan().any(1) | true_scores.isnan()[:, 0], torch.nan)


def _leave_out_known(scores: Tensor, block: _Block, known_links: tuple[Ids, Ids]) -> None:
    """Lower the scores of candidates that have a known link with the other end, in any split."""
    bounds, others = known_links
    first, last = bounds[block.known], bounds[block.known + 1]
    lengths = last - first
    rows = np.repeat(np.arange(block.known.size), lengths)
    indices = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(rows.size)
    found, places = block.here.find(block.versions(others[indices]))
    scores[torch.from_numpy(rows[found]), torch.from_numpy(places)] = -torch.inf
