"""Random numbers for noise: generators, the integer grid, secrets, and roots of covariances.

Nothing here knows budgets, models or graphs: arrays in, arrays out.
"""
