"""Studies: experiments that import the rest of the package, which never imports them."""
