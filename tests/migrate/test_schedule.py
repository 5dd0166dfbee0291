"""The ring schedule: each step a permutation, every model on each of its groups once."""

from __future__ import annotations

import pytest

from hopper.migrate.schedule import visits

RANKS = [1, 2, 3, 4, 7, 16]


@pytest.mark.parametrize("ranks", RANKS)
def test_each_time_step_is_a_permutation(ranks: int) -> None:
    timelines = [visits(rank, ranks) for rank in range(ranks)]
    assert {len(timeline) for timeline in timelines} == {ranks}
    for step in range(ranks):
        assert {timeline[step].step for timeline in timelines} == {step}
        assert sorted(timeline[step].model for timeline in timelines) == list(range(ranks))


@pytest.mark.parametrize("ranks", RANKS)
def test_every_model_meets_each_of_its_groups_once(ranks: int) -> None:
    met = sorted((visit.model, rank) for rank in range(ranks) for visit in visits(rank, ranks))
    assert met == [(model, rank) for model in range(ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", RANKS)
def test_models_start_at_home_and_move_to_the_next_rank(ranks: int) -> None:
    timelines = [visits(rank, ranks) for rank in range(ranks)]
    assert [timeline[0].model for timeline in timelines] == list(range(ranks))
    for rank, timeline in enumerate(timelines):
        following = (rank + 1) % ranks
        for step in range(ranks - 1):
            assert timelines[following][step + 1].model == timeline[step].model


@pytest.mark.parametrize("ranks", RANKS)
def test_what_is_passed_on_is_received(ranks: int) -> None:
    timelines = [visits(rank, ranks) for rank in range(ranks)]
    sent, received = set(), set()
    for rank, timeline in enumerate(timelines):
        for visit in timeline:
            if visit.pass_to is not None:
                sent.add((visit.step + 1, rank, visit.pass_to, visit.model))
            if visit.receive_from is not None:
                received.add((visit.step, visit.receive_from, rank, visit.model))
        assert timeline[0].receive_from is None
        assert timeline[-1].pass_to is None
    assert sent == received
    assert len(sent) == ranks * (ranks - 1)
