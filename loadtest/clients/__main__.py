"""`python -m loadtest.clients`."""

import sys

from loadtest.clients.command import main

sys.exit(main())
