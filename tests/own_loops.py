"""Own loops that do what the engines do, so that both can be compared; and an engine of them."""

from dataclasses import replace

import torch

import decor
from decor.training.vectorised import Vectorised


def one_step(task, user, model, rate, local_steps=1):
    """What the engines compute, by autograd: steps of plain SGD on all of a user's examples."""
    X, y = task.shards[user]
    dtype = next(model.parameters()).dtype
    X, y = (part.to(dtype) if part.is_floating_point() else part for part in (X, y))
    for _ in range(local_steps):
        loss = task.loss(model(X), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= rate * g
    return model


def train(federation, task, local_steps=1):
    """Goes through all rounds; each user shares what the engines would have computed."""
    for round in federation:
        for user in round.users:
            rate = round.learning_rate
            user.share(one_step(task, user.number, user.model, rate, local_steps))
    return federation


class OwnLoops(Vectorised):
    """An engine whose gradients come from own loops: `decor.audit` attacks their messages."""

    def run(self, task, settings, recipe, callbacks=(), resume=None):
        messages, federations = [], []
        for setting in settings:
            made = decor.simulate(
                setting.plan,
                task.model,
                setting.seed,
                learning_rate=setting.learning_rate,
                recipe=replace(recipe, evaluate_every=None),
                noise=self.noise,
                dtype=self.dtype,
                on_messages=lambda step, each: messages.append(each.clone()),
            )
            federations.append(made)
        # in step with each other: a listener gets the messages of all seeds together
        for step, rounds in enumerate(zip(*federations, strict=False)):
            self._tell(step - 1, messages)
            for round in rounds:
                for user in round.users:
                    rate = round.learning_rate
                    user.share(one_step(task, user.number, user.model, rate))
        for federation in federations:
            assert next(iter(federation), None) is None
        self._tell(settings[0].plan.exposure.steps - 1, messages)
        return [federation.run for federation in federations]

    def _tell(self, step, messages):
        if messages and self.on_messages is not None:
            self.on_messages(step, torch.cat(messages, 1))
        messages.clear()
