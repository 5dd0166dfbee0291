"""Commands for a cache: profiling, planning, and training with a profile."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hopper.cli import main
from hopper.config import make_config
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.hetero.cache_profile import FOLDER
from hopper.launch.run import prepare
from hopper.partition import PartitionedGraph
from hopper.train.warm_cache import check_profile


@pytest.fixture
def copy(parts, tmp_path) -> Path:
    """A copy of the partitioned directory, for profiles."""
    return Path(shutil.copytree(parts, tmp_path / "copy"))


def test_profiles_are_kept_and_used_again(runs, copy, capsys):
    """The command makes a profile. Planning and training use it, and do not sample again."""
    config = runs.config("profiled", engine="model_centric", epochs=1)
    data = f"--data.partitioned={copy}"
    config_words = [str(config), "--train.seed=9", data]
    assert main(["inspect", "cache", "--size", "1K", *config_words]) == 1
    error = capsys.readouterr().err
    assert "no such profile; `hopper inspect cache CONFIG --profile` makes one" in error
    profiling = runs.call_to_end("profiling", "inspect", "cache", "--profile", *config_words)
    assert "counting" not in profiling.stderr
    assert "rank 1," in profiling.stdout
    again = runs.call("profiling", "inspect", "cache", "--profile", "--json", *config_words)
    assert [of_rank["rank"] for of_rank in json.loads(again.stdout)] == [0, 1]
    assert main(["inspect", "cache", "--size", "20%", *config_words]) == 0
    printed = capsys.readouterr().out
    for policy in ("lru", "hotness", "hotness+penalty", "benefit"):
        assert policy in printed
    assert main(["inspect", "cache", "--json", "--size", "20%", *config_words]) == 0
    described = json.loads(capsys.readouterr().out)
    assert [of_rank["rank"] for of_rank in described] == [0, 1]
    for of_rank in described:
        (visited,) = of_rank["types"].values()
        hottest = of_rank["policies"]["hotness"]
        assert 0 < hottest["visits_found"] < visited["visits"]
        assert visited["row_bytes"] * sum(hottest["rows"].values()) <= of_rank["cache_bytes"]
        assert "visits_found" not in of_rank["policies"]["lru"]
    words = ("--cache.policy=hotness", "--cache.size=20%", "--train.engine=model_centric", data)
    run = runs.train_to_end("profiled", "--train.seed=9", *words, epochs=1)
    assert "to count visits" not in run.stdout
    assert "cache: " in run.stdout
    sampling_run = runs.train_to_end("sampled", "--train.seed=10", *words, epochs=1)
    assert "to count visits" in sampling_run.stdout


def test_a_folder_that_takes_no_profiles_is_told_before_profiling(runs, copy, capsys):
    (copy / FOLDER).write_text("not a folder")
    config = runs.config("no-profiles", engine="model_centric")
    assert main(["inspect", "cache", "--profile", str(config), f"--data.partitioned={copy}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {copy / FOLDER}")
    assert error.endswith(": profiles cannot be written there: Not a directory\n")


def test_bad_settings_of_a_cache_are_refused_before_a_run(parts, tmp_path):
    """The error names the key."""

    def error_of(engine: str, **cache: Any) -> str:
        config = make_config(
            {
                "data": {"partitioned": str(parts)},
                "train": {"engine": engine, "run_dir": str(tmp_path / "run")},
                "cache": cache,
            }
        )
        with pytest.raises(RequestError) as error:
            prepare(config)
        assert not (tmp_path / "run").exists()
        return str(error.value)

    message = error_of("cooperative", policy="lru", size="1M")
    assert "cache.policy: cooperative reads no rows of other servers" in message
    assert "cache.size: expected room for rows, given '0'" in error_of("hop", policy="lru")
    assert "cache.size: expected a number and a unit" in error_of("hop", policy="lru", size="huge")
    assert not (parts / FOLDER / "nothing").exists()
    graph = PartitionedGraph.open(parts)
    config = make_config({"data": {"partitioned": str(parts)}, "train": {"engine": "auto"}})
    with pytest.raises(RequestError, match=r"train\.engine: visits are those of one"):
        check_profile(Request(config, graph))
