"""The report's page, read as text, shows results, refuses wrong ones, escapes markup, and names
what is missing."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.report import units, write_report
from hopper.bench.report.markup import Markup, join_markup, tag
from hopper.cli import main
from hopper.errors import RequestError

from .conftest import make_results, make_run
from .report_folders import SOUND, sound_results, write_ab, write_run

VOID = {"meta", "br", "wbr"}
EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">\'"&'


class Page(HTMLParser):
    """The elements, attributes and visible text of a page. It fails where tags are not nested."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="ascii"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def report(folder: Path) -> Page:
    return Page(write_report(folder))


def h1(folder: Path) -> str:
    html = write_report(folder).read_text()
    return html.split("<h1>")[1].split("</h1>")[0]


def test_the_page_of_an_ab_shows_its_results(tmp_path: Path) -> None:
    folder = write_ab(tmp_path / "ab", sound_results())
    assert h1(folder) == "hop is 1.98 (1.93 to 2.03) times as fast as model_centric"
    page = report(folder)
    for phrase in (
        "95% interval 1.93 to 2.03",
        "hop sends 4.90 (in every round) times fewer bytes than model_centric.",
        "8.20 MB sent, 4.90 (in every round) times fewer bytes",
        "same gradient, within 3.0e-07",
        "3 interleaved rounds of 1 measured epoch on identical seeds",
        "largest relative difference 3.0e-07, limit 1e-05",
        "Speed-up over model_centric",
        "Bytes by cause",
        "Input rows by where they came from",
        "Relative difference to model_centric (dotted: limit 1e-05)",
        "Validation accuracy",
        "epoch 0, iteration 2:",
        "waits 19%",
        "R_micro",
        "80.0 %",
        "A processor, 2 cores, 8.0 GiB",
        "Peak memory of a rank",
        "Every round and epoch",
        "Network interfaces were not counted",
    ):
        assert phrase in page.text, phrase
    assert "Not shown" not in page.text
    assert "Refused" not in page.text


def test_marks_carry_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    page = report(write_ab(tmp_path / "ab", sound_results()))
    tips = {attrs["data-tip"] for _, attrs in page.elements if "data-tip" in attrs}
    assert "hop\nfeature: 8.00 MB (97.6%)" in tips
    assert "hop\nround 2: 2.02 s" in tips
    assert "hop\n1.98× (1.93 to 2.03)" in tips
    assert "rank 1: compute, 60.0 ms\nmodel 1\ntime step 0\nroots: 3" in tips
    assert "model 0: rank 0 to 1\nbefore time step 1" in tips
    labels = [attrs.get("aria-label") for name, attrs in page.elements if name == "svg"]
    assert "hop: feature 8.00 MB, model 900 B, gradient 200 kB" in labels


def test_every_drawing_has_words_and_every_table_a_caption(tmp_path: Path) -> None:
    page = report(write_ab(tmp_path / "ab", sound_results()))
    drawings = [attrs for name, attrs in page.elements if name == "svg" and "role" in attrs]
    assert len(drawings) > 20
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawings)
    names = [name for name, _ in page.elements]
    assert names.count("table") == names.count("caption") > 5
    assert names.count("h1") == names.count("main") == 1
    assert dict(page.elements)["html"] == {"lang": "en"}
    identifiers = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(set(identifiers)) == len(identifiers)
    links = [str(a["href"]) for name, a in page.elements if name == "a" and "href" in a]
    assert {link.removeprefix("#") for link in links} <= set(identifiers)


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    path = write_report(write_ab(tmp_path / "ab", sound_results()))
    text = path.read_text(encoding="ascii")
    assert "http" not in text.replace("http-equiv", "")
    assert "@import" not in text
    assert "url(" not in text
    for name, attrs in Page(path).elements:
        assert name not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attrs


