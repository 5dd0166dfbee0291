"""A rank that is killed takes nothing with it that the last checkpoint had."""

from __future__ import annotations

from typing import Any

from hopper.train.tensor_file import read_facts

RGCN = "--model.name=rgcn"
MAPPED = (RGCN, "--learnable.storage=mmap", "--cache.policy=benefit", "--cache.size=30%")
ON_DISK = (*MAPPED, "--cache.decline=false")


def test_a_killed_rank_loses_nothing(typed_runs: Any) -> None:
    options = {"engine": "zero_hop", "checkpoint_every": 3}
    run = typed_runs.train("killed", *ON_DISK, epochs=10_000, **options)

    def place() -> dict[str, Any]:
        found = run.checkpoint()
        if found is None:
            return {"epoch": 0}
        copy = run.run_dir.with_name("copy")
        copy.write_bytes(found[1])
        return dict(read_facts(copy)["progress"])

    run.await_condition(lambda: place()["epoch"] >= 2, "checkpoint")
    run.ranks()[1].kill()
    assert run.finish() == 1
    run.assert_nothing_remains()
    assert "was killed by SIGKILL" in run.stderr
    epochs = place()["epoch"] + 2
    resumed = typed_runs.finished("killed", *ON_DISK, epochs=epochs, resume=True, **options)
    whole = typed_runs.finished("in memory", RGCN, epochs=epochs, engine="zero_hop")
    assert len(whole.losses()) == epochs
    assert resumed.losses() == whole.losses()
    assert [each["val"] for each in resumed.epochs()] == [each["val"] for each in whole.epochs()]
    hits, misses = map(sum, zip(*resumed.epochs()[-1]["lookups"].values(), strict=True))
    assert hits > 0
    assert misses > 0


def test_a_cache_of_what_lies_in_memory_anyhow_is_declined(typed_runs: Any) -> None:
    """The records are tiny, so the kernel keeps their file; features of the other server are
    held."""
    run = typed_runs.finished("declined", *MAPPED, epochs=2, engine="zero_hop")
    assert "cache: declined for learnable rows: their files" in run.stdout
    assert set(run.epochs()[-1]["lookups"]) == {"paper"}
    whole = typed_runs.finished("in memory too", RGCN, epochs=2, engine="zero_hop")
    assert run.losses() == whole.losses()
    hosted = ("--learnable.storage=host", *MAPPED[2:])
    run = typed_runs.finished("in host memory", RGCN, *hosted, epochs=2, engine="zero_hop")
    assert "declined for learnable rows: the model is in host memory as they are" in run.stdout
    assert run.losses() == whole.losses()
