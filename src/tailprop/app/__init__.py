"""`tailprop app`: a web page on this machine that shows the operator, trained models, restoration and runs."""
