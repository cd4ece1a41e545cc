"""Gaussians as a function of (seed, stream, step, place): no step can reuse another's noise.

Philox 4x32-10 turns the four numbers into uniform bits, and Box and Muller's map turns those into
Gaussians, in blocks that the compiler maps onto vector registers. This is two to three times faster
than torch's generator, and any part of a step's noise can be drawn again, alone, on any thread. It
is for the simulator: values are fixed by a seed and have 24 bits (largest magnitude 6.7).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from decor.array_types import Floats

_u32, _u64, _i32, _f32 = np.uint32, np.uint64, np.int32, np.float32
LANES = 32
GROUP = 4 * LANES
"""Gaussians drawn at a time: places are counted in such groups."""
SHORT = GROUP // 2
"""Rows shorter than this share groups: a group of its own would waste more than half."""

_FAST = {"contract", "nsz", "arcp"}
"""Rearrangements that vector code needs; they change a result by roundings only."""


@njit(cache=True, nogil=True, error_model="numpy")
def fill(out: Floats, seed: np.uint64, stream: int, step: int, first: int) -> None:
    """Fills the flat float32 array `out`, whose first element has place `first` (in groups)."""
    a, b = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    c, d = np.empty(LANES, np.uint32), np.empty(LANES, np.uint32)
    whole = out.size // GROUP
    for k in range(whole):
        _bits(a, b, c, d, seed, stream, step, first + k)
        part = out[k * GROUP : (k + 1) * GROUP]
        _polar(a, b, part[:LANES], part[LANES : 2 * LANES])
        _polar(c, d, part[2 * LANES : 3 * LANES], part[3 * LANES :])
    # the last group is drawn whole, and its end dropped
    rest = out.size - whole * GROUP
    if rest:
        last = np.empty(GROUP, np.float32)
        _bits(a, b, c, d, seed, stream, step, first + whole)
        _polar(a, b, last[:LANES], last[LANES : 2 * LANES])
        _polar(c, d, last[2 * LANES : 3 * LANES], last[3 * LANES :])
        for k in range(rest):
            out[whole * GROUP + k] = last[k]


@njit(cache=True, nogil=True, error_model="numpy")
def fill_rows(out: Floats, seeds: Floats, stream: int, step: int, first: int = 0) -> None:
    """Fills out[row, seed, :] with the rows from `first` on; seeds do not affect each other.

    Rows shorter than `SHORT` share their groups, and are only drawn all together.
    """
    rows, runs, size = out.shape
    if size >= SHORT:
        # each row begins with a new group, so that rows can be drawn alone
        groups = (size + GROUP - 1) // GROUP
        for row in range(rows):
            for s in range(runs):
                fill(out[row, s], seeds[s], stream, step, (first + row) * groups)
        return
    flat = np.empty(rows * size, np.float32)
    for s in range(runs):
        fill(flat, seeds[s], stream, step, 0)
        for row in range(rows):
            for j in range(size):
                out[row, s, j] = flat[row * size + j]


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _bits(
    a: Floats, b: Floats, c: Floats, d: Floats, seed: np.uint64, stream: int, step: int, group: int
) -> None:
    """Philox 4x32-10 (Salmon et al. 2011) with key `seed`, on 32 lanes side by side.

    The counters are (group * LANES + lane, stream, step).
    """
    key0, key1 = _u32(seed & _u64(0xFFFFFFFF)), _u32(seed >> _u64(32))
    start = _u64(group) * _u64(LANES)
    low, high = _u32(start & _u64(0xFFFFFFFF)), _u32(start >> _u64(32))
    for i in range(LANES):
        a[i], b[i], c[i], d[i] = _u32(low + _u32(i)), _u32(stream), _u32(step), high
    for _ in range(10):
        # the loop over lanes is inside, so that a round is one vector operation
        for i in range(LANES):
            p, q = _u64(0xD2511F53) * _u64(a[i]), _u64(0xCD9E8D57) * _u64(c[i])
            new_a, new_c = _u32(q >> _u64(32)) ^ b[i] ^ key0, _u32(p >> _u64(32)) ^ d[i] ^ key1
            b[i], d[i] = _u32(q), _u32(p)
            a[i], c[i] = new_a, new_c
        key0, key1 = _u32(key0 + _u32(0x9E3779B9)), _u32(key1 + _u32(0xBB67AE85))


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
def _polar(radius_bits: Floats, angle_bits: Floats, cosines: Floats, sines: Floats) -> None:
    """Box and Muller's map: radius sqrt(-2 log u) and a uniform angle.

    The polynomials are accurate to one or two float32 roundings.
    """
    for i in range(LANES):
        # 0.5 keeps u above 0, where the logarithm is not finite
        u = (_f32(_i32(radius_bits[i] >> _u32(1))) + _f32(0.5)) * _f32(2.0**-31)
        # u = 2^exponent (1 + f), f between sqrt(1/2) - 1 and sqrt(2) - 1
        bits = _f32(u).view(np.int32)
        exponent = _i32((bits - _i32(0x3F3504F3)) >> _i32(23))
        f = _i32(bits - (exponent << _i32(23))).view(np.float32) - _f32(1.0)
        # log(1 + f), coefficients of Cephes' logf
        p = _f32(7.0376836e-2)
        p = p * f - _f32(1.1514610e-1)
        p = p * f + _f32(1.1676998e-1)
        p = p * f - _f32(1.2420141e-1)
        p = p * f + _f32(1.4249323e-1)
        p = p * f - _f32(1.6668057e-1)
        p = p * f + _f32(2.0000714e-1)
        p = p * f - _f32(2.4999994e-1)
        p = p * f + _f32(3.3333331e-1)
        logarithm = f * f * f * p - _f32(0.5) * f * f + f + _f32(exponent) * _f32(0.69314718)
        radius = np.sqrt(_f32(-2.0) * logarithm)
        # the two highest bits choose a quarter turn, the others an angle between -pi/4 and pi/4
        word = angle_bits[i]
        quarter = _i32(word >> _u32(30))
        angle = (_f32(_i32(_u32(word << _u32(2)) >> _u32(1))) - _f32(2.0**30)) * _f32(7.3145898e-10)
        # sine and cosine on that interval, coefficients of Cephes' sinf and cosf
        square = angle * angle
        sine = angle + angle * square * (
            _f32(-1.6666655e-1) + square * (_f32(8.3321609e-3) - _f32(1.9515296e-4) * square)
        )
        cosine = (
            _f32(1.0)
            - _f32(0.5) * square
            + square
            * square
            * (_f32(4.1666646e-2) + square * (_f32(-1.3887316e-3) + _f32(2.4433157e-5) * square))
        )
        # quarter turns swap the two and change signs
        odd = (quarter & _i32(1)) != 0
        x = sine if odd else cosine
        y = cosine if odd else sine
        x = -x if (quarter & _i32(2)) != 0 else x
        y = -y if ((quarter + _i32(1)) & _i32(2)) != 0 else y
        cosines[i], sines[i] = radius * x, radius * y
