"""How exposed each user is: (Sigma^-1)_ii, against every coalition, with rounding accounted for."""
