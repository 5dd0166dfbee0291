"""The pipeline without engines: its order, its bounds, its state, its errors and its end."""

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hopper.errors import RequestError
from hopper.pipeline import Moment, Pipeline, Stage

ITERATIONS = 4
WAIT_SECONDS = 10.0


def plan(moment: Moment) -> str:
    return f"{moment.epoch}.{moment.iteration}"


STAGES = [Stage("plan", plan), Stage("read", lambda item: f"{item} read"), Stage("copy", str.upper)]
ALL = [f"{epoch}.{iteration} READ" for epoch in range(3) for iteration in range(ITERATIONS)]


def make(stages: list[Stage] = STAGES, epochs: int = 3, **options: Any) -> Pipeline[str]:
    return Pipeline(stages, ITERATIONS, epochs, **options)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def count_threads() -> int:
    names = ("hopper-plan", "hopper-read", "hopper-copy")
    return sum(thread.name.startswith(names) for thread in threading.enumerate())


@pytest.mark.parametrize("ahead", [True, False])
def test_a_loop_goes_through_an_epoch_and_the_stages_go_on(ahead):
    with make(ahead=ahead) as pipeline:
        assert [list(pipeline) for _ in range(4)] == [ALL[:4], ALL[4:8], ALL[8:], []]
        with pytest.raises(IndexError):
            pipeline.take()
    assert count_threads() == 0


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("taken", [0, 3, 4, 7, 12])
def test_a_state_goes_on_after_the_last_item_that_was_handed_out(taken, ahead):
    with make(ahead=ahead) as pipeline:
        assert [pipeline.take() for _ in range(taken)] == ALL[:taken]
        state = pipeline.state_dict()
    other = make(ahead=not ahead)
    other.load_state_dict(state)
    assert other.state_dict() == state
    with other:
        rest = [item for _ in range(3) for item in other]
    assert rest == ALL[taken:]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0, "iteration": 0, "iterations": ITERATIONS + 1},
        {"epoch": 0, "iteration": ITERATIONS, "iterations": ITERATIONS},
        {"epoch": -1, "iteration": 0, "iterations": ITERATIONS},
        {"epoch": "0", "iteration": 0, "iterations": ITERATIONS},
    ],
)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(RequestError, match="expected the state of epochs of 4 iterations, given"):
        make().load_state_dict(state)


def test_a_state_must_come_first():
    with make() as pipeline:
        pipeline.take()
        with pytest.raises(RequestError, match="before the first item is taken"):
            pipeline.load_state_dict(pipeline.state_dict())


@pytest.mark.parametrize(
    ("items", "nbytes", "sizes", "made"),
    [
        (2, 100, [1] * 12, 2),
        (9, 10, [4] * 12, 2),
        # An item of any size is made if none waits.
        (9, 10, [50] * 12, 1),
        (9, 0, [1] * 12, 1),
    ],
)
def test_a_stage_waits_while_enough_of_its_results_do(items, nbytes, sizes, made):
    results: list[str] = []

    def read(item: str) -> str:
        results.append(item)
        return item

    def size(item: str) -> int:
        return sizes[results.index(item)]

    with make([Stage("plan", plan), Stage("read", read, items, nbytes, size)]) as pipeline:
        first = pipeline.take()
        wait_until(lambda: len(results) == 1 + made)
        time.sleep(0.05)
        assert len(results) == 1 + made
        assert first == "0.0"
        assert len([first, *(item for _ in range(3) for item in pipeline)]) == 12


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("ahead", [True, False])
def test_an_error_of_a_stage_is_raised_with_its_own_traceback(number, ahead):
    def break_down(item: Any) -> Any:
        if "1" in str(item):
            raise ZeroDivisionError("in a stage")
        return item

    stages = [Stage(name, lambda item: item) for name in ("plan", "read", "copy")]
    stages[number] = Stage(stages[number].name, break_down)
    with make(stages, ahead=ahead) as pipeline:
        with pytest.raises(ZeroDivisionError, match="in a stage") as caught:
            list(pipeline)
        # What waits is dropped.
        assert pipeline.state_dict()["iteration"] <= 1
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames[-1] == "break_down"
    wait_until(lambda: count_threads() == 0)


def test_an_error_of_the_consumer_does_not_wait_for_the_stages():
    may_read, begun = threading.Event(), list[str]()

    def read(item: str) -> str:
        begun.append(item)
        assert len(begun) == 1 or may_read.wait(WAIT_SECONDS)
        return item

    pipeline = make([Stage("plan", plan), Stage("read", read)])
    pipeline.take()
    wait_until(lambda: len(begun) == 2)
    pipeline.__exit__(KeyError, None, None)
    # Now the stage that was in the midst of its work ends too.
    assert count_threads() > 0
    may_read.set()
    wait_until(lambda: count_threads() == 0)
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.take()


def test_a_window_shows_the_items_after_the_one_that_is_read():
    """All that are left of them at the end of the run."""
    foreseen: list[list[str]] = []
    known: list[int] = []

    def read(item: str) -> str:
        known.append(sum(map(len, foreseen)))
        return item

    stages = [Stage("plan", plan), Stage("read", read, reach=2, foresee=foreseen.append)]
    with make(stages, epochs=2) as pipeline:
        items = [item for _ in range(2) for item in pipeline]
    assert [item for new in foreseen for item in new] == items
    assert known == [3, 4, 5, 6, 7, 8, 8, 8]


def test_ranks_that_plan_together_may_rest_for_longer_than_their_deadline():
    """They have room for equally many items, though those of one are larger. They finish what they
    have begun before the end, since they wait for each other in the first stage."""
    together = threading.Barrier(2, timeout=1.0)
    agreeing = threading.Barrier(2, timeout=WAIT_SECONDS)
    sizes = [0, 0]

    def run(rank: int) -> list[str]:
        def plan_together(moment: Moment) -> str:
            together.wait()
            return plan(moment)

        def agree(nbytes: int) -> int:
            sizes[rank] = nbytes
            agreeing.wait()
            return max(sizes)

        stage = Stage("plan", plan_together, 9, 10, lambda _: [1, 5][rank])
        with make([stage], agree=agree) as pipeline:
            taken = list(pipeline)
            time.sleep(1.5)
            return [*taken, *pipeline]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, range(2))
    assert first == second == [item.removesuffix(" READ") for item in ALL[:8]]
    assert count_threads() == 0
