"""How long a thread kept the others from running."""

import time
from collections.abc import Callable
from threading import Thread


def longest_pause(work: Callable[[], object]) -> tuple[float, float]:
    """Of this thread while another one does the work, and how long all of that took, in seconds."""
    thread = Thread(target=work)
    began = before = time.perf_counter()
    longest = 0.0
    thread.start()
    while thread.is_alive():
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return longest, before - began
