"""How the shipped models were made and measured: data, weights in half precision, the table of the restorers."""
