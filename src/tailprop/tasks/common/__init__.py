"""What the tasks share."""
