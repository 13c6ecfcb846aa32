# SPDX-License-Identifier: Apache-2.0
"""Runs work in threads ahead of its consumer, and keeps the results in order."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def call_ahead(
    calls: Iterable[Callable[[], T]], depth: int, threads: int
) -> Generator[T, None, None]:
    """Runs calls in threads and yields their results in order.

    Args:
        calls: functions to run; an exception is raised in place of the result.
        depth: number of results computed ahead of the consumer; 0 runs each call on demand, in the
            consumer's thread.
        threads: number of threads.
    """
    if depth == 0:
        for call in calls:
            yield call()
        return
    pool = concurrent.futures.ThreadPoolExecutor(threads, "reader")
    queue: collections.deque[Future[T]] = collections.deque()
    try:
        for call in calls:
            queue.append(pool.submit(call))
            if len(queue) > depth:
                yield queue.popleft().result()
        while queue:
            yield queue.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def iterate_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Runs an iterator in a thread and yields its items.

    Args:
        items: iterator that never yields None; a generator is closed at the end.
        depth: number of items computed ahead of the consumer; 0 computes each on demand.
    """
    take = functools.partial(next, items, None)
    try:
        with contextlib.closing(call_ahead(itertools.repeat(take), depth, threads=1)) as ahead:
            for item in ahead:
                if item is None:
                    return
                yield item
    finally:
        if isinstance(items, Generator):
            items.close()
