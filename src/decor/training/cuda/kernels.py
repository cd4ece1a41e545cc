# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Triton kernels for noise and gossip on a GPU.

The Gaussians are those of `decor.noise.gaussians`, to about their last bit.

The kernels work on some columns of all models: noise goes into a workspace that stays in the GPU's
cache, and the gossip rounds go from there back into the models. So models are read once and written
once, and need no second copy.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["stream", "columns"])
def add_noise(
    x, out, alpha, own, cor, seeds, step, members, start, edges, plus, minus, values, places,
    columns, left, wide, stream, settings, some, x_user, x_setting, out_user, out_setting,
    LANES: tl.constexpr,
):  # fmt: skip
    """out = x + alpha (own * Z of the user + cor * sum of +-Z of its edges), for four users.

    One program does `some` settings of one seed. An edge within the four is drawn once for both its
    ends: `plus` and `minus` say at which user it is added and subtracted.
    """
    parts = tl.cdiv(settings, some)
    four, seed = tl.program_id(0).to(tl.int64), (tl.program_id(2) // parts).to(tl.int64)
    first = tl.program_id(2) % parts * some
    lanes = tl.arange(0, LANES)
    group = (left // 128 + tl.program_id(1) * (LANES // 32) + lanes // 32).to(tl.int64)
    lane = (lanes % 32).to(tl.uint32)
    groups = ((columns + 127) // 128).to(tl.int64)
    key, now = tl.load(seeds + seed), tl.load(step)
    # sums of edge noise of the four users a to d, four Gaussians of each lane
    zero = lanes.to(tl.float32) * 0
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    c0, c1, c2, c3 = zero, zero, zero, zero
    d0, d1, d2, d3 = zero, zero, zero, zero
    # every edge of the group is drawn once, and added to or subtracted from its ends
    for p in range(tl.load(start + four), tl.load(start + four + 1)):
        z0, z1, z2, z3 = _gaussians(key, tl.load(edges + p) * groups + group, lane, stream, now)
        to, off, value = tl.load(plus + p), tl.load(minus + p), tl.load(values + p)
        w = tl.where(to == 0, value, 0.0) - tl.where(off == 0, value, 0.0)
        a0, a1, a2, a3 = a0 + w * z0, a1 + w * z1, a2 + w * z2, a3 + w * z3
        w = tl.where(to == 1, value, 0.0) - tl.where(off == 1, value, 0.0)
        b0, b1, b2, b3 = b0 + w * z0, b1 + w * z1, b2 + w * z2, b3 + w * z3
        w = tl.where(to == 2, value, 0.0) - tl.where(off == 2, value, 0.0)
        c0, c1, c2, c3 = c0 + w * z0, c1 + w * z1, c2 + w * z2, c3 + w * z3
        w = tl.where(to == 3, value, 0.0) - tl.where(off == 3, value, 0.0)
        d0, d1, d2, d3 = d0 + w * z0, d1 + w * z1, d2 + w * z2, d3 + w * z3
    # a lane's four Gaussians are 32 columns apart, so that neighbouring lanes write neighbours
    place = group * 128 + lane
    for t in tl.static_range(4):
        user = tl.load(members + 4 * four + t)
        inside = user >= 0
        m0, m1 = inside & (place < left + wide), inside & (place + 32 < left + wide)
        m2, m3 = inside & (place + 64 < left + wide), inside & (place + 96 < left + wide)
        if t == 0:
            e0, e1, e2, e3 = a0, a1, a2, a3
        elif t == 1:
            e0, e1, e2, e3 = b0, b1, b2, b3
        elif t == 2:
            e0, e1, e2, e3 = c0, c1, c2, c3
        else:
            e0, e1, e2, e3 = d0, d1, d2, d3
        # the user's own Gaussians, numbered after all edges
        z0, z1, z2, z3 = _gaussians(
            key, tl.load(places + user, inside, 0) * groups + group, lane, stream, now
        )
        # settings share the Gaussians, and scale them by their own plan
        for setting in range(first, tl.minimum(first + some, settings)):
            row = seed * settings + setting
            rate = tl.load(alpha + row)
            s, c = rate * tl.load(own + setting), rate * tl.load(cor + setting)
            here = x + user * x_user + row * x_setting + place
            there = out + user * out_user + row * out_setting + place - left
            kind = x.dtype.element_ty
            tl.store(there, (tl.load(here, m0) + (s * z0 + c * e0)).to(kind), m0)
            tl.store(there + 32, (tl.load(here + 32, m1) + (s * z1 + c * e1)).to(kind), m1)
            tl.store(there + 64, (tl.load(here + 64, m2) + (s * z2 + c * e2)).to(kind), m2)
            tl.store(there + 96, (tl.load(here + 96, m3) + (s * z3 + c * e3)).to(kind), m3)


@triton.jit
def mix_round(
    x, old, out, members, start, neighbours, weights, a, b, wide,
    x_user, x_setting, old_user, old_setting, out_user, out_setting,
    BACK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One round: out = x + a sum of w (neighbour's x - x) + b (old - x), for one member.

    Written as differences: values that all users share stay exactly the same, and rounded weights
    do not move them.
    """
    user, row = tl.load(members + tl.program_id(0)), tl.program_id(2).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < wide
    kind = x.dtype.element_ty
    # rows are far apart, columns next to each other: loads of a program are contiguous
    own = tl.load(x + user * x_user + row * x_setting + place, inside)
    total = own
    if BACK:
        total += (tl.load(b)).to(kind) * (
            tl.load(old + user * old_user + row * old_setting + place, inside) - own
        )
    for p in range(tl.load(start + user), tl.load(start + user + 1)):
        other = tl.load(x + tl.load(neighbours + p) * x_user + row * x_setting + place, inside)
        total += (tl.load(a) * tl.load(weights + p)).to(kind) * (other - own)
    tl.store(out + user * out_user + row * out_setting + place, total, inside)


@triton.jit
def _gaussians(key, group, lane, stream, step):
    """The four Gaussians of one lane; a group is 32 lanes, that is 128 columns."""
    start = group * 32
    low = (start & 0xFFFFFFFF).to(tl.uint32) + lane
    high = (start >> 32).to(tl.uint32)
    b, c, d, e = tl.philox(
        key, low, low * 0 + stream.to(tl.uint32), low * 0 + step.to(tl.uint32), high, 10
    )
    z0, z1 = _polar(b, c)
    z2, z3 = _polar(d, e)
    return z0, z1, z2, z3


@triton.jit
def _polar(radius_bits, angle_bits):
    """The Box-Muller transform, with the polynomials of `decor.noise.gaussians`."""
    # in (0, 1), never 0: its logarithm is finite
    u = ((radius_bits >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10
    # log u = exponent log 2 + log(1 + f), with 1 + f between sqrt(1/2) and sqrt(2)
    bits = u.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    p = 7.0376836e-2 * f - 1.1514610e-1
    p = p * f + 1.1676998e-1
    p = p * f - 1.2420141e-1
    p = p * f + 1.4249323e-1
    p = p * f - 1.6668057e-1
    p = p * f + 2.0000714e-1
    p = p * f - 2.4999994e-1
    p = p * f + 3.3333331e-1
    radius = tl.sqrt(
        -2.0 * (f * f * f * p - 0.5 * f * f + f + exponent.to(tl.float32) * 0.69314718)
    )
    # two bits choose the quarter of the circle, the others the angle within it
    quarter = (angle_bits >> 30).to(tl.int32)
    angle = (((angle_bits << 2) >> 1).to(tl.int32).to(tl.float32) - 1073741824.0) * 7.3145898e-10
    square = angle * angle
    sine = angle + angle * square * (
        -1.6666655e-1 + square * (8.3321609e-3 - 1.9515296e-4 * square)
    )
    cosine = (
        1.0
        - 0.5 * square
        + square * square * (4.1666646e-2 + square * (-1.3887316e-3 + 2.4433157e-5 * square))
    )
    odd = (quarter & 1) != 0
    x = tl.where(odd, sine, cosine)
    y = tl.where(odd, cosine, sine)
    x = tl.where((quarter & 2) != 0, -x, x)
    y = tl.where(((quarter + 1) & 2) != 0, -y, y)
    return radius * x, radius * y
