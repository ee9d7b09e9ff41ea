"""How many threads torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Run torch on one thread, where ``wanted``.

    A step of a small network is shorter than it takes threads to meet. At best they gain nothing; where other programs
    want the cores too, threads that wait for one another were measured to make training thirty times slower.
    """
    threads = torch.get_num_threads()
    try:
        if wanted:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
