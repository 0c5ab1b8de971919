"""Asks a pool as the daemon does, as the user who runs this: directory of tokens, collector; prints JSON."""

from __future__ import annotations

import json
import sys

from backfill.drivers.condor.diagnosis import look_at_tokens
from backfill.drivers.condor.pool import CondorPool
from backfill.drivers.condor.settings import CondorConfig
from backfill.ports.errors import DriverError


def main() -> None:
    """Say what the tokens look like, and what the pool answers."""
    directory, collector = sys.argv[1:]
    asked = CondorPool(CondorConfig(sys.executable, collector, directory))
    try:
        said = f"{asked.observe().idle} waiting"
    except DriverError as error:
        said = str(error)
    finally:
        asked.close()
    print(json.dumps({"tokens": str(look_at_tokens(directory).problem or "good"), "pool": said}))


if __name__ == "__main__":
    main()
