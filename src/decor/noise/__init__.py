"""Where random numbers come from.

This room knows no budgets, no models and no graphs: numbers in, numbers out.
"""
