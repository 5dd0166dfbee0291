"""Scores of links: each link is ranked among links in which other nodes replace one of its ends.

The owners of nodes compute their rows over whole neighbourhoods and keep them. Block by block,
every rank receives the rows of the links' ends and compares its own candidates with them. Only
counts are then added up, so a rank holds no more than its share of rows and a block of scores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.draw import NEGATIVES, absorb_each, key_of
from hopper.config import Task
from hopper.inference import Inference, Wanted
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
from hopper.train.evaluate import Evaluator, Scored, evaluating
from hopper.train.known_links import KnownLinks
from hopper.train.owned_rows import OwnedRows, part_of, places_among

_BLOCK_BYTES: Final = 64 << 20
"""Bytes of the scores of a block of links on one rank."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class _Candidates(OwnedRows):
    """This rank's rows of a type, some of which are candidates to replace an end of a link.

    Attributes
    ----------
    candidates: [m] int64, ascending: the row numbers of candidates.
    """

    candidates: Ids

    @cached_property
    def candidate_rows(self) -> Tensor:
        """[m, width]: the rows of the candidates."""
        return self.rows.index_select(0, torch.from_numpy(self.candidates))

    def find(self, ids: Ids) -> Ids:
        """Return [k] int64: the numbers of nodes among the candidates; -1 for all other nodes."""
        return places_among(self._candidate_ids, ids)

    @cached_property
    def _candidate_ids(self) -> Ids:
        return self.ids[self.candidates]


@dataclass(frozen=True)
class _Moment:
    """Links that are ranked among the same rows.

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

    def name(self, split: str) -> str:
        """Return a name for this moment's part of a split."""
        return split if self.time is None else f"{split} at {self.time}"


