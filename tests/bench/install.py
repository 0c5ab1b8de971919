"""How long it takes to follow docs/install.md to the letter: each step, and all beside the promise."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.real.install_page import page_followed


def main() -> None:
    """Build the package, follow the page at a fresh site, and print the seconds."""
    with tempfile.TemporaryDirectory() as folder, page_followed("install", Path(folder)) as rig:
        sys.stdout.write(rig.figures() + "\n")


if __name__ == "__main__":
    main()
