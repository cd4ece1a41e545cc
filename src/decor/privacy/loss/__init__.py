"""Privacy loss: from leverages to (epsilon, delta), composed over a run."""
