"""Numba kernels of the coalition search: a user's network as other users are deleted from it.

Every rounding is accounted for. The network of a user i is kept *grounded at i*: H is the inverse
of Sigma without i's row and column (zeros for i and for the deleted users). Unlike Sigma^-1, H does
not grow like 1/ground where edges are strong, so nothing cancels at any ratio. From H follow, with
a probe p and x = H p,

    the conductance to ground          d = 1/R_i = p_total - p'x
    the potentials w, i at one volt    w_u - w_v = lean (x_u - x_v)

for two probes: p = ground (x = 1 - w, p_total = all ground, lean = -1), accurate where edges are
strong, and p = the conductances of i's edges (x = w, p_total = i's ground and edges, lean = +1),
accurate where they are weak.

Deleting v. Let N be v's neighbours but i, c their conductances to v, s what v has to ground and to
i. Eliminating v leaves the mesh W = diag(c) - cc'/(s + sum c) between N; deleting v takes that mesh
away. W^-1 = diag(1/c) + 11'/s, so by Woodbury

    H' = H + H_N M^-1 H_N'        M = diag(1/c) + 11'/s - H_NN.

M is factored in the basis e_0, e_a - e_0: there 1/s, perhaps 1e20 times the rest, stands in one
diagonal entry only.

Errors. Everywhere |error of H|_jk <= e t_j t_k, |H_jk| <= t_j t_k and |error of x|_j <= e t_j
reach. With E the error, f(H + E) - f(H) = (I + Y)' (E + E_N (M - E_NN)^-1 E_N') (I + Y) exactly,
where Y = M^-1 H_N'. So t_j grows by sum_a |Y_aj| t_a, and the second order is a factor 1/(1 -
theta), theta = e t_N' |M^-1| t_N. Where theta is not tiny (v is almost a cut vertex) the result is
useless and the caller eliminates again. Forming and factoring M errs by a few roundings of
sigma_a sigma_b, sigma_a^2 being the terms that make up entry aa, which adds |M^-1 H_N|' sigma in
the same way.

Two bounds prune. *Flow*: one unit injected at i runs to ground along paths; the network conducts at
least as well as these paths side by side, each with the voltage R_i across it. Deleting D cuts the
paths through D, at most the sum of the currents phi_v through its members, so R_i becomes at most
R_i / (1 - sum phi_v). *Spread*: see `_spread`. And R_i <= 1/ground_i always.
"""

# numba's decorators carry no types, nor do the results of the kernels
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from decor.array_types import Floats, Ints

from .network import UNIT_ROUNDOFF

Flags = NDArray[np.bool_]


class CsrNetwork(NamedTuple):
    """Compressed rows: v's edges are those from start_v to start_v+1 in `other` and `weight`."""

    start: Ints
    other: Ints
    weight: Floats
    ground: Floats
    degree: int  # the largest


class Target(NamedTuple):
    """A user, and the probe that reads its conductance off its network."""

    user: int
    p: Floats
    lean: float
    floor: float  # bound on the roundings of that reading


class State(NamedTuple):
    """What is left of a target's network: its nodes, and the quantities of the module docstring."""

    alive: Flags
    H: Floats
    x: Floats
    t: Floats
    e: float
    reach: float
    d: float


ILL = 1e-3
"""Below this theta, a margin of 2 theta covers the second order, and Y computed for Y true."""

SPREAD_SHARE = 0.5
"""Smallest share of 1 / (all ground) in R_i at which the spread bound repays its cost."""


@njit(cache=True)
def _rounding(m: int) -> float:
    """Relative roundings in one deletion with m neighbours: four times the standard bounds."""
    return (8 * m + 32) * UNIT_ROUNDOFF


@njit(cache=True)
def _entry(H: Floats, U: Floats, j: int, k: int) -> float:
    """H + U U' at (j, k), for an update that was not written out."""
    h = H[j, k]
    for a in range(U.shape[1]):
        h += U[j, a] * U[k, a]
    return float(h)


