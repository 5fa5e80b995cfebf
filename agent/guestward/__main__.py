"""`python -m guestward`."""

import sys

from guestward.cli import main

sys.exit(main())
