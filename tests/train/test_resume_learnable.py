"""Learnable rows on disk after a rank was killed: training resumes from the last checkpoint."""

from __future__ import annotations

from typing import Any

from hopper.train.tensor_file import read_facts

RGCN = "--model.name=rgcn"
MAPPED = (RGCN, "--learnable.storage=mmap", "--cache.policy=benefit", "--cache.size=30%")
ON_DISK = (*MAPPED, "--cache.decline=false")


def test_a_run_resumed_after_a_killed_rank_has_the_same_losses(typed_runs: Any) -> None:
    options = {"engine": "zero_hop", "checkpoint_every": 3}
    run = typed_runs.train("killed", *ON_DISK, epochs=10_000, **options)

    def read_progress() -> dict[str, Any]:
        checkpoint = run.checkpoint()
        if checkpoint is None:
            return {"epoch": 0}
        copy = run.run_dir.with_name("copy")
        copy.write_bytes(checkpoint[1])
        return dict(read_facts(copy)["progress"])

    run.await_condition(lambda: read_progress()["epoch"] >= 2, "checkpoint")
    run.ranks()[1].kill()
    assert run.finish() == 1
    run.assert_nothing_remains()
    assert "was killed by SIGKILL" in run.stderr
    epochs = read_progress()["epoch"] + 2
    resumed = typed_runs.train_to_end("killed", *ON_DISK, epochs=epochs, resume=True, **options)
    in_memory = typed_runs.train_to_end("in memory", RGCN, epochs=epochs, engine="zero_hop")
    assert len(in_memory.losses()) == epochs
    assert resumed.losses() == in_memory.losses()
    assert [epoch["val"] for epoch in resumed.epochs()] == [
        epoch["val"] for epoch in in_memory.epochs()
    ]
    hits, misses = map(sum, zip(*resumed.epochs()[-1]["lookups"].values(), strict=True))
    assert hits > 0
    assert misses > 0


def test_a_cache_for_rows_that_are_in_memory_is_declined(typed_runs: Any) -> None:
    """The files of learnable rows are so small that the kernel keeps them in memory. Features of
    the other server are cached."""
    run = typed_runs.train_to_end("declined", *MAPPED, epochs=2, engine="zero_hop")
    assert "cache: declined for learnable rows: their files" in run.stdout
    assert set(run.epochs()[-1]["lookups"]) == {"paper"}
    in_memory = typed_runs.train_to_end("in memory too", RGCN, epochs=2, engine="zero_hop")
    assert run.losses() == in_memory.losses()
    hosted = ("--learnable.storage=host", *MAPPED[2:])
    run = typed_runs.train_to_end("in host memory", RGCN, *hosted, epochs=2, engine="zero_hop")
    assert "declined for learnable rows: the model is in host memory as they are" in run.stdout
    assert run.losses() == in_memory.losses()
