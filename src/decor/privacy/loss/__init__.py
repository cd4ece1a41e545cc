"""From leverages to (epsilon, delta): Gaussian and subsampled Gaussian privacy loss, composed over
a run.
"""
