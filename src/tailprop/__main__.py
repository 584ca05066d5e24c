"""`python -m tailprop` and `torchrun -m tailprop`: the command without the installed script."""

import sys

from tailprop_cli import main

if __name__ == "__main__":
    sys.exit(main())
