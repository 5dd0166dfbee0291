"""Ratios and figures are those worked out by hand, and sentences tell a difference only where the
interval excludes 1."""

import math

import pytest

from hopper.bench import statistics
from hopper.bench.verdict import most_telling, tell_bytes, tell_speed
from hopper.timing.paired_ratio import Ratio, paired_ratio

from .conftest import make_run


def test_interval_is_students_t_on_log_ratios():
    # log ratios log 2 and log 8: mean log 4, standard error log 2, t(0.975, 1) = 12.7062.
    ratio = paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert ratio.mean == pytest.approx(4.0)
    assert ratio.low is not None
    assert ratio.high is not None
    half = 12.7062 * math.log(2)
    assert math.log(ratio.low) == pytest.approx(math.log(4) - half, rel=1e-5)
    assert math.log(ratio.high) == pytest.approx(math.log(4) + half, rel=1e-5)


def test_a_difference_is_shown_where_the_interval_excludes_1():
    assert paired_ratio([2.0, 2.1, 2.2], [1.0, 1.0, 1.0]).is_shown
    assert paired_ratio([1.0, 1.0, 1.0], [2.0, 2.1, 2.2]).is_shown
    assert not paired_ratio([2.0, 0.6], [1.0, 1.0]).is_shown
    assert not paired_ratio([2.0], [1.0]).is_shown
    assert not paired_ratio([7.0, 8.0], [7.0, 8.0]).is_shown
    ratio = paired_ratio([2.0, 8.0], [1.0, 1.0])
    assert ratio.inverse.inverse == ratio
    assert paired_ratio([1.0, 1.0], [2.0, 8.0]).low == pytest.approx(ratio.inverse.low)


def test_bytes_of_measured_epochs_are_compared():
    runs = []
    for index in range(2):
        runs.append(make_run("model_centric", index, [9.0, 4.0], feature_bytes=39_800_000))
        runs.append(make_run("hop", index, [9.0, 4.0], feature_bytes=9_800_000))
    ratio = statistics.fewer_bytes(runs, "hop", "model_centric")
    # 200 kB of gradients each.
    assert ratio is not None
    assert (ratio.mean, ratio.low, ratio.is_shown) == (pytest.approx(4), pytest.approx(4), True)
    runs[1]["epochs"][1]["bytes"] = dict.fromkeys(runs[1]["epochs"][1]["bytes"], 0)
    assert statistics.fewer_bytes(runs, "hop", "model_centric") is None


def test_equal_ratios_have_an_interval_of_no_width_and_one_round_has_none():
    ratio = paired_ratio([3.0, 6.0, 9.0], [1.0, 2.0, 3.0])
    assert (ratio.low, ratio.high) == (pytest.approx(3.0), pytest.approx(3.0))
    ratio = paired_ratio([3.0], [2.0])
    assert (ratio.mean, ratio.low, ratio.high) == (pytest.approx(1.5), None, None)


@pytest.mark.parametrize(
    ("numerators", "denominators"),
    [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([math.nan], [1.0]), ([1.0], [math.inf])],
)
def test_what_is_no_pair_of_times_is_refused(numerators, denominators):
    with pytest.raises(ValueError, match=r"expected positive|cannot be paired"):
        paired_ratio(numerators, denominators)


def test_first_and_last_epoch_are_left_out_where_there_are_others():
    assert statistics.epoch_seconds(make_run("hop", 0, [9.0, 1.0, 2.0, 0.5])) == 3.0
    assert statistics.epoch_seconds(make_run("hop", 0, [9.0, 1.0, 2.0])) == 1.0
    assert statistics.epoch_seconds(make_run("hop", 0, [9.0])) == 9.0
    assert len(statistics.measured_epochs(make_run("hop", 0, [9.0, 1.0]))) == 1


def test_speed_up_pairs_rounds_whatever_their_order():
    runs = [
        make_run("model_centric", 0, [99.0, 4.0]),
        make_run("hop", 0, [99.0, 2.0]),
        make_run("hop", 1, [99.0, 20.0]),
        make_run("model_centric", 1, [99.0, 40.0]),
    ]
    ratio = statistics.speed_up(runs, "hop", "model_centric")
    assert ratio.mean == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0)


def test_speed_up_needs_both_engines_in_every_round():
    runs = [make_run("model_centric", 0, [4.0]), make_run("hop", 1, [2.0])]
    with pytest.raises(ValueError, match="same rounds"):
        statistics.speed_up(runs, "hop", "model_centric")


def test_figures_are_medians_of_seconds_and_means_an_epoch():
    runs = [
        make_run("hop", 0, [50.0, 1.0, 3.0, 9.0], feature_bytes=100),
        make_run("hop", 1, [50.0, 5.0, 5.0, 9.0], feature_bytes=300),
        make_run("hop", 2, [50.0, 90.0, 90.0, 9.0], feature_bytes=200),
        make_run("model_centric", 0, [7.0]),
    ]
    hop = statistics.figures(runs, "hop")
    assert hop.seconds == 5.0
    assert hop.bytes["feature"] == 200
    assert hop.rows["remote_unique"] == 250
    assert hop.stage_seconds["gather"] == pytest.approx((1 + 3 + 5 + 5 + 90 + 90) / 12)
    assert statistics.engines_of(runs) == ["hop", "model_centric"]
    with pytest.raises(ValueError, match="zero_hop"):
        statistics.figures(runs, "zero_hop")


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
