"""Commands of `tailprop` that belong to no study."""
