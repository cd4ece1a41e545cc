"""Limits BLAS to one thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """One BLAS thread for thousands of small products: on a busy machine, more cost ten times."""
    # scipy loads the BLAS that numba uses too; only a loaded library can be limited
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield
