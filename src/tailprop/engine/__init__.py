"""One training engine for every task: settings, loop, checkpoints, run folder. Knows no task."""
