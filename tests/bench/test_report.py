"""The report's page, read as text, shows results, refuses wrong ones, escapes markup, and names
what is missing."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hopper.bench.report import write_report
from hopper.bench.report.units import quantity
from hopper.bench.statistics import fewer_bytes, speed_up
from hopper.bench.verdict import tell_bytes, tell_speed
from hopper.cli import main
from hopper.errors import RequestError

from .conftest import make_results, make_run
from .report_folders import SOUND, sound_results, write_ab, write_run, write_sweep

VOID = {"meta"}
EVIL = (
    '</text></svg><script>alert(1)</script><img src=x onerror="alert(2)" id="a">$\\x$\'"&\ud800\0'
)


class Page(HTMLParser):
    """The elements, attributes and visible text of a page. It fails where tags are not nested."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.html = write_report(folder).read_text(encoding="ascii")
        self.feed(self.html)
        self.close()
        assert not self.open
        self.text = " ".join(" ".join(self.words).split())
        [self.title] = re.findall("<h1>(.*?)</h1>", self.html, re.DOTALL)
        self.title = self.title.strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def pages(tmp_path: Path) -> list[Page]:
    write_run(tmp_path / "run", make_run("hop", 0, [9.0, 2.0]), [3.0, 2.0, 1.5, 1.0])
    write_ab(tmp_path / "ab", sound_results())
    return [Page(tmp_path / "run"), Page(tmp_path / "ab"), Page(write_sweep(tmp_path / "sweep"))]


def assert_shows(page: Page, *phrases: str) -> None:
    for phrase in phrases:
        assert phrase in page.text, phrase


def test_the_page_of_a_run_shows_scores_then_time_then_bytes(tmp_path):
    folder = write_run(tmp_path / "run", make_run("hop", 0, [9.0, 2.0]), [3.0, 2.0, 1.5, 1.0])
    config = {"data": {"partitioned": str(tmp_path / "gone")}, "model": {"name": "gat"}}
    (folder / "config.json").write_text(json.dumps(config))
    page = Page(folder)
    assert page.title == "run: accuracy 0.5500 on the test split, 0.6000 on validation"
    sections = [attrs["id"] for name, attrs in page.elements if name == "section"]
    assert sections == ["scores", "time", "bytes", "timeline", "ranks", "setting"]
    assert_shows(
        page, "Test accuracy 0.5500 majority-class baseline: 0.0290", "Engine hop on 2 ranks",
        "Epoch 2.00 s 4.20 MB sent, 4.00 MB of it features", "accuracy by epoch", "Training loss",
        "hop 1.00 s 500 ms 1.50 s", "hop 4.00 MB 200 kB 4.20 MB", "hop 900 50 250 1.20 k",
        "iteration 1", "rank 1 waits 14%", "m0", "· gat", "hop paper 16.7%", "hop 120 130",
        "layer 2 1,000 3,000 1.50 14 6", "the partitioned graph cannot be read",
    )  # fmt: skip
    assert "Speed-up" not in page.text


def test_the_page_of_an_ab_tells_verdicts_in_words(tmp_path):
    results = sound_results()
    page = Page(write_ab(tmp_path / "ab", results))
    speed = tell_speed("hop", "model_centric", speed_up(results["runs"], "hop", "model_centric"))
    sent = tell_bytes("hop", "model_centric", fewer_bytes(results["runs"], "hop", "model_centric"))
    assert page.title == speed
    assert_shows(
        page, f"{speed}; {sent}.", "3 interleaved rounds of 1 measured epoch", "1.93 to 2.03",
        "baseline", "gradient within 3.0e-07", "Speed-up over model_centric",
        "hop 8.00 MB 900 B 200 kB 8.20 MB", "hop exact 3.0e-07 – 3.0e-07 – –",
        "machine cpu A processor", "locality micrograph 0.8, subgraph 0.5",
        "Network interfaces were not counted", "hop 0.5000 –",
    )  # fmt: skip
    assert "Refused" not in page.text
    assert "not shown" not in page.text