@njit(cache=True)
def _scratch(csr: CsrNetwork) -> Any:
    m = csr.degree
    return np.empty(m, np.int64), np.empty(m), np.empty((m, m)), np.empty(m), np.empty(m)


@njit(cache=True)
def _form(csr: CsrNetwork, user: int, v: int, state: State, U: Floats, scratch: Any) -> int:
    """Writes v's neighbours, M in the reference basis, sigma to `scratch`; returns the degree."""
    N, r, L, sigma, z = scratch
    s, m = csr.ground[v], 0
    for k in range(csr.start[v], csr.start[v + 1]):
        if csr.other[k] == user:
            s += csr.weight[k]
        elif state.alive[csr.other[k]]:
            N[m], r[m] = csr.other[k], 1.0 / csr.weight[k]
            # the strongest edge is the reference: it adds least to the other entries
            if r[m] < r[0]:
                N[0], N[m], r[0], r[m] = N[m], N[0], r[m], r[0]
            m += 1
    for a in range(m):
        z[a] = _entry(state.H, U, N[a], N[0])
        reference = 1.0 / s if a == 0 else r[0]
        # differences of H in this order: close potentials are subtracted first
        L[a, 0] = z[0] - z[a] - r[0]
        for b in range(1, a + 1):
            L[a, b] = r[0] - ((_entry(state.H, U, N[a], N[b]) - z[a]) - (z[b] - z[0]))
        L[a, a] = r[a] + reference - z[0] if a == 0 else L[a, a] + r[a]
        sigma[a] = np.sqrt(
            r[a] + reference + (state.t[N[a]] + (state.t[N[0]] if a > 0 else 0.0)) ** 2
        )
    return m


@njit(cache=True)
def _factor(csr: CsrNetwork, user: int, v: int, state: State, U: Floats, scratch: Any) -> Any:
    """Factors M in `scratch` for the deletion of v; returns v's degree, and theta.

    Theta is infinite if M is not positive definite.
    """
    m = _form(csr, user, v, state, U, scratch)
    N, column, L, sigma, z = scratch
    for a in range(m):
        for b in range(a + 1):
            value = L[a, b]
            for k in range(b):
                value -= L[a, k] * L[b, k]
            if b < a:
                L[a, b] = value / L[b, b]
            elif value > 0.0:
                L[a, a] = np.sqrt(value)
            else:
                return m, np.inf
    # |M^-1|_ab <= sqrt(M^-1_aa M^-1_bb), by columns of L^-1; node 0 is e_0 minus all the others:
    # z collects these
    reach, rough = 0.0, 0.0
    z[:m] = 0.0
    for a in range(m):
        square = 0.0
        for b in range(a, m):
            value = 1.0 if b == a else 0.0
            for k in range(a, b):
                value -= L[b, k] * column[k]
            column[b] = value / L[b, b]
            square += column[b] ** 2
            z[b] += column[b] if a == 0 else -column[b]
        rough += np.sqrt(square) * sigma[a]
        if a > 0:
            reach += np.sqrt(square) * state.t[N[a]]
    if m > 0:
        reach += np.sqrt(np.sum(z[:m] ** 2)) * state.t[N[0]]
    return m, 1.01 * (state.e * reach * reach + _rounding(m) * rough * rough)