def test_unequal_engines_get_no_speed_up_anywhere(tmp_path: Path) -> None:
    results = sound_results()
    results["parity"]["max_relative_gradient_difference"]["hop"] = "nan"
    folder = write_ab(tmp_path / "ab", results)
    assert h1(folder) == "No speed-up can be told"
    page = report(folder)
    assert "hop: gradients differ by nan, limit 0.001 in float32" in page.text
    assert "×" not in page.text
    assert "as fast as" not in page.text
    assert any(attrs.get("role") == "alert" for _, attrs in page.elements)
    assert "2.02 s" in page.text


@pytest.mark.parametrize("value", [1.1e-3, None])
def test_losses_beyond_the_limit_or_unchecked_refuse_speed_ups(tmp_path: Path, value: Any) -> None:
    results = sound_results()
    differences = results["parity"]["max_relative_loss_difference"]
    differences["hop"] = value
    if value is None:
        del differences["hop"]
    text = report(write_ab(tmp_path / "ab", results)).text
    phrase = "differ by 0.0011" if value else "were not compared with the reference's"
    assert f"hop: losses {phrase}" in text
    assert "No speed-up can be told" in text


def test_an_approximate_engine_is_marked_and_not_held_to_parity(tmp_path: Path) -> None:
    results = sound_results()
    results["runs"] += [make_run("locality", index, [9.0, 1.0]) for index in range(3)]
    folder = write_ab(tmp_path / "ab", results)
    # The headline is for engines that compute the same.
    assert h1(folder) == "hop is 1.98 (1.93 to 2.03) times as fast as model_centric"
    page = report(folder)
    assert "approximate" in page.text
    assert "not checked" in page.text
    assert "No engine" not in page.text
    assert "Speed-up over locality" in page.text
    assert "0.25× as fast as locality" in page.text


def test_an_approximate_engine_that_fails_on_its_own_batches_refuses_speed_ups(
    tmp_path: Path,
) -> None:
    results = sound_results()
    results["runs"] += [make_run("locality", i, [1.0]) | {"exact": False} for i in range(3)]
    results["parity"]["max_relative_gradient_difference"]["locality"] = 0.5
    text = report(write_ab(tmp_path / "ab", results)).text
    assert "locality: gradients differ by 0.5" in text
    assert "×" not in text


def test_variants_of_an_engine_are_told_apart_by_label(tmp_path: Path) -> None:
    runs = [make_run("model_centric", index, [4.0]) for index in range(2)]
    for label, seconds in (("hop", 4.0), ("hop:merge=off:pregather=false", 2.0)):
        runs += [make_run("hop", i, [seconds]) | {"label": label} for i in range(2)]
    parity = SOUND | {"hop:merge=off:pregather=false": 4e-7}
    folder = write_ab(tmp_path / "ab", make_results(runs, parity))
    assert h1(folder) == (
        "hop<wbr>:merge=off<wbr>:pregather=false is 2.00 (in every round) times as fast as "
        "model_centric"
    )
    page = report(folder)
    assert "4.0e-07" in page.text
    assert "Not shown" not in page.text
    assert "Time steps of hop:merge=off:pregather=false" in {
        attrs.get("aria-label") for _, attrs in page.elements
    }


@pytest.mark.parametrize(
    ("seconds", "headline"),
    [
        ([[2.0], [2.1]], "hop is 1.95 (1.43 to 2.66) times as fast as model_centric"),
        ([[3.0], [5.5]], "No difference shown between hop and model_centric"),
        ([[8.0], [8.1]], "hop is 0.50 (0.46 to 0.54) times as fast as model_centric"),
        ([[2.0]], "No difference shown between hop and model_centric"),
    ],
)
def test_the_headline_goes_by_the_interval(
    tmp_path: Path, seconds: list[list[float]], headline: str
) -> None:
    runs = []
    for index, hop_seconds in enumerate(seconds):
        runs += [make_run("model_centric", index, [4.0]), make_run("hop", index, hop_seconds)]
    folder = write_ab(tmp_path / "ab", make_results(runs, SOUND))
    assert h1(folder) == headline
    text = report(folder).text
    assert ("has no interval" in text) == (len(seconds) == 1)
    # In the card, too, no number is told that the rounds do not show.
    assert ("no difference shown to model_centric" in text) == headline.startswith("No difference")


