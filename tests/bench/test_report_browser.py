"""In a real browser the report raises no error, does not overflow, and every chart has a size."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.report import write_report

from .headless_browser import HeadlessBrowser, browser_path
from .report_folders import sound_results, write_ab

BROWSER = browser_path()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on the PATH")

SIZES = """[...document.querySelectorAll("svg[role=img]")].map((svg) => {
  const box = svg.getBoundingClientRect();
  return [svg.getAttribute("aria-label"), box.width, box.height,
          svg.querySelectorAll("rect, line, circle, polyline").length,
          svg.checkVisibility({contentVisibilityAuto: true})];
})"""

# Whatever reaches beyond the page's right edge and is not in a box that scrolls by itself.
BEYOND = """[...document.querySelectorAll("main *")].filter((element) =>
  element.checkVisibility() && !element.closest(".scroll, .gantt-scroll, pre, .unseen") &&
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5
).map((element) => element.outerHTML.slice(0, 120))"""

PRESSED = (
    """[...document.querySelectorAll("button[aria-pressed=true]")].map((b) => b.textContent)"""
)
SHOWN = """[...document.querySelectorAll(".iteration")].filter((panel) => panel.checkVisibility())
  .map((panel) => panel.dataset.iteration)"""
WIDTHS = """[...document.querySelectorAll(".gantt-inner")].filter((e) => e.checkVisibility())
  .map((e) => e.getBoundingClientRect().width)"""
TIP = """(() => { const tip = document.getElementById("tip");
  return tip.checkVisibility() ? tip.textContent : null; })()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadlessBrowser]:
    assert BROWSER is not None
    with HeadlessBrowser(BROWSER, tmp_path_factory.mktemp("profile")) as headless:
        yield headless