def test_the_page_of_a_sweep_ranks_its_trials(tmp_path):
    folder = write_sweep(tmp_path / "sweep")
    page = Page(folder)
    assert_shows(
        page, "The best of 2 trials is shown", "trial model.hidden train.learning_rate validation",
        "trial 1 16 0.1 0.6000 0.5000 1 trial 0 8 as the run 0.4000 0.5000 1", "hidden 16",
    )  # fmt: skip
    trial = Page(folder / "trial-1")
    assert trial.title == "trial-1: accuracy 0.5000 on the test split, 0.6000 on validation"
    assert_shows(trial, "those of all trials are shown", "Of each epoch.", "9.00 s")


def test_a_page_stands_alone_and_is_the_same_each_time(tmp_path):
    for page, again in zip(pages(tmp_path / "a"), pages(tmp_path / "b"), strict=True):
        assert page.html == again.html
        assert "http" not in page.html.replace("http-equiv", "")
        assert not re.search(r"@import|url\((?!#)", page.html)
        names = [name for name, _ in page.elements]
        assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(names)
        assert names.count("h1") == names.count("main") == 1
        ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
        assert len(set(ids)) == len(ids)
        used = re.findall(r'(?:url\(#|href="#)([^")]+)', page.html)
        assert set(used) <= set(ids)
        drawings = [attrs for name, attrs in page.elements if name == "svg"]
        assert len(drawings) >= 6
        assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawings)
        # A colour that is none of the page's variables would not follow light and dark.
        assert not re.findall(r"(?:fill|stroke): #", page.html)


def test_unequal_engines_get_no_speed_up_anywhere(tmp_path):
    results = sound_results()
    results["parity"]["max_relative_gradient_difference"]["hop"] = "nan"
    page = Page(write_ab(tmp_path / "ab", results))
    assert page.title == "No speed-up can be told"
    assert_shows(page, "hop: gradients differ by nan, limit 0.001 in float32", "2.02 s")
    assert "Speed-up over" not in page.text
    assert "faster" not in page.text
    assert any(attrs.get("role") == "alert" for _, attrs in page.elements)
    assert 'class="bad">nan' in page.html


def test_an_approximate_engine_is_marked_and_left_out_of_the_headline(tmp_path):
    results = sound_results()
    results["runs"] += [make_run("locality", i, [9.0, 1.0]) | {"exact": False} for i in range(3)]
    page = Page(write_ab(tmp_path / "ab", results))
    assert page.title.startswith("hop is ")
    assert_shows(page, "approximate", "gradient not checked", "Speed-up over locality")
    # On its own batches it may be exact, and is held to that where it was compared.
    results["parity"]["max_relative_gradient_difference"]["locality"] = 0.5
    page = Page(write_ab(tmp_path / "wrong", results))
    assert_shows(page, "Refused", "locality: gradients differ by 0.5")


def test_rounding_settled_in_float64_is_no_failure(tmp_path):
    results = sound_results()
    results["parity"]["max_relative_gradient_difference"]["hop"] = 3e-3
    assert "Refused" in Page(write_ab(tmp_path / "unsettled", results)).text
    results["parity"]["in_float64"] = {"hop": {"difference": 1e-14}}
    results["parity"]["spread"] = {"hop": 2e-3}
    settled = Page(write_ab(tmp_path / "settled", results)).text
    assert "Refused" not in settled
    assert "hop exact 3.0e-03 1.0e-14 3.0e-07 – 2.0e-03" in settled
    results["parity"]["in_float64"] = {"hop": {"difference": 1e-6}}
    assert "Refused" in Page(write_ab(tmp_path / "wrong", results)).text
    # An engine that rounds on purpose has only to be near.
    results["parity"]["not_judged"] = ["hop"]
    assert "Refused" not in Page(write_ab(tmp_path / "rounds", results)).text


@pytest.mark.parametrize(
    ("seconds", "headline"),
    [
        ([[3.0], [5.5]], "No difference shown between hop and model_centric"),
        ([[8.0], [8.1]], "hop takes 2.01x"),
        ([[2.0]], "No difference shown between hop and model_centric"),
    ],
)
def test_the_headline_goes_by_the_interval(tmp_path, seconds, headline):
    runs = []
    for index, hop_seconds in enumerate(seconds):
        runs += [make_run("model_centric", index, [4.0]), make_run("hop", index, hop_seconds)]
    page = Page(write_ab(tmp_path / "ab", make_results(runs, SOUND)))
    assert page.title.startswith(headline)
    assert ("One round only" in page.text) == (len(seconds) == 1)
    assert ("No difference shown in time" in page.text) == headline.startswith("No")


