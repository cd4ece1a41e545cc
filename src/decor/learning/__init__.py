"""Models, data and gradients. This room knows no noise and no graph."""
