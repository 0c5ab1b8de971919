"""`python -m backfill` is `backfill`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run `backfill`; who interrupts it while it is being loaded sees nothing of that."""
    try:
        from backfill.ui.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
