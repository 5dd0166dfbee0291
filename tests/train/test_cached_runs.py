"""The commands around a cache: profiling, planning, training with what was profiled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopper.cli import main
from hopper.config import make_config
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.hetero.cache_profile import FOLDER
from hopper.partition import PartitionedGraph
from hopper.train.launch import prepare
from hopper.train.warm_cache import check_profile


def test_profiles_are_kept_and_used_again(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Profiled by the command, planned, trained with: sampled once."""
    config = runs.config("profiled", engine="model_centric")
    own = [str(config), "--train.seed=9"]
    assert main(["cache", "plan", "--size", "1K", *own]) == 1
    assert "no such profile; `hopper cache profile` makes one" in capsys.readouterr().err
    made = subprocess.run(
        [sys.executable, "-m", "hopper.cli", "cache", "profile", *own],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "counting" not in made.stderr
    assert "rank 1," in made.stdout
    picture = Path(str(config)).with_suffix(".png")
    assert main(["cache", "plan", "--size", "20%", "--out", str(picture), *own]) == 0
    planned = capsys.readouterr().out
    for policy in ("lru", "hotness", "hotness+penalty", "benefit"):
        assert policy in planned
    assert picture.read_bytes().startswith(b"\x89PNG")
    run = runs.finished(
        *("profiled", "--train.seed=9", "--cache.policy=hotness", "--cache.size=20%"),
        engine="model_centric",
    )
    assert "to count visits" not in run.stdout
    assert "cache: " in run.stdout
    other = runs.finished(
        *("sampled", "--train.seed=10", "--cache.policy=hotness", "--cache.size=20%"),
        engine="model_centric",
    )
    assert "to count visits" in other.stdout


def test_refusals(runs: Any, partitioned: Path, tmp_path: Path) -> None:
    """Before anything is started, naming the key."""

    def refused(engine: str, **cache: Any) -> str:
        config = make_config(
            {
                "data": {"partitioned": str(partitioned)},
                "train": {"engine": engine, "run_dir": str(tmp_path / "run")},
                "cache": cache,
            }
        )
        with pytest.raises(RequestError) as error:
            prepare(config)
        assert not (tmp_path / "run").exists()
        return str(error.value)

    told = refused("cooperative", policy="lru", size="1M")
    assert "cache.policy: cooperative reads no rows of other servers" in told
    assert "cache.size: expected room for rows, given '0'" in refused("hop", policy="lru")
    assert "cache.size: expected a number and a unit" in refused("hop", policy="lru", size="huge")
    assert not (partitioned / FOLDER / "nothing").exists()
    graph = PartitionedGraph.open(partitioned)
    config = make_config({"data": {"partitioned": str(partitioned)}, "train": {"engine": "auto"}})
    with pytest.raises(RequestError, match=r"train\.engine: visits are those of one"):
        check_profile(Request(config, graph))
