"""In a real browser a report fits a phone, follows light and dark, and asks for nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hopper.bench.report import write_report

from .conftest import make_run
from .report_folders import sound_results, write_ab, write_run, write_sweep

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
EVIL = "<img src=x onerror=\"parent.document.title='owned'\"><script>parent.owned = 1</script>"
# Every report in a frame of each width. What is drawn is measured from outside: a report allows no
# script of its own.
FRAMES = """<title>frames</title><pre id="out"></pre>%s<script>
addEventListener("load", () => {
  const measured = [...document.querySelectorAll("iframe")].map((frame) => {
    const page = frame.contentDocument;
    const wide = page.documentElement.clientWidth;
    const beyond = [...page.querySelectorAll("main *")].filter((e) => e.checkVisibility() &&
      !e.closest(".scroll") && e.getBoundingClientRect().right > wide + 1);
    return {
      width: page.documentElement.scrollWidth - wide,
      beyond: beyond.map((e) => e.outerHTML.slice(0, 99)),
      charts: [...page.querySelectorAll("svg")].map((e) => e.getBoundingClientRect().height),
      ground: getComputedStyle(page.body).backgroundColor,
      text: getComputedStyle(page.querySelector("svg text")).fill,
      bar: getComputedStyle(page.querySelector("#bytes svg [style*=blue]")).fill,
    };
  });
  document.getElementById("out").textContent = JSON.stringify([document.title, measured]);
});
</script>"""


@pytest.mark.skipif(not BROWSER, reason="no Chromium or Chrome on the PATH")
@pytest.mark.parametrize("dark", [False, True])
def test_reports_fit_a_phone_and_follow_light_and_dark(tmp_path: Path, dark: bool) -> None:
    evil = sound_results()
    for run in evil["runs"]:
        run["label"] = EVIL if run["engine"] == "hop" else ""
    for differences in list(evil["parity"].values())[1:]:
        differences[EVIL] = 1e-7
    folders = [
        write_run(tmp_path / "run", make_run("hop", 0, [9.0, 2.0]), [3.0, 2.0, 1.5, 1.0]),
        write_ab(tmp_path / "ab", sound_results()),
        write_sweep(tmp_path / "sweep"),
        write_ab(tmp_path / "evil", evil, runs=False),
    ]
    frames = "".join(
        f'<iframe src="{write_report(folder)}" style="width:{width}px;height:900px"></iframe>'
        for folder in folders
        for width in (360, 1200)
    )
    (tmp_path / "frames.html").write_text(FRAMES % frames)
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--allow-file-access-from-files", "--enable-logging=stderr", "--hide-scrollbars",
         f"--user-data-dir={tmp_path / 'profile'}", *(["--force-dark-mode"] if dark else []),
         "--dump-dom", (tmp_path / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    # Errors, and whatever the policy of a page did not let it load or run.
    assert "CONSOLE" not in done.stderr
    [out] = re.findall('<pre id="out">(.*?)</pre>', done.stdout)
    title, measured = json.loads(
        out.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    assert title == "frames"
    assert len(measured) == 8
    for page in measured:
        assert page["width"] == 0
        assert page["beyond"] == []
        assert len(page["charts"]) > 3
        assert min(page["charts"]) > 30
        ground, text, bar = (
            sum(map(int, re.findall(r"\d+", page[what]))) for what in ("ground", "text", "bar")
        )
        assert (ground < 150) == dark
        assert (text > 400) == dark
        assert abs(bar - ground) > 150
