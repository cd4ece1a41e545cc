"""The planner: a local web page for the questions of `decor plan`, which also shows a run."""