@njit(cache=True)
def without(csr: CsrNetwork, target: Target, state: State, U: Floats, w: int, scratch: Any) -> Any:
    """The user's conductance once w is deleted too, and a bound on its error.

    The H of `state` is to be updated by U U'.
    """
    m, theta = _factor(csr, target.user, w, state, U, scratch)
    if not theta < ILL:  # no digit of the update can be trusted
        return 0.0, np.inf
    N, q, L, sigma, _ = scratch
    share, own = target.p[w], 0.0
    if share > 0.0:
        own = share * (1.0 - 2.0 * state.x[w] + share * _entry(state.H, U, w, w))
    drop, growth, rough, rest = 0.0, 0.0, 0.0, 0.0
    for a in range(m):
        q[a] = state.x[N[a]] - (share * _entry(state.H, U, N[a], w) if share > 0.0 else 0.0)
    for a in range(1, m):
        q[a] -= q[0]
    # forward substitution gives the drop of d, backward substitution the growth of the error
    for a in range(m):
        for b in range(a):
            q[a] -= L[a, b] * q[b]
        q[a] /= L[a, a]
        drop += q[a] * q[a]
    for a in range(m - 1, -1, -1):
        for b in range(a + 1, m):
            q[a] -= L[b, a] * q[b]
        q[a] /= L[a, a]
        rough += abs(q[a]) * sigma[a]
        growth += abs(q[a] if a > 0 else q[0] - rest) * state.t[N[a]]
        rest += q[a]
    e = state.e + _rounding(m)
    reach = (state.reach + growth + np.sqrt(_rounding(m) / e) * rough) * (1 + 2 * theta)
    return state.d - own - drop, e * reach * reach


@njit(cache=True)
def delete(csr: CsrNetwork, target: Target, state: State, v: int) -> Any:
    """Deletes v: U, the state once H is replaced by H + U'U, and whether it can be trusted."""
    _, H, x, t, e, reach, d = state
    p, n, scratch = target.p, state.x.size, _scratch(csr)
    m, theta = _factor(csr, target.user, v, state, np.empty((n, 0)), scratch)
    U, Q, x2, t2 = np.empty((m, n + 1)), np.empty((m, n + 1)), x - p[v] * H[v], t.copy()
    if not theta < ILL:
        return U, state, False
    N, _, L, sigma, _ = scratch
    e += _rounding(m)
    slack = np.sqrt(_rounding(m) / e)
    # the last column is x without v's share: it gives the changes of x and d
    for a in range(m):
        Q[a, :n], Q[a, n] = H[N[a]], x2[N[a]]
    # forward substitution: U = L^-1 H_N in the reference basis
    for a in range(m):
        for j in range(n + 1):
            U[a, j] = Q[a, j] if a == 0 else Q[a, j] - Q[0, j]
        for b in range(a):
            for j in range(n + 1):
                U[a, j] -= L[a, b] * U[b, j]
        for j in range(n + 1):
            U[a, j] /= L[a, a]
    # backward substitution: Y = M^-1 H_N, by which the error grows
    rest = np.zeros(n)
    for a in range(m - 1, -1, -1):
        Q[a] = U[a]
        for b in range(a + 1, m):
            for j in range(n):
                Q[a, j] -= L[b, a] * Q[b, j]
        for j in range(n):
            Q[a, j] /= L[a, a]
            y = Q[a, j] if a > 0 else Q[0, j] - rest[j]
            t2[j] += abs(y) * t[N[a]] + slack * sigma[a] * abs(Q[a, j])
            rest[j] += Q[a, j]
            x2[j] += U[a, j] * U[a, n]
        d -= U[a, n] ** 2
    d -= p[v] * (1.0 - 2.0 * x[v] + p[v] * H[v, v])  # v leaves the probe too
    t2 *= 1 + 2 * theta  # the second order (see ILL)
    alive = state.alive.copy()
    alive[v], x2[v], t2[v], U[:, v] = False, 0.0, 0.0, 0.0
    return U, State(alive, H, x2, t2, e, max(reach, np.sum(p * t2)), d), True


@njit(cache=True)
def update(H: Floats, U: Floats, v: int, out: Floats) -> None:
    """Writes H + U'U to `out`, with zeros in row and column v."""
    n, m = H.shape[0], U.shape[0]
    for j in range(n):
        for k in range(n):
            out[j, k] = H[j, k]
        a = 0
        while a + 4 <= m:  # four at a time: the row is read and written a quarter as often
            u0, u1, u2, u3 = U[a, j], U[a + 1, j], U[a + 2, j], U[a + 3, j]
            for k in range(n):
                out[j, k] += u0 * U[a, k] + u1 * U[a + 1, k] + u2 * U[a + 2, k] + u3 * U[a + 3, k]
            a += 4
        for b in range(a, m):
            for k in range(n):
                out[j, k] += U[b, j] * U[b, k]
    out[v, :] = 0.0
    out[:, v] = 0.0


