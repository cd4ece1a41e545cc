"""The closed choices of the public interface, as types that mypy checks.

`typing.get_args` lists the values.
"""

from __future__ import annotations

from typing import Literal

Unit = Literal["user", "example"]
"""What is protected: all data of one user, or one example."""

Sampling = Literal["poisson", "fixed"]
"""How a batch is drawn: each example independently, or a fixed number without replacement."""

Weighting = Literal["records"]
"""How users of different sizes are weighed: each by its number of examples."""

Relation = Literal["add-remove", "replace"]
"""In what two neighbouring data sets differ."""

Method = Literal["exact", "paper"]
"""How noise becomes epsilon: exactly, or by the paper's looser conversion."""

EdgeNoise = Literal["uniform", "optimal"]
"""One sigma_cor for all edges, or one designed for each."""

OwnNoise = Literal["uniform", "per-user"]
"""One sigma_cdp for all users, or one designed for each, with that of every edge."""

Acceleration = bool | Literal["chebyshev", "designed"]
"""Weights of several gossip rounds: plain (False), Chebyshev's (True), or designed for the
graph.
"""

Rounds = int | Literal["auto"]
"""Gossip rounds per step: a number, or the fewest that are nearly as good as perfect averaging."""

Dtype = Literal["float32", "float64"]

GradientPath = Literal["auto", "generic"]
"""The fastest gradient code for the task, or torch.func for every task."""

LogFormat = Literal["text", "json"]
"""A line of a node's log: words for people, or one JSON object."""