def test_without_a_baseline_and_without_pairs_no_ratio_is_shown(tmp_path):
    alone = Page(write_ab(tmp_path / "alone", make_results([make_run("hop", 0, [1.0])], SOUND)))
    assert alone.title == "hop"
    results = sound_results()
    results["runs"] = results["runs"][:-1]
    page = Page(write_ab(tmp_path / "ab", results))
    assert_shows(page, "hop and model_centric did not run in the same rounds")
    assert page.title == "model_centric and hop"


def test_variants_of_an_engine_have_shades_of_its_colour(tmp_path):
    runs = [make_run("model_centric", 0, [4.0]), make_run("hop", 0, [4.0])]
    runs.append(make_run("hop", 0, [2.0]) | {"label": "hop:merge=off"})
    parity = SOUND | {"hop:merge=off": 4e-7}
    html = Page(write_ab(tmp_path / "ab", make_results(runs, parity))).html
    for shade in ("grey); opacity: 1.0", "blue); opacity: 1.0", "blue); opacity: 0.68"):
        assert f'style="background: var(--{shade}"' in html


def test_bytes_of_interfaces_stand_beside_counted_bytes(tmp_path):
    results = make_results([make_run("hop", 0, [1.0], 4_000_000, 800_000)], SOUND)
    results["runs"][0]["nic_bytes"] = [2_600_000, 2_600_000]
    page = Page(write_ab(tmp_path / "ab", results))
    assert_shows(page, "hop 5.00 MB 5.20 MB 1.040")
    assert 'class="good">1.040' in page.html
    results["runs"][0]["nic_bytes"] = [6_000_000, 1.0]
    assert 'class="bad">1.200' in Page(write_ab(tmp_path / "other", results)).html


BY_CLASS = {
    "class": ["cats", "<dogs>", "2"], "precision": [0.75, 0.5, None], "recall": [0.6, 1.0, None],
    "f1": [2 / 3, 2 / 3, None], "support": [1500, 20, 0],
}  # fmt: skip


def test_scores_of_a_run_are_shown_by_metric_and_by_class(tmp_path):
    folder = write_run(
        tmp_path / "run", make_run("hop", 0, [9.0, 2.0]), [2.0], metric="mrr",
        scores={"val": {"mrr": 0.61, "hits@10": 0.8}, "test": {"mrr": 0.59, "hits@10": 0.79}},
        by_class={"test": BY_CLASS}, baselines={"test": {"mrr": 0.02, "hits@10": 0.1}},
    )  # fmt: skip
    assert_shows(
        Page(folder), "mrr 0.6100 0.5900 random-order baseline: 0.0200 hits@10 0.8000",
        "cats 1,500 0.7500 0.6000 0.6667", "<dogs> 20 0.5000 1.0000 0.6667", "2 0 – – –",
    )  # fmt: skip


def test_unscored_runs_are_read(tmp_path):
    entry = make_run("hop", 0, [9.0, 2.0])
    page = Page(write_run(tmp_path / "none", entry, [2.0], scores={}, best_epoch=None))
    assert page.title == "hop on none: 2.00 s an epoch"
    assert_shows(page, "Scores were not measured")


def test_nothing_from_a_file_becomes_markup(tmp_path):
    run = make_run("hop", 0, [1.0]) | {"label": EVIL, "options": {EVIL: EVIL}}
    run["scores"] = {"val": {EVIL: 0.5}}
    run["epochs"][0] |= {"scores": {EVIL: 0.5}, "lookups": {EVIL: [1, 1]}}
    results = make_results([make_run("model_centric", 0, [1.0]), run], SOUND | {EVIL: 1e-7})
    results |= {"commit": EVIL, "versions": {EVIL: EVIL}, "config": {EVIL: {EVIL: EVIL}}}
    results["machine"]["cpu"] = EVIL
    results["dataset"] |= {"name": EVIL, "relations": {EVIL: 3}}
    results["partition"]["method"] = results["parity"]["reference"] = EVIL
    ab = Page(write_ab(tmp_path / "ab", results, runs=False))
    trials = [{"trial": 0, "overrides": {EVIL: EVIL}, "diverged": EVIL}]
    classes = BY_CLASS | {"class": [EVIL, EVIL, EVIL]}
    more = {"trials": trials, "ranking": [0], "by_class": {"test": classes}}
    entry = make_run("hop", 0, [1.0]) | {"engine": EVIL}
    sweep = Page(write_run(tmp_path / "sweep", entry, [2.0], metric=EVIL, **more))
    for page, times in ((ab, 20), (sweep, 8)):
        assert not {"script", "img"} & {name for name, _ in page.elements}
        assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]
        assert page.text.count("<script>alert(1)</script>") > times


