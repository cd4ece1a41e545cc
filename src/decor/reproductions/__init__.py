"""The paper's experiments, and those it does not have: programs on the public names of decor, one
study a file.
"""
