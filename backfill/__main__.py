"""`python -m backfill` is `backfill`."""

from __future__ import annotations

import sys

from backfill.ui.cli import main

if __name__ == "__main__":
    sys.exit(main())