def test_divided_layers_show_who_does_how_much(tmp_path: Path) -> None:
    runs = [make_run("cooperative", index, [9.0, 4.0]) for index in range(2)]
    folder = write_ab(tmp_path / "ab", make_results(runs, {"cooperative": 1e-7}))
    text = report(folder).text
    assert "Work of each rank: cooperative" in text
    assert "layer 2 1,000 3,000 1.50 14 6" in text
    assert "Work of each rank" not in report(write_ab(tmp_path / "other", sound_results())).text


def test_rounding_settled_in_float64_is_no_failure(tmp_path: Path) -> None:
    results = sound_results()
    results["parity"]["max_relative_gradient_difference"]["hop"] = 3e-3
    assert "Refused" in report(write_ab(tmp_path / "unsettled", results)).text
    results["parity"]["in_float64"] = {"hop": {"difference": 1e-14}}
    results["parity"]["spread"] = {"hop": 2e-3}
    settled = report(write_ab(tmp_path / "settled", results)).text
    assert "Refused" not in settled
    assert "run again in float64, 1.0e-14, limit 1e-10" in settled
    assert "one process in other orders 2.0e-03" in settled
    results["parity"]["in_float64"] = {"hop": {"difference": 1e-6}}
    assert "Refused" in report(write_ab(tmp_path / "wrong", results)).text


def test_an_engine_that_rounds_is_shown_and_not_judged(tmp_path: Path) -> None:
    results = sound_results()
    results["parity"]["max_relative_gradient_difference"]["hop"] = 3e-2
    results["parity"]["not_judged"] = ["hop"]
    for run in results["runs"]:
        run["exact"] = run["engine"] != "hop"
    page = report(write_ab(tmp_path / "ab", results))
    assert "Refused" not in page.text
    assert "approximate" in page.text
    results["parity"]["max_relative_gradient_difference"]["hop"] = "nan"
    assert "Refused" in report(write_ab(tmp_path / "broken", results)).text


def test_without_a_baseline_the_headline_names_engine_and_graph(tmp_path: Path) -> None:
    folder = write_ab(tmp_path / "ab", make_results([make_run("hop", 0, [1.0])], SOUND))
    assert h1(folder) == "hop on tiny"


def test_rounds_that_cannot_be_paired_are_told(tmp_path: Path) -> None:
    results = sound_results()
    results["runs"] = results["runs"][:-1]
    text = report(write_ab(tmp_path / "ab", results)).text
    assert "hop and model_centric did not run in the same rounds" in text


def test_bytes_of_interfaces_stand_beside_counted_bytes(tmp_path: Path) -> None:
    results = make_results([make_run("hop", 0, [1.0], 4_000_000, 800_000)], SOUND)
    results["runs"][0]["nic_bytes"] = [2_600_000, 2_600_000]
    text = report(write_ab(tmp_path / "ab", results)).text
    assert "Counted by network interfaces" in text
    assert "hop 5.00 MB 5.20 MB 1.040 2.60 MB 2.60 MB" in text
    assert 'class="number good">1.040' in (tmp_path / "ab" / "report.html").read_text()
    results["runs"][0]["nic_bytes"] = [6_000_000, 1.0]
    html = write_report(write_ab(tmp_path / "other", results)).read_text()
    assert 'class="number bad">1.200' in html


def test_hit_rates_of_caches_are_told(tmp_path: Path) -> None:
    """They are shown over all types and by type, and not at all where nothing was looked up."""
    results = make_results(
        [make_run("hop", round_index, [1.0, 1.0]) for round_index in (0, 1)], SOUND
    )
    for run in results["runs"]:
        for epoch in run["epochs"]:
            epoch["lookups"] = {"author": [0, 0], "paper": [50, 150]}
    text = report(write_ab(tmp_path / "ab", results)).text
    assert "Hit rates of caches" in text
    assert "hop 25.0 % none asked 25.0 %" in text
    for run in results["runs"]:
        for epoch in run["epochs"]:
            del epoch["lookups"]
    assert "Hit rates" not in report(write_ab(tmp_path / "other", results)).text