@pytest.fixture(autouse=True)
def quiet(browser: HeadlessBrowser) -> Iterator[None]:
    """Check that the browser reports no error or warning during a test."""
    browser.complaints.clear()
    browser.requests.clear()
    yield
    browser.run("1")
    assert browser.complaints == []
    assert {address.split(":")[0] for address in browser.requests} <= {"file", "about"}
    assert {Path(address).name for address in browser.requests} <= {"report.html", "blank"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ab_folder = write_ab(tmp_path_factory.mktemp("browser") / "ab", sound_results())
    write_report(ab_folder)
    return ab_folder


def centre(browser: HeadlessBrowser, selector: str) -> list[float]:
    """Scroll an element into view; returns its centre."""
    point: list[float] = browser.run(
        f"""(() => {{
          const marks = [...document.querySelectorAll({selector!r})];
          const mark = marks.find((e) => e.checkVisibility());
          mark.scrollIntoView({{behavior: "instant", block: "center"}});
          const box = mark.getBoundingClientRect();
          return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() =>
            done([box.x + box.width / 2, box.y + box.height / 2]))));
        }})()"""
    )
    return point


def click(browser: HeadlessBrowser, text: str) -> None:
    browser.run(
        f"""[...document.querySelectorAll("button")]
            .find((button) => button.textContent === {text!r}).click()"""
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_charts_have_a_size_and_the_page_does_not_overflow(
    browser: HeadlessBrowser, folder: Path, width: int, dark: bool
) -> None:
    browser.open(folder / "report.html", width, dark=dark)
    page = "document.documentElement"
    assert browser.run(f"{page}.scrollWidth") == browser.run(f"{page}.clientWidth") == width
    assert browser.run(BEYOND) == []
    charts: list[Any] = [chart for chart in browser.run(SIZES) if chart[4]]
    assert len(charts) > 15
    for label, wide, high, marks, _ in charts:
        assert wide > 2, label
        assert high > 20, label
        assert marks > 0, label
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground.strip("rgb()").split(","))
    assert (brightness < 150) == dark


def test_words_on_bars_fit(browser: HeadlessBrowser, folder: Path) -> None:
    browser.open(folder / "report.html", 1280)
    spilled = browser.run(
        """[...document.querySelectorAll(".bar text")].filter((text) => {
          const own = text.getBoundingClientRect();
          const rect = text.previousElementSibling.getBoundingClientRect();
          return own.left < rect.left || own.right > rect.right;
        }).map((text) => text.textContent)"""
    )
    assert spilled == []
    assert browser.run('document.querySelectorAll(".bar text").length') > 3


def test_one_iteration_is_shown_and_another_can_be_chosen(
    browser: HeadlessBrowser, folder: Path
) -> None:
    browser.open(folder / "report.html", 1280)
    assert browser.run(PRESSED) == ["Iteration 0", "by model"]
    assert browser.run(SHOWN) == ["0"]
    click(browser, "Iteration 2")
    assert browser.run(SHOWN) == ["2"]
    assert browser.run(PRESSED) == ["Iteration 2", "by model"]


def test_spans_are_coloured_by_model_or_by_stage(browser: HeadlessBrowser, folder: Path) -> None:
    browser.open(folder / "report.html", 1280)
    fills = """[...new Set([...document.querySelectorAll(".iteration .s-compute")]
      .filter((e) => e.checkVisibility()).map((e) => getComputedStyle(e).fill))].length"""
    assert browser.run(fills) == 2
    click(browser, "by stage")
    assert browser.run(fills) == 1
    shown = "[...document.querySelectorAll('.legend li')].filter((e) => e.checkVisibility())"
    words = browser.run(f"{shown}.map((e) => e.textContent)")
    assert "model 0" not in words
    click(browser, "by model")
    assert "model 0" in browser.run(f"{shown}.map((e) => e.textContent)")


def test_time_can_be_zoomed_and_shared_between_engines(
    browser: HeadlessBrowser, folder: Path
) -> None:
    browser.open(folder / "report.html", 1280)
    first, second = browser.run(WIDTHS)
    assert first == second > 600
    click(browser, "+")
    assert browser.run(WIDTHS) == pytest.approx([2 * first, 2 * first])
    click(browser, "−")
    click(browser, "same time axis")
    # model_centric's iteration takes 0.23 s, hop's 0.26 s.
    assert browser.run(WIDTHS) == pytest.approx([first * 0.23 / 0.26, first], rel=1e-3)


def test_the_pointer_is_told_what_is_below_it(browser: HeadlessBrowser, folder: Path) -> None:
    browser.open(folder / "report.html", 1280)
    assert browser.run(TIP) is None
    browser.move_to(*centre(browser, ".gantt .s-migrate"))
    assert "rank 0: migrate, 20.0 ms" in browser.run(TIP)
    browser.move_to(*centre(browser, ".canvas"))
    tip = browser.run(TIP)
    assert tip == "iteration 3\nmodel_centric: 1.50\nhop: 1.50"
    browser.move_to(*centre(browser, "h1"))
    assert browser.run(TIP) is None


def test_light_and_dark_can_be_switched(browser: HeadlessBrowser, folder: Path) -> None:
    browser.open(folder / "report.html", 1280)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(ground)
    click(browser, "Light / dark")
    dark = browser.run(ground)
    assert light != dark
    click(browser, "Light / dark")
    assert browser.run(ground) == light


def test_print_has_no_controls_and_is_not_cut(browser: HeadlessBrowser, folder: Path) -> None:
    browser.open(folder / "report.html", 760, dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert (
        browser.run(
            '[...document.querySelectorAll("nav, .controls")].some((e) => e.checkVisibility())'
        )
        is False
    )
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run(
        """[...document.querySelectorAll(".gantt-scroll")].filter((e) => e.checkVisibility())
           .every((e) => e.scrollWidth <= e.clientWidth)"""
    )
    assert len(browser.call("Page.printToPDF", printBackground=True)["data"]) > 10_000


def test_markup_in_names_is_shown_and_never_runs(browser: HeadlessBrowser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    results = sound_results()
    for run in results["runs"]:
        if run["engine"] == "hop":
            run["label"] = evil
    for differences in results["parity"].values():
        if isinstance(differences, dict):
            differences[evil] = 1e-7
    folder = write_ab(tmp_path / "ab", results, runs=False)
    browser.open(write_report(folder), 400)
    assert browser.run("document.images.length") == 0
    assert "<img src=x" in browser.run("document.querySelector('h1').textContent")
    assert browser.run("document.title") != "owned"
    assert browser.run("document.documentElement.scrollWidth") == 400


def test_a_refusal_is_seen_first(browser: HeadlessBrowser, tmp_path: Path) -> None:
    results = sound_results()
    results["parity"]["max_relative_gradient_difference"]["hop"] = 1.0
    browser.open(write_report(write_ab(tmp_path / "ab", results)), 1280)
    box = browser.run(
        "(() => { const b = document.querySelector('.refusal').getBoundingClientRect();"
        " return [b.top, b.bottom, b.width]; })()"
    )
    assert box[0] > 0
    assert box[1] < 700
    assert box[2] > 800


def test_a_page_without_spans_has_no_timeline(
    browser: HeadlessBrowser, folder: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "ab"
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "runs")
    browser.open(write_report(copy), 1280)
    assert browser.run("document.querySelectorAll('.gantt').length") == 0
    assert "No run's spans were found" in browser.run("document.body.innerText")
