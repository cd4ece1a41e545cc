"""Public datasets as arrays: those that scikit-learn brings, and those that are looked for in
files.
"""
