"""Leverage: how exposed each user is, (Sigma^-1)_ii, against every coalition, rounding included."""
