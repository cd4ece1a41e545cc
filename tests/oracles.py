"""Independent ways to the same answers, slow and plain: mpmath inverses, every subset in turn.

And random graphs to try.
"""

import itertools

import mpmath
import numpy as np
from hypothesis import strategies as st

import decor


@st.composite
def graphs(draw, least=1, most=9):
    """Any simple graph: connected or not, with isolated users."""
    n = draw(st.integers(least, most))
    pairs = list(itertools.combinations(range(n), 2))
    chosen = (
        draw(st.lists(st.sampled_from(pairs), unique=True, max_size=len(pairs))) if pairs else []
    )
    return decor.from_edges(n, chosen)


ratios = st.sampled_from([0.0, 1e-6, 0.3, 1.0, 7.0, 1e3, 1e6, 1e10, 1e15, 1e20])


def true_leverages(topology, sigma_cdp, sigma_cor, deleted=(), digits=80):
    """(Sigma^-1)_ii of every user left, as mpmath numbers; None for the deleted."""
    n = topology.users
    with mpmath.workdps(digits):
        own = [sigma_cdp] * n if np.ndim(sigma_cdp) == 0 else list(sigma_cdp)
        per_edge = [sigma_cor] * topology.edge_count if np.ndim(sigma_cor) == 0 else list(sigma_cor)
        keep = [i for i in range(n) if i not in deleted]
        place = {user: k for k, user in enumerate(keep)}
        sigma = mpmath.diag([mpmath.mpf(own[i]) ** 2 for i in keep])
        for (i, j), c in zip(topology.edges.tolist(), per_edge, strict=True):
            if i in place and j in place:
                c2 = mpmath.mpf(float(c)) ** 2
                a, b = place[i], place[j]
                sigma[a, a] += c2
                sigma[b, b] += c2
                sigma[a, b] -= c2
                sigma[b, a] -= c2
        inverse = sigma**-1
        result = [None] * n
        for user, k in place.items():
            result[user] = inverse[k, k]
        return result


def true_worst(topology, sigma_cdp, sigma_cor, colluders):
    """Every user's largest leverage over all coalitions of that size that leave it honest, by
    trying them all.
    """
    worst = [mpmath.mpf(0)] * topology.users
    for coalition in itertools.combinations(range(topology.users), colluders):
        for user, value in enumerate(true_leverages(topology, sigma_cdp, sigma_cor, coalition)):
            if value is not None:
                worst[user] = max(worst[user], value)
    return worst


def true_delta(epsilon, mu, digits=60):
    """delta of mu-GDP at epsilon, straight from its definition."""
    with mpmath.workdps(digits):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)


def never_below(value, truth, tolerance=1e-9):
    """A certified value: at least the truth, and close above it."""
    return (
        truth * (1 - mpmath.mpf(10) ** -30)
        <= mpmath.mpf(float(value))
        <= truth * (1 + mpmath.mpf(tolerance))
    )