@njit(cache=True)
def residual(csr: CsrNetwork, user: int, H: Floats, t: Floats) -> Floats:
    """f with |Sigma H - I|_lk <= f_l t_k for the whole network grounded at the user.

    So H errs by at most (Sigma^-1 f)_j t_k.
    """
    n = t.size
    # row u of Sigma H - I, and the sum of the magnitudes that make it up
    f, row, size = np.zeros(n), np.empty(n), np.empty(n)
    for u in range(n):
        if u == user:
            continue
        row[:], size[:], own = 0.0, 0.0, csr.ground[u]
        row[u], size[u] = -1.0, 1.0
        for k in range(csr.start[u], csr.start[u + 1]):
            w, c = csr.other[k], csr.weight[k]
            if w == user:
                own += c
                continue
            for j in range(n):
                flow = c * (H[u, j] - H[w, j])
                row[j] += flow
                size[j] += abs(flow)
        blur = (csr.start[u + 1] - csr.start[u] + 8) * UNIT_ROUNDOFF
        for j in range(n):
            if j != user:
                flow = own * H[u, j]
                f[u] = max(f[u], (abs(row[j] + flow) + blur * (size[j] + abs(flow))) / t[j])
    return f


@njit(cache=True)
def _through(csr: CsrNetwork, target: Target, state: State, top: float, v: int) -> float:
    """Upper bound on the current through v of one unit from the user, with R_i at most `top`."""
    current = 0.0
    for k in range(csr.start[v], csr.start[v + 1]):
        u = csr.other[k]
        if state.alive[u]:
            blur = state.e * state.reach * (state.t[u] + state.t[v])
            current += csr.weight[k] * max(0.0, target.lean * (state.x[u] - state.x[v]) + blur)
    return float(top * current * (1 + 1e-12))


@njit(cache=True)
def _resistance(ground: float, d: float, error: float) -> float:
    """The most that R_i can be; a user always has its own ground."""
    low = d - error
    return float(1.0 / low if low > ground else 1.0 / ground)


@njit(cache=True)
def _largest_sums(keys: Floats, r: int) -> Floats:
    """For every suffix that has r members, the sum of its r largest keys."""
    count = keys.size
    best, sums = np.full(r, -np.inf), np.empty(count - r + 1)
    for a in range(count - 1, -1, -1):
        k = 0
        # `best` is ascending: smaller keys move down, and the least drops out
        while k < r and keys[a] > best[k]:
            if k > 0:
                best[k - 1] = best[k]
            best[k] = keys[a]
            k += 1
        if a <= count - r:
            sums[a] = np.sum(best)
    return sums


@njit(cache=True)
def _runs(
    csr: CsrNetwork, state: State, u: int, R: float, e_rho: float, e_own: float, flow: Floats
) -> None:
    """Fills `flow` with bounds on the current through u of one unit from the user to each v."""
    n, x, H, wide = flow.size, state.x, state.H, 0.0
    for v in range(n):
        flow[v] = csr.ground[u] * abs(R * (1 - x[u]) * x[v] - H[u, v])
    for k in range(csr.start[u], csr.start[u + 1]):
        w, c = csr.other[k], csr.weight[k]
        if state.alive[w]:
            wide += c * (state.t[u] + state.t[w])
            lift = R * (x[w] - x[u])
            for v in range(n):
                flow[v] += c * abs(lift * x[v] - H[u, v] + H[w, v])
    blur = e_rho * (wide + csr.ground[u] * state.t[u]) + e_own * csr.ground[u]
    for v in range(n):
        flow[v] = 0.5 * (flow[v] + blur * state.t[v])
    flow[u] = 0.0