def test_emulated_hosts_are_told(tmp_path: Path) -> None:
    results = sound_results()
    results["machine"]["emulation"] = {"hosts": 4, "link_rate": "1gbit", "effective": True}
    text = report(write_ab(tmp_path / "ab", results)).text
    assert 'emulated hosts: hosts = 4, link_rate = "1gbit"' in text


def test_missing_folders_of_runs_are_named(tmp_path: Path) -> None:
    text = report(write_ab(tmp_path / "ab", sound_results(), runs=False)).text
    assert "hop: no folder of its round 1 in runs" in text
    assert "No run's spans were found" in text
    assert "Training loss Per epoch" in text


def test_missing_spans_are_named(tmp_path: Path) -> None:
    folder = write_ab(tmp_path / "ab", sound_results())
    shutil.rmtree(folder / "runs" / "hop-round-0" / "spans")
    text = report(folder).text
    assert "hop: no recorded spans in hop-round-0/spans" in text
    assert "Time steps as they ran" in text


def test_the_page_of_a_single_run_shows_its_sections(tmp_path: Path) -> None:
    write_run(tmp_path / "run", make_run("hop", 0, [9.0, 2.0]), [3.0, 2.0, 1.5, 1.0])
    config = {"data": {"partitioned": str(tmp_path / "gone")}, "model": {"name": "gat"}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert h1(tmp_path / "run") == "run: accuracy 0.5500 on the test split, 0.6000 on validation"
    page = report(tmp_path / "run")
    text = page.text
    headings = [attrs["id"] for name, attrs in page.elements if name == "section"]
    assert headings == [
        "scores",
        "learning",
        "time",
        "traffic",
        "time-steps",
        "evidence",
        "setting",
    ]
    for phrase in ("Test accuracy 0.5500", "Best validation accuracy 0.6000 epoch 1 (of 0 to 1)",
                 "accuracy by epoch Dashed: epoch 1, the best by accuracy",
                 "they reach 0.5500 on the test split", "epoch 0, iteration 0", "Training loss",
                 "gat",
                 "Graph and locality: the partitioned graph cannot be read",
                 "Machine, versions and commit"):  # fmt: skip
        assert phrase in text, phrase
    for absent in ("Speed-up", "Parity Largest", "R_micro"):
        assert absent not in text, absent


def write_changed_summary(folder: Path, **changes: Any) -> Path:
    """Write a run's folder with changes to its summary; None removes a key."""
    write_run(folder, make_run("hop", 0, [9.0, 2.0, 2.0]), [3.0, 2.0, 1.5, 1.0])
    file = folder / "summary.json"
    summary = {key: value for key, value in json.loads(file.read_text()).items()
               if changes.get(key, value) is not None}  # fmt: skip
    file.write_text(json.dumps(summary | {k: v for k, v in changes.items() if v is not None}))
    return folder


BY_CLASS = {
    "class": ["cats", "<dogs>", "2"],
    "precision": [0.75, 0.5, None],
    "recall": [0.6, 1.0, None],
    "f1": [2 / 3, 2 / 3, None],
    "support": [1500, 20, 0],
}


def test_scores_of_a_run_are_shown_by_metric_and_by_class(tmp_path: Path) -> None:
    scores = {"val": {"mrr": 0.61, "hits@10": 0.8}, "test": {"mrr": 0.59, "hits@10": 0.79}}
    folder = write_changed_summary(
        tmp_path / "run", metric="mrr", scores=scores, by_class={"test": BY_CLASS},
        baselines={"test": {"mrr": 0.02, "hits@10": 0.1}},
    )  # fmt: skip
    assert h1(folder) == "run: mrr 0.5900 on the test split, 0.6100 on validation"
    text = report(folder).text
    assert "metric validation test one answer for all, test" in text
    assert "mrr 0.6100 0.5900 0.0200 hits@10 0.8000 0.7900 0.1000" in text
    assert "3 classes; mean F1 0.6667." in text
    assert "cats 1,500 0.7500 0.6000 0.6667" in text
    assert "<dogs> 20 0.5000 1.0000 0.6667" in text
    assert "2 0 – – –" in text
    assert text.index("Test scores by class") < text.index("Epoch time") < text.index("by cause")


def test_a_run_of_an_older_version_is_read(tmp_path: Path) -> None:
    old = {"val": 0.6, "test": None}
    folder = write_changed_summary(tmp_path / "run", metric="rmse", scores=None, accuracy=old)
    assert h1(folder) == "run: rmse 0.6000 on validation"
    results = sound_results()
    for run in results["runs"]:
        del run["scores"]
        run["accuracy"] = {"val": 0.5, "test": 0.25}
    text = report(write_ab(tmp_path / "ab", results)).text
    assert "Final accuracy" in text
    assert "hop 0.5000 0.2500" in text


def test_a_run_that_was_not_scored_says_so(tmp_path: Path) -> None:
    folder = write_changed_summary(
        tmp_path / "run", scores={"val": {}, "test": {}}, best_epoch=None
    )
    assert h1(folder) == "hop on run: 2.00 s an epoch"
    assert "Scores were not measured" in report(folder).text


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    broken = BY_CLASS | {"support": [1]}
    folder = write_changed_summary(tmp_path / "run", by_class={"test": broken})
    with pytest.raises(RequestError, match=r"by_class\.test: .*expected 3 classes in each column"):
        write_report(folder)


def test_an_engine_has_its_colour_whatever_it_stands_beside(tmp_path: Path) -> None:
    swatches = {}
    for others in (["model_centric"], ["model_centric", "zero_hop", "locality"]):
        runs = [make_run(name, i, [4.0]) for i in range(2) for name in (*others, "hop")]
        folder = write_ab(tmp_path / str(len(others)), make_results(runs, dict.fromkeys(
            [*others, "hop"], 1e-7)))  # fmt: skip
        cards = [
            a["class"] for n, a in report(folder).elements if "swatch c-" in str(a.get("class"))
        ]
        swatches[len(others)] = cards
    assert swatches[1][:2] == ["swatch c-grey-0", "swatch c-blue-0"]
    assert swatches[3][:4] == [f"swatch c-{name}-0" for name in ("grey", "red", "orange", "blue")]
    assert ".c-blue-0 { --k: var(--blue)" in (folder / "report.html").read_text()


def test_a_single_run_tells_of_its_graph(tmp_path: Path, tiny_graph: Any) -> None:
    write_run(tmp_path / "run", make_run("zero_hop", 0, [2.0]), [3.0, 2.0, 1.5, 1.0])
    config = {"data": {"partitioned": str(tiny_graph.path)}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    text = report(tmp_path / "run").text
    assert "node: 240 nodes, 64 features" in text
    assert "over 2 servers" in text


def test_nothing_from_a_file_becomes_markup(tmp_path: Path) -> None:
    run = make_run("hop", 0, [1.0]) | {"label": EVIL, "options": {EVIL: EVIL}}
    run["epochs"][0]["rows"][EVIL] = 1
    parity = {EVIL: 1e-7}
    results = make_results([make_run("model_centric", 0, [1.0]), run], SOUND | parity)
    results |= {"commit": EVIL, "versions": {EVIL: EVIL}, "config": {EVIL: {EVIL: EVIL}}}
    results["machine"]["cpu"] = EVIL
    results["dataset"]["name"] = EVIL
    results["dataset"]["relations"] = {EVIL: 3}
    results["partition"]["method"] = EVIL
    results["parity"]["reference"] = EVIL
    page = report(write_ab(tmp_path / "ab", results, runs=False))
    names = [name for name, _ in page.elements]
    assert names.count("script") == 1
    assert "img" not in names
    assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]
    assert page.text.count("<script>alert(1)</script>") > 10


def test_nothing_from_spans_becomes_markup(tmp_path: Path) -> None:
    folder = write_ab(tmp_path / "ab", sound_results())
    path = folder / "runs" / "hop-round-0" / "spans" / "rank-0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(line | {EVIL: EVIL}) for line in lines))
    page = report(folder)
    assert [name for name, _ in page.elements].count("script") == 1
    assert any(EVIL in str(attrs.get("data-tip")) for _, attrs in page.elements)


def test_losses_that_are_no_numbers_leave_a_gap(tmp_path: Path) -> None:
    results = sound_results()
    for run in results["runs"]:
        run["epochs"][-1]["loss"] = "nan"
    assert "Training loss" in report(write_ab(tmp_path / "ab", results, runs=False)).text


def test_long_runs_do_not_make_large_files(tmp_path: Path) -> None:
    entry = make_run("hop", 0, [2.0] * 40)
    for epoch in entry["epochs"]:
        epoch["iterations"] = 500
    write_run(tmp_path / "run", entry, [1.0 + i / 500 for i in range(500)])
    assert write_report(tmp_path / "run").stat().st_size < 400_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema: Input should be 1; given 2"),
        ({"runs": []}, "runs: List should have at least 1 item"),
        ({"runs": [{"engine": "hop", "epochs": []}]}, r"runs\.0\.epochs: List should have"),
        ({"runs": [make_run("hop", 0, [-1.0])]}, r"runs\.0\.epochs\.0\.seconds: .*; given -1.0"),
        ({"runs": [{"engine": 3, "epochs": [1]}]},
         r"runs\.0\.engine: Input should be a valid string; given 3"),
        ({"parity": {"max_relative_loss_difference": {"hop": "small"}}},
         r"parity\.max_relative_loss_difference\.hop: .*; given small"),
    ],
)  # fmt: skip
def test_invalid_results_are_refused_and_the_field_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = write_ab(tmp_path / "ab", sound_results() | change, runs=False)
    with pytest.raises(RequestError, match=message) as caught:
        write_report(folder)
    assert str(folder / "results.json") in str(caught.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("text", ["", "{", "\xff", "[1]"])
def test_files_that_hold_no_results_are_refused(tmp_path: Path, text: str) -> None:
    for name in ("results.json", "summary.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(RequestError, match=name):
            write_report(folder)


def test_a_folder_without_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    assert "results.json (of `hopper bench ab`) or summary.json" in capsys.readouterr().err


def test_the_command_writes_one_page_however_often_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_ab(tmp_path / "ab", sound_results())
    for _ in range(2):
        assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.count(f"report in {folder / 'report.html'}") == 2
    assert sorted(path.name for path in folder.iterdir()) == [
        "report.html", "results.json", "runs"]  # fmt: skip


def test_markup_escapes_all_but_itself() -> None:
    assert tag("p", "<b>&", Markup("<i></i>"), None, 3, title='"<') == (
        '<p title="&quot;&lt;">&lt;b&gt;&amp;<i></i>3</p>'
    )
    assert tag("br", hidden=True, id=None, open=False, data_x=1.5) == '<br hidden data-x="1.5">'
    assert join_markup(["a", ["<"]], "b") == "a&lt;b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.seconds(0.0000123), "12.3 µs"),
        (units.seconds(0.05), "50.0 ms"),
        (units.seconds(12.34), "12.3 s"),
        (units.seconds(0), "0 s"),
        (units.size(999), "999 B"),
        (units.size(38_680_000), "38.7 MB"),
        (units.memory(2048), "2.00 GiB"),
        (units.count(93_670), "93.7 k"),
        (units.three_digits(0.0996), "0.0996"),
        (units.three_digits(99.96), "100"),
        (units.join_words(["a", "b", "c"]), "a, b and c"),
    ],
)
def test_numbers_have_units_and_few_digits(text: str, expected: str) -> None:
    assert text == expected


def test_axes_have_round_steps() -> None:
    assert units.round_steps(0, 0.482, 7) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert units.round_steps(-1, 1, 4) == pytest.approx([-1, -0.5, 0, 0.5, 1])
    assert units.round_steps(3, 3) == [3]
