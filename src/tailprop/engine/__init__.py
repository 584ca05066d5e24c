"""The training engine of every task: settings, training loop, checkpoints, run folder. It does not depend on any task."""
