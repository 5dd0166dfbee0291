"""Scores of links: each link is ranked among links in which other nodes replace one of its ends.

The owners of nodes compute their rows over whole neighbourhoods and keep them. Block by block,
every rank receives the rows of the links' known ends and compares its own candidates with them.
Only counts are then added up, so a rank holds no more than its share of rows and a block of scores.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from cache_server.draws.counter import NEGATIVES, absorb_each, key_of
from hopper.config import Task
from hopper.graph.topology import Ids
from hopper.inference import EndRows, Inference, Wanted, exchange_by_owner, parts_of
from hopper.models import Objective
from hopper.tasks import (
    Decoder,
    LinkTable,
    Side,
    decoder_of,
    find_target,
    open_fixed,
    sides_of,
    type_at,
)
from hopper.tasks.links import TargetEdges
from hopper.train.evaluate import EdgeEvaluator, Evaluator

_BLOCK_BYTES: Final = 64 << 20
"""Bytes of the scores of a block of links on one rank."""


@dataclass(frozen=True)
class _Block:
    """Links of one relation, by number, one end of which, the ``side``, is searched.

    ``known`` and ``true``, [k] int64, are versions of the other end, and of the end that is
    searched. ``there`` and ``here`` are rows of nodes of their types.
    """

    decoder: Decoder
    number: int
    side: Side
    known: Ids
    true: Ids
    there: EndRows
    here: EndRows
    where: str

    def score(self, known_rows: Tensor, rows: Tensor) -> Tensor:
        """Score known ends, [k, 1, width], with others, [k, c, width]: [k, c]."""
        pair = (known_rows, rows) if self.side == "tail" else (rows, known_rows)
        scores: Tensor = self.decoder(pair[0], torch.full((len(rows),), self.number), pair[1])
        return scores


class LinkEvaluator(Evaluator):
    """Scores a model's links on a split, on all ranks together, ranked as the task says among
    candidates that the seed draws."""

    baseline_text = "a random order"
    divides_roots: ClassVar[bool] = False

    def __init__(self, inference: Inference, objective: Objective, task: Task, seed: int) -> None:
        super().__init__(inference, objective)
        self._task, self._seed = task, seed
        self._table = cache(lambda split: LinkTable.of(self._graph, self._graph.links(split)))
        self._fixed = cache(lambda split: open_fixed(self._graph, task, split))
        self._edges = TargetEdges(self._graph, self._cluster, inference.placement)
        self._known_links = cache(self._find_known)

    def _predict(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Return the rank of each link of a split, once for each end that is searched, and ones as
        labels: [n, 1], float64, the same on every rank; collective."""
        links, ranks = self._table(split), [torch.empty(0).double()]
        if links.times is None or not self._inference.sampler.reads_times:
            ranks += self._rank_moment(model, split, np.arange(links.ids.size), None)
        else:
            # Links of one time are ranked among the same rows.
            for time in np.unique(links.times).tolist():
                ranks += self._rank_moment(model, split, np.flatnonzero(links.times == time), time)
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

    def _rank_moment(
        self, model: torch.nn.Module, split: str, places: Ids, time: int | None
    ) -> Iterator[Tensor]:
        """Yield the ranks [k], float64, of blocks of links, once for each end that is searched.

        ``places``, [n] int64, ascending, are the numbers of the links in the split, and ``time`` is
        theirs, None if rows are the same at all times.
        """
        links, fixed = self._table(split), self._fixed(split)
        rows, among = dict[str, EndRows](), dict[str, EndRows]()
        # A copy, so that the model's own parameters stay on their device.
        decoder = copy.deepcopy(decoder_of(model)).cpu()

        def versions(node_type: str, nodes: Ids) -> Ids:
            times = None if time is None else np.full(nodes.size, time)
            return self._inference.sampler.versions_at(node_type, nodes, times)

        for name in sorted(self._graph.schema.root_types):
            nodes = self._candidates(name) if fixed is None else fixed.nodes(name)
            candidates = np.unique(versions(name, nodes))
            ends_of_links = versions(name, links.ends(name, places))
            nodes = np.unique(np.concatenate([candidates, ends_of_links]))
            moment = split if time is None else f"{split} at {time}"
            rows[name] = self._inference.ends(model, Wanted(moment, nodes, node_type=name))
            if fixed is None:
                among[name] = rows[name].pick(candidates)
        for number, relation in enumerate(links.targets):
            of_relation = places[links.relations[places] == number]
            for side in sides_of(self._task):
                searched = type_at(relation, side)
                other = type_at(relation, "head" if side == "tail" else "tail")
                # The size must be the same on every rank, so it assumes all candidates on each, or
                # that all negatives are different nodes.
                row_bytes = 8 * max(1, self._number_of_candidates(searched))
                if fixed is not None:
                    row_bytes = 8 * fixed.count * self._inference.scene.classes
                size = max(1, _BLOCK_BYTES // row_bytes)
                for first in range(0, of_relation.size, size):
                    chosen = of_relation[first : first + size]
                    ends = links.src[chosen], links.dst[chosen]
                    known, true = ends if side == "tail" else ends[::-1]
                    block = _Block(
                        decoder,
                        number,
                        side,
                        versions(other, known),
                        versions(searched, true),
                        rows[other],
                        rows[searched],
                        f"ranking links of {split}",
                    )
                    if fixed is not None:
                        others = fixed.of(chosen, number, side)
                        others = versions(searched, others.reshape(-1)).reshape(others.shape)
                        yield self._rank_among(block, others)
                        continue
                    left_out = np.empty((2, 0), np.int64)
                    if self._task.filtered:
                        left_out = _pick_links(known, *self._known_links(split, number, side))
                        left_out[1] = versions(searched, left_out[1])
                    yield self._rank_among_all(block, among[searched], left_out)

    def _rank_among_all(self, block: _Block, among: EndRows, left_out: Ids) -> Tensor:
        """Rank a block of links among all candidates, each rank comparing its own.

        A link's rank is one, plus the number of candidates with a higher score, plus half the
        number of those with an equal score. It is NaN if one of these scores is. ``left_out``,
        [2, m] int64, are numbers of links and versions of nodes that do not count for them.
        """
        cluster = self._cluster
        rows = block.there.fetch_everywhere(block.known, block.where)
        relations = torch.full((len(rows),), block.number)
        scores = block.decoder.against_all(rows, relations, among.rows, block.side)
        true_scores, is_candidate = scores.new_empty(len(rows)), np.isin(block.true, among.nodes)
        if not is_candidate.all():
            # All links are scored at once, since products of other shapes may round differently.
            ends, is_other = rows.new_zeros(rows.shape), torch.from_numpy(~is_candidate)
            ends[is_other] = block.here.fetch_everywhere(block.true[~is_candidate], block.where)
            true_scores = block.score(rows.unsqueeze(1), ends.unsqueeze(1))[:, 0]
        # For the same reason the score of a true end that is a candidate is taken from the product
        # of all candidates, so that equal rows tie.
        mine, places = _find(block.true, among.own)
        true_scores[torch.from_numpy(is_candidate)] = exchange_by_owner(
            cluster,
            [scores[mine, places]] * cluster.world,
            among.owners_of(block.true[is_candidate]),
            "control",
            block.where,
        )
        scores[mine, places] = -torch.inf
        found, places = _find(left_out[1], among.own)
        scores[torch.from_numpy(left_out[0])[found], places] = -torch.inf
        ranks = _count_better(scores, true_scores.unsqueeze(1))
        cluster.all_reduce(ranks, "control", block.where)
        return 1.0 + ranks

    def _rank_among(self, block: _Block, others: Ids) -> Tensor:
        """Rank a block of links as :meth:`_rank_among_all` does, each among negatives of its own,
        [k, n] int64 versions; each rank ranks a part of it."""
        cluster = self._cluster
        parts = parts_of(np.arange(block.true.size), cluster)
        searched = np.concatenate((block.true[:, None], others), axis=1)
        mine = searched[parts[cluster.rank]]
        rows = block.there.fetch([block.known[part] for part in parts], block.where)
        ends = block.here.fetch([searched[part].reshape(-1) for part in parts], block.where)
        scores = block.score(rows.unsqueeze(1), ends.view(*mine.shape, -1))
        true_scores = scores[:, :1].clone()
        # The link itself does not count, even if it is among its negatives.
        scores[torch.from_numpy(mine == mine[:, :1])] = -torch.inf
        ranks = 1.0 + _count_better(scores, true_scores)
        owners = np.repeat(np.arange(cluster.world), [part.size for part in parts])
        return exchange_by_owner(cluster, [ranks] * cluster.world, owners, "control", block.where)

    def _find_known(self, split: str, number: int, side: Side) -> tuple[Ids, Ids]:
        """Find the known links of a target relation that share an end with a split's links: those
        of all splits, and all message edges; collective. Return [nodes + 1] int64, where the links
        of each known end begin, and [links] int64, their other ends, at ``side``, of those that
        this rank owns."""
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


def make_evaluator(inference: Inference, objective: Objective) -> Evaluator:
    """Make the evaluator of what a configuration predicts: nodes, labelled edges or links."""
    config, schema = inference.scene.request.config, inference.graph.schema
    predicted = find_target(config, schema).predicted
    if predicted == "link":
        return LinkEvaluator(inference, objective, config.task, config.train.seed)
    return (EdgeEvaluator if predicted == "edge" else Evaluator)(inference, objective)


def _count_better(scores: Tensor, true_scores: Tensor) -> Tensor:
    """Count the scores [k, n] above each true score [k, 1], and half of those that equal it: [k]
    float64, NaN where a score is, since comparisons with NaN are false."""
    # NumPy counts True five times as fast as torch adds it up.
    above, equal = (
        torch.from_numpy(np.count_nonzero(is_one.numpy(), axis=1))
        for is_one in (scores > true_scores, scores == true_scores)
    )
    counts = above + equal.double() / 2
    return counts.masked_fill(scores.isnan().any(1) | true_scores.isnan()[:, 0], torch.nan)


def _pick_links(known: Ids, bounds: Ids, others: Ids) -> Ids:
    """Pick the known links of some known ends, which repeat, from the result of
    :meth:`LinkEvaluator._find_known`: [2, m] int64, numbers of the known ends and global ids of the
    other ends."""
    first, lengths = bounds[known], bounds[known + 1] - bounds[known]
    numbers = np.repeat(np.arange(known.size), lengths)
    places = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(numbers.size)
    return np.stack([numbers, others[places]])


def _find(ids: Ids, own: Ids) -> tuple[Tensor, Tensor]:
    """Find which of some ids are among ascending own ones: their places in both."""
    found = np.flatnonzero(np.isin(ids, own))
    return torch.from_numpy(found), torch.from_numpy(np.searchsorted(own, ids[found]))
