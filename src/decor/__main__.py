"""`python -m decor` is the command `decor`."""

import sys

from decor.cli.main import main

sys.exit(main())
