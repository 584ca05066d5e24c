"""Commands of `tailprop`, except those of the studies."""
