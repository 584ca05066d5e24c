"""Code that all tasks share."""