@njit(cache=True, fastmath={"reassoc"})
def _weigh(flow: Floats, r: int, convex: Floats, fixed: Floats, slope: Floats) -> float:
    """Sum over v of convex / (1 - r flow) + fixed + slope flow."""
    # positive terms: their sum may be taken in any order
    total = 0.0
    for v in range(flow.size):
        total += convex[v] / max(0.05, 1 - r * flow[v]) + fixed[v] + slope[v] * flow[v]
    return total


@njit(cache=True)
def _spread(
    csr: CsrNetwork,
    user: int,
    state: State,
    error: float,
    top: float,
    candidates: Ints,
    r: int,
    F: Floats,
) -> Any:
    """The spread bound: base and keys with R_i <= base + sum of D's keys, for any r candidates D.

    Let ground float: rho_vw = G_vv + G_ww - 2 G_vw is the resistance between v and w. As G ground =
    1, with g all the ground,

        R_i = 1/g + sum_v ground_v rho_iv / g - sum_{v<w} ground_v ground_w rho_vw / g^2.

    The first term, nearly all of R_i where edges are strong, is known exactly. Deleting D can only
    raise rho_vw (Rayleigh), and raises rho_iv to at most rho_iv / (1 - sum_D F_uv), F_uv being the
    part of the current from i to v that runs through u, by the argument of paths. A sum over D
    bounds that: 1/(1 - sum F) <= mean of 1/(1 - r F) by convexity or, with f the sum of the r
    largest F_uv, 1/(1 - sum F) <= 1 + sum F / (1 - f) by the chord. Here x must be that of the
    ground probe: then rho_iv = H_vv + R x_v^2 and rho_vw = H_vv + H_ww - 2 H_vw + R (x_v - x_w)^2,
    as G = H + R w w'.
    """
    alive, H, x, t, e, reach, d = state
    n, R, nu = x.size, 1.0 / d, top * reach * reach
    e_rho = 1.01 * (e * (1 + 2 * nu) + error * top * nu)
    e_own = 1.01 * (e + error * top) * top * reach
    g, mean, square, trace, tt, ground = 0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(n)
    for v in range(n):
        if alive[v]:
            ground[v] = csr.ground[v]
            g += ground[v]
            mean += ground[v] * x[v]
            square += ground[v] * x[v] ** 2
            trace += ground[v] * H[v, v]
            tt += ground[v] * t[v] ** 2
    pairs, rows, far = 0.0, np.empty(n), np.empty(n)
    for v in range(n):
        row = g * H[v, v] + trace - 2 * x[v] + R * (g * x[v] ** 2 - 2 * x[v] * mean + square)
        blur = 2 * e_rho * (g * t[v] ** 2 + 2 * t[v] * reach + tt)
        pairs += 0.5 * ground[v] * (row - blur)
        rows[v] = ground[v] * (row + blur)
        far[v] = ground[v] * (H[v, v] + e * t[v] ** 2 + top * (x[v] + e * t[v] * reach) ** 2)
    # the ground that is left after the deletions lies between `least` and `most`
    held = ground[candidates]
    least = g - _largest_sums(held, r)[0] - 2 * n * UNIT_ROUNDOFF * g
    most = g + _largest_sums(-held, r)[0] + 2 * n * UNIT_ROUNDOFF * g
    if least <= 0.0:
        return np.inf, rows[candidates]
    peak = np.zeros(n)
    for a in range(candidates.size):
        _runs(csr, state, candidates[a], R, e_rho, e_own, F[a])
        for v in range(n):
            peak[v] = max(peak[v], F[a, v])
    # for each v the tighter of the two bounds: convexity for small flows, the chord for large ones
    convex, fixed, slope = np.zeros(n), np.zeros(n), np.zeros(n)
    for v in range(n):
        if r * peak[v] < 0.9:
            convex[v] = far[v] / r
        elif far[v] > 0.0:
            f = _largest_sums(F[: candidates.size, v].copy(), r)[0]
            if f > 0.999:
                return np.inf, rows[candidates]
            fixed[v], slope[v] = far[v] / r, far[v] / (1 - f)
    keys, ample = np.empty(candidates.size), 1 + 8 * (n + 8) * UNIT_ROUNDOFF
    for a in range(candidates.size):
        u = candidates[a]
        # u itself is deleted
        total = ample * _weigh(F[a], r, convex, fixed, slope) - convex[u] - fixed[u]
        keys[a] = total / least + ample * rows[u] / most**2
    return ample / least - pairs / most**2, keys


