"""Sentences on ratios tell a difference only where the interval excludes 1."""

import pytest

from hopper.bench.verdict import most_telling, tell_bytes, tell_speed
from hopper.timing.paired_ratio import Ratio


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (Ratio(1.8, 1.6, 2.03, 5), "hop is 1.80x (1.60 to 2.03) faster than p3"),
        (Ratio(0.5, 0.4, 0.6, 5), "hop takes 2.00x (1.67 to 2.50) as long as p3"),
        (Ratio(1.01, 1.0004, 1.02, 5), "hop is 1.01x (1.0004 to 1.02) faster than p3"),
        (Ratio(9.9, 9.897, 12.3, 5), "hop is 9.90x (9.90 to 12.3) faster than p3"),
        (Ratio(1.8, 0.99, 3.3, 2),
         "no difference shown in time between hop and p3 (1.80x, 0.99 to 3.30)"),
        (Ratio(1.8, None, None, 1),
         "no difference shown in time between hop and p3 (one round has no interval)"),
        (Ratio(1.0, 1.0, 1.0, 5),
         "no difference shown in time between hop and p3 (1.00x, 1.00 to 1.00)"),
    ],
)  # fmt: skip
def test_sentences_on_speed(ratio, sentence):
    assert tell_speed("hop", "p3", ratio) == sentence


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (Ratio(5.0, 5.0, 5.0, 3), "hop sends 5.00x (in every round) fewer bytes than p3"),
        (Ratio(48.81, 47.0, 112.4, 3), "hop sends 48.8x (47.0 to 112) fewer bytes than p3"),
        (Ratio(0.5, 0.4, 0.625, 3), "hop sends 2.00x (1.60 to 2.50) as many bytes as p3"),
        (Ratio(2.0, 0.5, 8.0, 2),
         "no difference shown in bytes between hop and p3 (2.00x, 0.50 to 8.00)"),
        (None, "the bytes of hop and p3 cannot be compared: one of them sends none"),
    ],
)  # fmt: skip
def test_sentences_on_bytes(ratio, sentence):
    assert tell_bytes("hop", "p3", ratio) == sentence


def test_a_shown_difference_goes_before_a_larger_one_that_is_not_shown():
    shown, unsure, slower = (
        Ratio(1.2, 1.1, 1.3, 5),
        Ratio(9.0, 0.5, 99.0, 5),
        Ratio(0.5, 0.4, 0.6, 5),
    )
    assert most_telling({"a": unsure, "b": shown, "c": slower}) == "b"
    assert most_telling({"a": unsure, "c": slower}) == "a"
    assert most_telling({"a": Ratio(0.4, 0.1, 1.6, 5), "c": slower}) == "a"
    assert most_telling({"c": slower, "d": Ratio(0.7, 0.6, 0.8, 5)}) == "d"
