"""The queue between two threads: its order, its bounds and its end."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import pytest

from hopper.pipeline.hand_over import Closed, HandOver


def start_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_items_come_in_their_order() -> None:
    queue: HandOver[int] = HandOver(3, 100)
    taken: list[int] = []

    def make() -> None:
        for item in range(50):
            queue.await_room(1)
            queue.put(item, 1)

    maker = start_thread(make)
    taken += [queue.take() for _ in range(50)]
    maker.join(10)
    assert taken == list(range(50))


@pytest.mark.parametrize(
    ("items", "nbytes", "sizes", "fit"),
    [(2, 100, [1, 1, 1], 2), (9, 10, [4, 4, 4], 2), (9, 10, [50, 1], 1), (9, 10, [10, 1], 1)],
)
def test_a_full_queue_lets_its_maker_wait(
    items: int, nbytes: int, sizes: list[int], fit: int
) -> None:
    queue: HandOver[int] = HandOver(items, nbytes)
    items_put = threading.Semaphore(0)

    def make() -> None:
        for size in sizes:
            queue.await_room(size)
            queue.put(size, size)
            items_put.release()

    maker = start_thread(make)
    for _ in range(fit):
        assert items_put.acquire(timeout=10)
    assert not items_put.acquire(timeout=0.1)
    assert [queue.take() for _ in sizes] == sizes
    maker.join(10)
    assert not maker.is_alive()


def test_an_error_comes_before_waiting_items_and_keeps_its_traceback() -> None:
    queue: HandOver[int] = HandOver(5, 5)
    queue.put(1, 1)

    def fail() -> None:
        raise ZeroDivisionError("in a stage")

    try:
        fail()
    except ZeroDivisionError as error:
        queue.fail(error)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in a stage") as caught:
            queue.take()
        assert "fail" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_closing_wakes_every_waiting_thread() -> None:
    full: HandOver[int] = HandOver(1, 1)
    full.put(1, 1)
    ended: list[str] = []

    def wait(what: Callable[[], object], name: str) -> None:
        with pytest.raises(Closed):
            what()
        ended.append(name)

    empty: HandOver[int] = HandOver(1, 1)
    threads = [
        start_thread(lambda: wait(lambda: full.await_room(1), "maker")),
        start_thread(lambda: wait(empty.take, "taker")),
    ]
    for queue in (full, empty):
        queue.close()
    for thread in threads:
        thread.join(10)
    assert sorted(ended) == ["maker", "taker"]
    full.put(2, 1)
    with pytest.raises(Closed):
        full.take()


def test_an_owed_item_is_put_without_room() -> None:
    queue: HandOver[int] = HandOver(1, 1)
    queue.put(1, 1)
    is_owed = False

    def make() -> None:
        queue.await_room(1, lambda: is_owed)
        queue.put(2, 1)

    maker = start_thread(make)
    maker.join(0.1)
    assert maker.is_alive()
    is_owed = True
    queue.wake()
    maker.join(10)
    assert not maker.is_alive()
    assert [queue.take(), queue.take()] == [1, 2]
