"""Where the rooms meet: a task, a plan and an engine make a run."""
