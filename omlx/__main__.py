"""`python -m omlx`, the same as the omlx command.

Knows nothing but where the command line begins.
"""

import sys

from omlx.cli.main import run

if __name__ == "__main__":
    sys.exit(run())
