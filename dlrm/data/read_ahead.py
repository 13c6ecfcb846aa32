# SPDX-License-Identifier: Apache-2.0
"""Work done in threads ahead of the one who asks for it, in order and bounded."""

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
    """Yields the results of calls in their order.

    Args:
        calls: run in threads; an exception of one is raised where its result was due.
        depth: results that are made before they are asked for; 0 runs each call when asked.
        threads: that run calls at the same time.
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
    """Yields the items (none of which is None) of an iterator that runs in one thread.

    Args:
        items: closed at the end, if it is a generator.
        depth: items that are made before they are asked for; 0 makes each when asked.
    """
    ask = functools.partial(next, items, None)
    try:
        with contextlib.closing(call_ahead(itertools.repeat(ask), depth, threads=1)) as found:
            for item in found:
                if item is None:
                    return
                yield item
    finally:
        if isinstance(items, Generator):
            items.close()
