"""`python -m jot`."""

import sys

from .cli import main

sys.exit(main())
