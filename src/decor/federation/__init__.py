"""Real users on a real network: the file they agree on, one user's work, and a whole federation on
one machine.
"""