def test_gaps_and_long_runs_are_drawn_in_a_small_file(tmp_path):
    entry = make_run("hop", 0, [2.0] * 40)
    for epoch in entry["epochs"]:
        epoch |= {"iterations": 500, "loss": "nan"}
    losses = [1.0 + i / 500 for i in range(499)] + ["nan"]
    page = Page(write_run(tmp_path / "run", entry, losses))
    assert "Of each iteration" in page.text
    assert len(page.html) < 400_000


def test_what_is_missing_is_named(tmp_path):
    page = Page(write_ab(tmp_path / "ab", sound_results(), runs=False))
    assert_shows(page, "hop: no folder of its round 1 in runs", "No spans were found", "each epoch")
    folder = write_ab(tmp_path / "other", sound_results())
    shutil.rmtree(folder / "runs" / "hop-round-0" / "spans")
    assert_shows(Page(folder), "hop: no recorded spans in hop-round-0/spans", "Timeline")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema: Input should be 1; given 2"),
        ({"runs": []}, "runs: List should have at least 1 item"),
        ({"runs": [{"engine": "hop", "epochs": []}]}, r"runs\.0\.epochs: List should have"),
        ({"runs": [make_run("hop", 0, [-1.0])]}, r"runs\.0\.epochs\.0\.seconds: .*; given -1.0"),
        ({"runs": [{"engine": 3, "epochs": [1]}]},
         r"runs\.0\.engine: Input should be a valid string; given 3"),
        ({"parity": {"spread": {"hop": "s" * 99}}}, r"parity\.spread\.hop: .*; given s{57}\.\.\.$"),
    ],
)  # fmt: skip
def test_invalid_results_are_refused_and_the_field_is_named(tmp_path, change, message):
    folder = write_ab(tmp_path / "ab", sound_results() | change, runs=False)
    with pytest.raises(RequestError, match=message) as caught:
        write_report(folder)
    assert str(folder / "results.json") in str(caught.value)
    assert not (folder / "report.html").exists()


def test_invalid_summaries_are_refused(tmp_path):
    folder = write_run(tmp_path / "run", make_run("hop", 0, [9.0]), [2.0], best_epoch="first")
    with pytest.raises(RequestError, match=r"summary\.json: best_epoch: .*; given first"):
        write_report(folder)
    (folder / "summary.json").write_text(json.dumps({"trial": 1, "epochs": []}))
    with pytest.raises(RequestError, match=r"summary\.json: expected JSON: .*No such file"):
        write_report(folder)


@pytest.mark.parametrize("text", ["", "{", "\xff", "[1]"])
@pytest.mark.parametrize("name", ["results.json", "summary.json"])
def test_files_that_hold_no_results_are_refused(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(RequestError, match=name):
        write_report(tmp_path)


def test_the_command_writes_one_page_and_names_what_a_folder_lacks(tmp_path, capsys):
    folder = write_ab(tmp_path / "ab", sound_results())
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"report in {folder / 'report.html'}\n"
    assert sorted(p.name for p in folder.iterdir()) == ["report.html", "results.json", "runs"]
    assert main(["report", str(tmp_path)]) == 1
    assert "results.json (of `hopper bench`) or summary.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (quantity(0.0000123, "s"), "12.3 µs"),
        (quantity(0.05, "s"), "50.0 ms"),
        (quantity(1234.4, "s"), "1,234 s"),
        (quantity(0, "s"), "0 s"),
        (quantity(999, "B"), "999 B"),
        (quantity(38_680_000, "B"), "38.7 MB"),
        (quantity(93_670), "93.7 k"),
    ],
)
def test_quantities_have_units_and_three_digits(text, expected):
    assert text == expected
