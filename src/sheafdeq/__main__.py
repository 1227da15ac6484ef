"""``python -m sheafdeq``."""

import sys

from sheafdeq.cli import main

sys.exit(main())
