"""What others published: shown beside our results, never used.

The paper's Figure 1 is read off its vector graphics.
"""

from __future__ import annotations

from .study import PUBLISHED, Row, row

LEAST_SQUARES_EPSILONS = (1.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0)
A9A_EPSILONS = LEAST_SQUARES_EPSILONS[1:]
MNIST_EPSILONS = (1.04, 2.48, 4.70, 7.56)
"""What the noise of the points published at .001, .01, .1 and 1 costs over 1000 steps (Poisson,
add/remove, delta 1e-5).
"""
MNIST_PRINTED = (0.001, 0.01, 0.1, 1.0)

_METHODS = (
    ("central DP", "central", None),
    ("DECOR complete", "decor", "complete"),
    ("DECOR torus", "decor", "torus"),
    ("DECOR ring", "decor", "ring"),
    ("local DP ring", "local", "ring"),
)


# values in the order of _METHODS
def _rows(epsilons: tuple[float, ...], *columns: tuple[float, ...]) -> tuple[Row, ...]:
    return tuple(
        row(PUBLISHED, kind, method, graph, [value], epsilon=epsilon)
        for (method, kind, graph), values in zip(_METHODS, columns, strict=True)
        for epsilon, value in zip(epsilons, values, strict=True)
    )


LEAST_SQUARES = _rows(
    LEAST_SQUARES_EPSILONS,
    (89.94, 3.871, 0.8069, 0.1814, 0.0891, 0.02179, 0.01253, 0.00618, 0.00593, 0.00359),
    (104.5, 4.935, 0.8043, 0.2445, 0.0942, 0.02274, 0.01646, 0.00877, 0.00826, 0.00552),
    (179.3, 9.011, 1.549, 0.6711, 0.2398, 0.07473, 0.05141, 0.02729, 0.02734, 0.01567),
    (166.6, 5.634, 1.792, 0.5642, 0.3663, 0.1460, 0.1144, 0.06407, 0.05375, 0.0263),
    (1837.0, 109.9, 55.99, 11.6, 6.523, 2.396, 1.208, 0.8667, 0.3871, 0.2701),
)
A9A = _rows(
    A9A_EPSILONS,
    (0.2336, 0.1401, 0.1136, 0.0851, 0.0647, 0.0573, 0.0538, 0.0518, 0.0498),
    (0.2525, 0.1475, 0.1176, 0.0904, 0.0672, 0.0589, 0.0548, 0.0526, 0.0502),
    (0.2532, 0.1477, 0.1176, 0.1014, 0.0673, 0.0589, 0.0549, 0.0526, 0.0502),
    (0.2883, 0.1655, 0.1282, 0.1073, 0.0760, 0.0642, 0.0604, 0.0567, 0.0529),
    (0.2926, 0.2714, 0.2416, 0.2270, 0.2190, 0.1674, 0.1418, 0.1270, 0.1114),
)
MNIST = _rows(
    MNIST_EPSILONS,
    (0.9179, 0.9251, 0.9308, 0.9362),
    (0.9163, 0.9247, 0.9300, 0.9301),
    (0.9160, 0.9248, 0.9308, 0.9317),
    (0.9119, 0.9192, 0.9293, 0.9281),
    (0.8251, 0.8937, 0.9084, 0.9147),
)

_TRAMER_BONEH = "central DP (Tramer and Boneh 2021)"
# the table of https://github.com/ftramer/Handcrafted-DP: a linear model on scattering features
RECORDS = tuple(
    {"dataset": dataset} | row(PUBLISHED, "central", _TRAMER_BONEH, None, [value], epsilon=3.0)
    for dataset, value in (("MNIST", 0.987), ("Fashion-MNIST", 0.897))
)
"""Accuracies for (3, 1e-5)-DP of one example, with the published split."""
