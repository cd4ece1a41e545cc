"""simulate: the own training loops of all users, with the simulator's clip, noise and gossip."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor, nn

from decor import checks
from decor.choices import Dtype
from decor.cpu_cores import cores
from decor.errors import DivergenceWarning, InputError
from decor.learning.frozen import body_parameters, body_summary
from decor.learning.gradients.clip import add_clipped
from decor.learning.gradients.flat_model import FlatModel
from decor.learning.recipe import Recipe, recipe_with, with_gossip
from decor.noise.private_noise import WORDS_PER_KEY
from decor.privacy.gossip_choice import gossip_for
from decor.privacy.guarantee import Guarantee
from decor.privacy.plan import NoisePlan
from decor.results.run import Run
from decor.results.stop_reason import StopReason

from .channel import Channel, GridChannel, NoiseSource
from .descent import LARGEST_PARAMETER
from .engine import Setting
from .manifest import RunManifest, versions
from .release_grid import grid_of
from .share import choose_channel, private_channel
from .turn import Turn, check_unit, difference
from .validation import check_plan
from .vectorised import draw_secret

_LARGE = 300_000
"""Parameters of all users from which a second core helps to draw noise."""
_LOOPS_OWN = ("local_steps", "batch_size", "evaluate_every", "averaging")
"""Fields of a recipe that say what an own loop decides itself."""


def simulate(
    plan: NoisePlan,
    model: nn.Module,
    seed: int | None = 0,
    *,
    learning_rate: float = 1.0,
    recipe: Recipe | None = None,
    dtype: Dtype = "float32",
    noise: NoiseSource | str | None = None,
    allow_disconnected: bool = False,
    on_messages: Callable[[int, Tensor], object] | None = None,
    **recipe_fields: Any,
) -> SimulatedFederation:
    """All users' own loops in one program: what `decor.join` is for each of them.

    ::

        federation = decor.simulate(plan, model)
        for round in federation:
            for user in round.users:
                user.share(train_my_way(user.model, data[user.number]))
        model = federation.average

    Args:
        plan: The noise, the graph, the clip and the number of steps; its unit is "user".
        model: The module that all users start from; copied.
        seed: Decides the noise of a simulation. None: a private run, whose noise comes from the
            operating system and lies on the grid, so that its models may be published.
        learning_rate: The step size, before the recipe's schedule. The clip is for differences
            over the step size; with 1, the default, for differences as they are.
        recipe: Gossip, optimizer, momentum, weight decay and schedule; None takes `Recipe()`.
        dtype: The type of the models.
        noise: As of `Vectorised`.
        allow_disconnected: Trains on a graph in several parts, whose models never agree.
        on_messages: As of `Vectorised`.
        recipe_fields: Fields of the recipe, such as `gossip_rounds=4`.

    Returns:
        The rounds, to iterate over once.

    Raises:
        InputError: If plan, model and recipe do not suit each other, or the recipe says what an own
            loop decides itself.

    Guarantee: with `seed=None` the plan's, for each user's whole data, if nothing passes between
    users but models: what a user shares must follow from its own data, its own state and models
    alone. One optimizer, normaliser or random generator for all users breaks it, since one user's
    data then move several differences, each by a whole clip; so does a loop whose order or length
    depends on data. Within a user the loop may do anything: each difference is clipped and gets
    fresh noise. It covers `models`, `average` and `run`, not what
    the loop itself publishes; a loop that is left early by looking at data has no guarantee.
    """
    chosen = recipe_with(recipe, recipe_fields)
    if chosen.gossip_rounds == "auto" and isinstance(plan, NoisePlan):
        chosen = with_gossip(chosen, gossip_for(plan))
    return SimulatedFederation(
        plan,
        model,
        Setting(plan, learning_rate, seed),
        chosen,
        dtype,
        noise,
        allow_disconnected,
        on_messages,
    )


class SimulatedUser(Turn):
    """One user in one step: its model, and its one chance to share what it has trained.

    Attributes:
        number: The user's number in the graph.
        name: Its name in the graph.
    """

    def __init__(self, number: int, name: str, *of_turn: Any) -> None:
        super().__init__(*of_turn)
        self.number, self.name = number, name


class SimulatedRound:
    """One step of all users.

    Attributes:
        step: The number of the step, from 0.
        learning_rate: The step size.
        users: The users, in the order of the graph.
    """

    def __init__(self, step: int, learning_rate: float, users: tuple[SimulatedUser, ...]) -> None:
        self.step, self.learning_rate, self.users = step, learning_rate, users

    def __repr__(self) -> str:
        return f"SimulatedRound(step {self.step}, {len(self.users)} users)"


class SimulatedFederation:
    """The rounds of `simulate`, and the models that they lead to."""

    def __init__(
        self,
        plan: NoisePlan,
        model: nn.Module,
        setting: Setting,
        recipe: Recipe,
        dtype: Dtype,
        noise: NoiseSource | str | None,
        allow_disconnected: bool,
        on_messages: Callable[[int, Tensor], object] | None,
    ) -> None:
        check_plan(plan, recipe, allow_disconnected=allow_disconnected)
        check_unit(plan.exposure)
        checks.one_of("dtype", dtype, get_args(Dtype))
        _check_recipe(recipe)
        self.plan, self.recipe = plan, recipe
        self._setting, self._dtype, self._noise = setting, dtype, noise
        kind: torch.dtype = getattr(torch, dtype)
        self._flat = FlatModel(model, None, kind)
        self._frozen = body_summary(self._flat.template)
        self._channel = self._choose_channel(kind)
        self._on_messages = on_messages
        users, steps = plan.topology.users, plan.exposure.steps
        self._rates = recipe.rates(setting.learning_rate, steps)
        # blocks of the simulator: [users, seeds, settings, parameters]
        # expanded rows are one memory, and steps change models in place
        self._models = self._flat.start().to(kind).expand(users, 1, 1, -1).clone()
        self._velocity = torch.zeros_like(self._models) if recipe.momentum else None
        self._adam = [] if recipe.adam is None else recipe.adam.start([self._models])
        self._threads = cores() if self._models.numel() >= _LARGE else 1
        self._shared: list[Tensor | None] = []
        self._taken, self._stopped = 0, None if steps else StopReason("no step", "unfinished")
        self._rounds = self._take_rounds()
        # not from the settings: two private runs may share all of them
        self._name = os.urandom(8).hex()

    def __repr__(self) -> str:
        return (
            f"SimulatedFederation({self.plan.topology!r}, step {self._taken} of "
            f"{self.plan.exposure.steps})"
        )

    def __iter__(self) -> Iterator[SimulatedRound]:
        return self._rounds

    @property
    def models(self) -> tuple[nn.Module, ...]:
        """Each user's model as it is now, a copy."""
        return tuple(self._flat.module(row) for row in self._models[:, 0, 0].double())

    @property
    def average(self) -> nn.Module:
        """The mean of all users' models."""
        return self._flat.module(self._models[:, 0, 0].double().mean(0))

    @property
    def run(self) -> Run:
        """The run as it is now: to be saved, reported or released."""
        stopped, steps = self._stopped, self.plan.exposure.steps
        if stopped is None and self._taken < steps:
            text = f"stopped after step {self._taken} of {steps}"
            stopped = StopReason(text, "unfinished")
        return Run(
            self.plan,
            {"step": [self._taken]},
            self._flat.state(self._models[:, 0, 0].clone()),
            self._taken,
            stopped,
            self._manifest(stopped is not None).to_json(),
            {},
            self._flat.buffers,
            frozen=body_parameters(self._flat.template),
        )

    @property
    def guarantee(self) -> Guarantee:
        """What the run promises."""
        return self.run.guarantee

    def _choose_channel(self, kind: torch.dtype) -> Channel:
        setting, plan, size = self._setting, self.plan, self._flat.parameters
        if setting.seed is not None:
            cpu = torch.device("cpu")
            return choose_channel([plan], [setting.seed], kind, self._noise, size, cpu)
        # the proof of docs/noise.md is about the grid's own noise alone
        if self._noise is not None:
            raise InputError(
                "a private run draws its own noise; drop noise, or give a seed to simulate"
            )
        grid = grid_of(plan, size, WORDS_PER_KEY)
        return private_channel(plan, grid, draw_secret([setting]), kind)

    def _take_rounds(self) -> Iterator[SimulatedRound]:
        names = [self.plan.topology.name(i) for i in range(self.plan.topology.users)]
        while self._taken < self.plan.exposure.steps and self._stopped is None:
            step, rate = self._taken, float(self._rates[self._taken])
            self._shared = [None] * len(names)
            # a copy: the models are changed in place, and users keep theirs
            before = self._models[:, 0, 0].to(torch.float64, copy=True)
            users = tuple(
                SimulatedUser(
                    i,
                    name,
                    self._flat,
                    before[i],
                    step,
                    rate,
                    f"user {name}: ",
                    partial(self._give, i),
                )
                for i, name in enumerate(names)
            )
            yield SimulatedRound(step, rate, users)
            for user in users:
                user.end()
            with torch.no_grad():
                self._step(step, rate, before)

    def _give(self, user: int, shared: Tensor | None) -> None:
        self._shared[user] = shared

    def _step(self, step: int, rate: float, before: Tensor) -> None:
        """Algorithm 1 from the clip on, as `Descent` does it."""
        like, recipe = self._models, self.recipe
        rows = [difference(x, y, rate) for x, y in zip(before, self._shared, strict=True)]
        gradients = torch.stack(rows).view(like.shape).to(like.dtype)
        noised, one = torch.zeros_like(like), torch.ones(1, 1, dtype=like.dtype)
        add_clipped([noised], [gradients], one * self.plan.exposure.clip, one)
        # after the clip, in one piece with the gradient: a private run rounds both together
        self._channel.noise([noised], one, step, self._threads)
        # after the noise: momentum of gradients would put each into many messages
        if self._velocity is not None:
            noised = self._velocity.mul_(recipe.momentum).add_(noised)
        if recipe.adam is not None:
            (noised,) = recipe.adam.direction([noised], self._adam, step)
        messages = like.mul_(1 - rate * recipe.weight_decay).sub_(noised, alpha=rate)
        if self._on_messages is not None:
            self._on_messages(step, messages)
        (self._models,) = self._channel.mix([messages], recipe.gossip, self._threads)
        self._taken = step + 1
        # judged on models alone, which are messages; written so that NaN counts as far
        if not bool((self._models.abs() <= LARGEST_PARAMETER).all()):
            self._stop_diverged()
        elif self._taken == self.plan.exposure.steps:
            (self._models,) = self._channel.mix([self._models], recipe.final_gossip, self._threads)

    def _stop_diverged(self) -> None:
        self._stopped = StopReason(
            f"diverged: a model is not finite, or beyond 1e18, after step {self._taken}; lower the "
            f"learning rate from {self._setting.learning_rate:g}, or take a smaller clip, which "
            "needs less noise",
            "diverged",
        )
        warnings.warn(self._stopped, DivergenceWarning, stacklevel=4)

    def _manifest(self, is_stopped: bool) -> RunManifest:
        setting, is_private = self._setting, isinstance(self._channel, GridChannel)
        noise = None
        if isinstance(self._channel, GridChannel):
            noise = {"kind": "grid", "distance": self._channel.source.grid.distance}
        return RunManifest(
            simulated=not is_private,
            task={
                "name": "own loop",
                "users": self.plan.topology.users,
                "parameters": self._flat.parameters,
            },
            learning_rate=setting.learning_rate,
            seed="secret" if is_private else setting.seed,
            recipe=self.recipe.to_json(),
            engine={"name": "own loop", "dtype": self._dtype},
            noise=noise,
            versions=versions(),
            run=self._name if is_private else None,
            # a loop sees all data, and may have ended because of them
            stop_saw_private_data=True if is_private and is_stopped else None,
            frozen=self._frozen,
        )


def _check_recipe(recipe: Recipe) -> None:
    plain = Recipe()
    for name in _LOOPS_OWN:
        if getattr(recipe, name) != getattr(plain, name):
            raise InputError(
                f"{name} is for engines that compute gradients; drop it, an own loop decides it "
                "itself"
            )
