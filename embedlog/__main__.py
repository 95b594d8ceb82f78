"""`python -m embedlog`: the command line, where the `embedlog` script is not on the path."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.argv[0] = "embedlog"  # what a second opener of a directory is told, in place of "__main__.py"
    sys.exit(main())
