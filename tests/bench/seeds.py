"""Random simulated days full of accidents, and what a day costs: the audit's violations, counted.

BACKFILL_DAYS (1,000) says how many, BACKFILL_SEED from which seed: without it one is drawn. Prints
one line of JSON last. Exit status 1 when a promise was broken.
"""

from __future__ import annotations

import json
import os
import sys

from tests.property.many_days import live_many


def main() -> int:
    """Live the days on every CPU and print what was found."""
    days = int(os.environ.get("BACKFILL_DAYS", "1000"))
    seed = int(os.environ.get("BACKFILL_SEED") or int.from_bytes(os.urandom(4)))
    print(f"seed {seed}: `make days SEED={seed} DAY=...` tells one of these days", file=sys.stderr)
    total = live_many(seed, range(days), os.cpu_count() or 1, twice=False)
    violations = +total.violations
    row = {
        "days": total.days,
        "days_per_cpu_min": round(total.days / max(total.cpu_s, 0.001) * 60.0, 1),
        "violations": sum(violations.values()),
        "kinds": dict(sorted(violations.items())),
        "broken_days": sorted(total.broken),
        "seed": seed,
    }
    print(json.dumps(row))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
