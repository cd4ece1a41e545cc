"""Gradients of all models at once, clipped with a proof that includes rounding."""
