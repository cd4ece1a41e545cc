"""Canaries: the gradients of their tasks are those that the auditor has chosen."""

import numpy as np
import pytest
import torch

from decor.auditing.canary_tasks import NORMS, PATHS, ExampleCanaries, UserCanaries


def gradient(task, user, weights):
    """The gradient of one user's loss, with the parameters in one vector."""
    X, y = task.shards[user]
    torch.nn.utils.vector_to_parameters(weights, task.model.parameters())
    loss = task.loss(task.model(X), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, task.model.parameters())])


@pytest.mark.parametrize("step", [0, 3])
def test_a_users_gradient_is_its_canaries_with_the_signs_of_the_step_on_the_clock(step):
    rng = np.random.default_rng(0)
    canaries = UserCanaries.of(3, 12, 5, np.array([0.5, 2.0]), 1.0, rng)
    task, weights = canaries.task(), torch.zeros(13)
    weights[0] = step * canaries.tick
    for user in range(3):
        norm = NORMS[canaries.norm_index(step)[user]]
        expected = norm * np.r_[-canaries.tick, canaries.gradients(step)[user]]
        np.testing.assert_allclose(gradient(task, user, weights).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_of_examples_is_in_the_coordinates_of_present_ones_alone(path):
    rng = np.random.default_rng(0)
    canaries = ExampleCanaries.of(path, 2, 1, 64, 0.1, 5.0, False, rng)
    task, initial = canaries.task(), torch.from_numpy(canaries.initial).float()
    mean = gradient(task, 1, initial)[1:].numpy()
    # gradients point down, so that models move up
    assert (np.abs(mean) > 0).tolist() == (canaries.amplitudes != 0).tolist()
    assert not gradient(task, 0, initial)[1:].any(), "other users have no examples"
