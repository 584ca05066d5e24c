"""`python -m tailprop` and `torchrun -m tailprop`: the command, where the script is not at hand."""

import sys

from tailprop_cli import main

if __name__ == "__main__":
    sys.exit(main())