@njit(cache=True)
def survey(
    csr: CsrNetwork, target: Target, state: State, candidates: Ints, r: int, goal: float, F: Floats
) -> Any:
    """Orders the candidates, and bounds R_i over the r-sets within every suffix of that order.

    If all can be pruned, being at most `goal`, only the bound of the whole is given. `F` is work
    space.
    """
    error = state.e * state.reach * state.reach + target.floor
    cap = 1.0 / csr.ground[target.user]
    top = _resistance(csr.ground[target.user], state.d, error)
    # in order of falling current: the flow bound of a suffix is then small
    through = np.empty(candidates.size)
    for a in range(candidates.size):
        through[a] = _through(csr, target, state, top, candidates[a])
    order = np.argsort(-through)
    candidates, through = candidates[order], through[order]
    whole = np.sum(through[:r])
    bound = min(cap, top / (1 - whole)) if whole < 1.0 else cap
    base, keys = np.inf, through
    if (
        bound > goal
        and target.lean < 0.0
        and SPREAD_SHARE * top * np.sum(csr.ground * state.alive) < 1.0
    ):
        base, keys = _spread(csr, target.user, state, error, top, candidates, r, F)
        if base < np.inf:
            bound = min(bound, base + _largest_sums(keys, r)[0])
    if bound <= goal:
        return candidates, np.full(1, bound)
    # candidates that carry much current are ordered by the effect of their deletion
    looked = min(candidates.size, 2 * r + 8)
    left, scratch, none = np.empty(looked), _scratch(csr), np.empty((state.x.size, 0))
    for a in range(looked):
        left[a] = without(csr, target, state, none, candidates[a], scratch)[0]
    order = np.arange(candidates.size)
    order[:looked] = np.argsort(left)
    sums, spreads = _largest_sums(through[order], r), _largest_sums(keys[order], r)
    bounds = np.full(sums.size, cap)
    for a in range(sums.size):
        bounds[a] = min(cap, base + spreads[a], top / (1 - sums[a]) if sums[a] < 1.0 else cap)
    return candidates[order], bounds


@njit(cache=True)
def leaves(
    csr: CsrNetwork,
    target: Target,
    state: State,
    U: Floats,
    candidates: Ints,
    best: float,
    tolerance: float,
) -> Any:
    """Deletes one candidate more: the largest value surely above `best`, and its candidate.

    The third result lists the candidates whose error is too large to tell.
    """
    # the most that R_i can be before the deletion
    ground = csr.ground[target.user]
    top = _resistance(ground, state.d, state.e * state.reach * state.reach + target.floor)
    scratch, rows = _scratch(csr), np.ascontiguousarray(U[:, : state.x.size].T)
    winner, blurred, count = -1, np.empty(candidates.size, np.int64), 0
    for w in candidates:
        through = _through(csr, target, state, top, w)
        # the flow bound spares most candidates the update of low rank
        if through < 1.0 and top / (1 - through) <= best * (1 + tolerance):
            continue
        left, error = without(csr, target, state, rows, w, scratch)
        error += target.floor
        high, low = _resistance(ground, left, error), 1.0 / (left + error)
        if not high <= best * (1 + tolerance):
            if low > best:
                best, winner = low, w
            if not high <= best * (1 + tolerance):
                blurred[count] = w
                count += 1
    return best, winner, blurred[:count]
