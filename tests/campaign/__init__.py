"""The campaign: attacks on runs, files and command lines, from a seed and for a time. See `python -m tests.campaign --help`."""
