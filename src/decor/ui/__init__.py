"""The planner: a page on this machine alone, which asks what `decor plan` asks and watches
a run.
"""
