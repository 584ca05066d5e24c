"""Experiments on the core, which knows nothing of them."""
