"""`tailprop ablate`: train the variants of a study from several seeds, and compare them."""
