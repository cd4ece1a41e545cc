"""Attacks on the last bits of messages: which of two data sets can have given exactly these bits?

Each attack takes messages, and what they would be without noise under a hypothesis. It counts the
values that floating-point noise can have made of that. The hypothesis with more of them is the
guess.
"""

import numpy as np
import torch

from decor.noise import root
from decor.noise.private_noise import WORDS_PER_KEY
from decor.training.release_grid import grid_of

NEAR = 3
"""Floats on either side of the best guess that are tried."""


def dense64(messages, bare, plan, rate):
    """float64, noise by a root: undo the public root, and what is left are float32 numbers, or not.
    [users, columns]
    """
    cor = np.broadcast_to(plan.sigma_cor, plan.topology.edge_count)
    values, U = root.eigenvectors(plan.topology.users, plan.topology.edges, (cor / cor.max()) ** 2)
    scale = np.sqrt(plan.sigma_cdp**2 + cor.max() ** 2 * values)
    return _float32s(U.T @ (bare - messages) / (rate * scale[:, None]))


def average64(average, bare, plan, rate):
    """float64, nothing but the average model of one step: the root's first vector is constant, and
    edges' noise is gone.
    """
    users = plan.topology.users
    return _float32s((bare - average) * np.sqrt(users) / (rate * plan.sigma_cdp))


def edges32(messages, bare, plan, rate):
    """float32, one user's own noise alone is unknown: is there a float32 number that makes these
    bits? [columns]
    """
    a = np.float64(np.float32(-rate * plan.sigma_cdp))
    x, m = bare.astype(np.float64), messages.astype(np.float64)
    found = np.zeros(m.shape, bool)
    for z in _candidates((m - x) / a):
        found |= (x + a * z.astype(np.float64)).astype(np.float32) == messages
    return int(found.sum())


def dense32(messages, bare, plan, rate):
    """float32, two users: is there any pair of float32 numbers that makes both users' bits? [2,
    columns]
    """
    cor = float(plan.sigma_cor)
    values, U = root.eigenvectors(2, plan.topology.edges, np.ones(1))
    scale = torch.from_numpy(np.sqrt(plan.sigma_cdp**2 + cor**2 * values)).float()
    A = torch.from_numpy(U).float() * (scale * -rate).view(1, 2)
    z = np.linalg.solve(A.double().numpy(), messages.astype(np.float64) - bare)
    x, found = torch.from_numpy(bare), np.zeros(messages.shape[1], bool)
    for first in _candidates(z[0]):
        for second in _candidates(z[1]):
            # as the engine adds it
            made = x.clone().addmm_(A, torch.from_numpy(np.stack([first, second])))
            found |= (made.numpy() == messages).all(0)
    return int(found.sum())


def lattice64(messages, bare, plan, rate):
    """float64, noise on the grid: what is left without the gradient is whole steps, if it was added
    beside them.
    """
    unit = grid_of(plan, messages.shape[1], WORDS_PER_KEY).unit
    steps = (bare - messages) / (rate * unit)
    return int((np.abs(steps - np.rint(steps)) < 0.05).sum())


def guess(score, hypotheses, rng):
    """The hypothesis under which more numbers are possible; either, where as many are."""
    scores = [score(each) for each in hypotheses]
    return int(rng.integers(2)) if scores[0] == scores[1] else int(scores[1] > scores[0])


def _candidates(z):
    """float32 numbers around each."""
    near = z.astype(np.float32)
    for _ in range(NEAR):
        near = np.nextafter(near, np.float32(-np.inf))
    for _ in range(2 * NEAR + 1):
        yield near
        near = np.nextafter(near, np.float32(np.inf))


def _float32s(z):
    """How many are float32 numbers, but for a thousandth of the distance to the next."""
    near = z.astype(np.float32)
    return int((np.abs(z - near) < 1e-3 * np.spacing(np.abs(near))).sum())
