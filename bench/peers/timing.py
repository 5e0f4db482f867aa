"""How long calls take."""

import statistics
import time


def wall(call, wait, seconds=0.5):
    """The median time of a call that is waited for, in microseconds."""
    for _ in range(3):
        wait(call())
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        wait(call())
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)
