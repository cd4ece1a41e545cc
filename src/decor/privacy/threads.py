"""One BLAS thread where thousands of small products are taken: on a busy machine waiting threads
cost ten times the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    import scipy.linalg  # noqa: F401  (its BLAS, which numba uses too, must be loaded to be limited)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield
