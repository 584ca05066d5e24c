"""Image restoration."""
