"""Gradients of all models at once: which code fits a task, and clipping that no rounding undoes."""