class LinkEvaluator(Evaluator):
    """Scores a model's links on a split, on all ranks together.

    Parameters
    ----------
    inference: computes rows of nodes.
    task: says how links are ranked.
    seed: seed of the draw of candidates.
    """

    baseline_text = "what a random order reaches"

    def __init__(self, inference: Inference, objective: Objective, task: Task, seed: int) -> None:
        super().__init__(inference, objective)
        self._graph, self._task, self._seed = inference.graph, task, seed
        self._table = cache(lambda split: LinkTable.of(self._graph, self._graph.links(split)))
        self._fixed = cache(lambda split: open_fixed(self._graph, task, split))
        edges = TargetEdges(self._graph, self._scene.cluster, inference.placement)
        self._known = KnownLinks(self._graph.schema, edges, self._table)

    @torch.no_grad()
    def scores(self, model: torch.nn.Module, split: str) -> dict[str, float]:
        """Return the metrics of the ranks of a split's links; every rank must call it."""
        links, types = self._table(split), sorted(self._graph.schema.root_types)
        # A copy, so that the model's own parameters stay on their device.
        decoder, ranks_by_moment = copy.deepcopy(decoder_of(model)).cpu(), list[Tensor]()
        with evaluating(model):
            for moment in self._moments(links):
                owned = {
                    node_type: self._compute_rows(model, node_type, moment, split)
                    for node_type in types
                }
                ranks_by_moment.append(self._rank_links(decoder, moment, owned, split))
        ranks = torch.cat(ranks_by_moment)
        sums = self.objective.metric_sums(ranks, torch.ones_like(ranks))
        return self._combine(sums, (ranks, torch.ones_like(ranks)))

    def score_classes(self, model: torch.nn.Module, split: str) -> Scored:
        """Compute the scores without any by class, since a link is of no class."""
        return Scored(self.scores(model, split), {})

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
        """Compute this rank's rows of candidates and of links' ends of a type; every rank must call
        it."""
        fixed = self._fixed(split)
        candidates = self._candidates(node_type) if fixed is None else fixed.nodes(node_type)
        candidates = moment.versions(node_type, candidates)
        ends = moment.versions(node_type, moment.links.ends(node_type, moment.places))
        wanted = Wanted(moment.name(split), np.unique(np.concatenate([candidates, ends])))
        ids, rows = self._inference.rows(model, replace(wanted, node_type=node_type))
        return _Candidates(ids, rows.cpu(), np.flatnonzero(np.isin(ids, candidates)))

    def _rank_links(
        self, decoder: Decoder, moment: _Moment, owned: Mapping[str, _Candidates], split: str
    ) -> Tensor:
        """Rank all links of a moment, once for each end that candidates replace.

        Parameters
        ----------
        decoder: a decoder in host memory.

        Returns
        -------
        [n, 1] float64, the same on every rank.
        """
        ranks, links = [torch.empty(0, dtype=torch.float64)], moment.links
        for number, relation in enumerate(links.targets):
            of_relation = moment.places[links.relations[moment.places] == number]
            for side in sides_of(self._task):
                fixed, where = self._fixed(split), f"ranking links of {split}"
                for block in self._blocks(of_relation, type_at(relation, side), fixed):
                    arguments = (decoder, moment, block, number, side, owned)
                    if fixed is None:
                        known = self._known.of(split, number, side) if self._task.filtered else None
                        ranks.append(self._rank_block(*arguments, known, where))
                    else:
                        others = fixed.of(block, number, side)
                        ranks.append(self._rank_among(*arguments, others, where))
        return torch.cat(ranks).unsqueeze(1)

    def _blocks(self, links: Ids, node_type: str, fixed: FixedNegatives | None) -> Iterator[Ids]:
        # The size must be the same on every rank, so it assumes all candidates on each.
        row_bytes = 8 * max(1, self._number_of_candidates(node_type))
        if fixed is not None:
            # At worst all negatives are different nodes, and their rows are spread.
            row_bytes = 8 * fixed.count * self._scene.classes
        size = max(1, _BLOCK_BYTES // row_bytes)
        for first in range(0, links.size, size):
            yield links[first : first + size]

    def _rank_block(
        self,
        decoder: Decoder,
        moment: _Moment,
        block: Ids,
        number: int,
        side: Side,
        owned: Mapping[str, _Candidates],
        known_links: tuple[Ids, Ids] | None,
        where: str,
    ) -> Tensor:
        """Rank a block of links among all candidates, each rank comparing its own.

        A link's rank is one, plus the number of candidates with a higher score, plus half the
        number of those with an equal score. It is NaN if one of these scores is.

        Parameters
        ----------
        known_links: links to leave out, from :meth:`KnownLinks.of`; None = all candidates count.

        Returns
        -------
        [k] float64.
        """
        cluster, links = self._scene.cluster, moment.links
        relation, of = links.targets[number], torch.full((block.size,), number)
        src, dst = links.src[block], links.dst[block]
        known, true = (src, dst) if side == "tail" else (dst, src)
        own_type, other = type_at(relation, side), type_at(relation, _other(side))
        here, there = owned[own_type], owned[other]
        rows = there.spread(cluster, moment.versions(other, known), where)
        true = moment.versions(own_type, true)
        ends = here.spread(cluster, true, where)
        scores = decoder.against_all(rows, of, here.candidate_rows, side)
        pair = (rows, ends) if side == "tail" else (ends, rows)
        true_scores = decoder(pair[0].unsqueeze(1), of, pair[1].unsqueeze(1))
        places = torch.from_numpy(here.find(true))
        mine = (places >= 0).nonzero()[:, 0]
        # Products of other shapes may round differently. Where the true end is a candidate, its
        # score is therefore taken from the same product as the others', so that equal rows tie.
        known_scores = torch.zeros(2, block.size, dtype=scores.dtype)
        known_scores[0, mine], known_scores[1, mine] = scores[mine, places[mine]], 1.0
        cluster.all_reduce(known_scores, "control", where)
        true_scores = torch.where(known_scores[1] > 0, known_scores[0], true_scores[:, 0])
        scores[mine, places[mine]] = -torch.inf
        if known_links is not None:
            own_versions = partial(moment.versions, own_type)
            _leave_out_known(scores, known, known_links, here, own_versions)
        ranks = _count_better(scores, true_scores.unsqueeze(1))
        cluster.all_reduce(ranks, "control", where)
        return 1.0 + ranks

    def _rank_among(
        self,
        decoder: Decoder,
        moment: _Moment,
        block: Ids,
        number: int,
        side: Side,
        owned: Mapping[str, _Candidates],
        others: Ids,
        where: str,
    ) -> Tensor:
        """Rank a block of links, each among negatives of its own; each rank ranks a part of it.

        Parameters
        ----------
        others: [k, n] int64 global ids of each link's negatives.

        Returns
        -------
        [k] float64 ranks, defined as in :meth:`_rank_block`.
        """
        cluster, links = self._scene.cluster, moment.links
        relation = links.targets[number]
        src, dst = links.src[block], links.dst[block]
        known, true = (src, dst) if side == "tail" else (dst, src)
        own_type, other = type_at(relation, side), type_at(relation, _other(side))
        rows = owned[other].spread(cluster, moment.versions(other, known), where)
        nodes, places = np.unique(
            np.concatenate((true[:, None], others), axis=1), return_inverse=True
        )
        table = owned[own_type].spread(cluster, moment.versions(own_type, nodes), where)
        block_part = part_of(cluster, block.size)
        chosen_places = torch.from_numpy(places.reshape(block.size, -1)[block_part])
        ends = table.index_select(0, chosen_places.reshape(-1)).view(*chosen_places.shape, -1)
        fixed = rows[block_part].unsqueeze(1)
        pair = (fixed, ends) if side == "tail" else (ends, fixed)
        scores = decoder(pair[0], torch.full((len(chosen_places),), number), pair[1])
        true_scores = scores[:, :1].clone()
        # The link itself does not count, even if it is among its negatives.
        scores[chosen_places == chosen_places[:, :1]] = -torch.inf
        ranks = torch.zeros(block.size, dtype=torch.float64)
        ranks[block_part] = 1.0 + _count_better(scores, true_scores)
        cluster.all_reduce(ranks, "control", where)
        return ranks


def _count_better(scores: Tensor, true_scores: Tensor) -> Tensor:
    """Count the scores [k, n] above each true score [k, 1], and half of those that equal it.

    Returns
    -------
    [k] float64, NaN where a score is, since comparisons with NaN are false.
    """
    counts = (scores > true_scores).sum(1) + (scores == true_scores).sum(1).double() / 2
    return counts.masked_fill(scores.isnan().any(1) | true_scores.isnan()[:, 0], torch.nan)


def _leave_out_known(
    scores: Tensor,
    known: Ids,
    known_links: tuple[Ids, Ids],
    here: _Candidates,
    versions: Callable[[Ids], Ids],
) -> None:
    """Lower the scores of candidates that have a known link with the other end, in any split."""
    bounds, others = known_links
    first, last = bounds[known], bounds[known + 1]
    lengths = last - first
    rows = np.repeat(np.arange(known.size), lengths)
    indices = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(rows.size)
    places = here.find(versions(others[indices]))
    is_candidate = places >= 0
    rows, places = rows[is_candidate], places[is_candidate]
    scores[torch.from_numpy(rows), torch.from_numpy(places)] = -torch.inf


def _other(side: Side) -> Side:
    return "head" if side == "tail" else "tail"
