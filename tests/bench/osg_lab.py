"""A compressed day of pilots on a real lab: ours, plain requeue, and never evicting, in one run.

Prints a table and one line of JSON last. Two arguments: minutes for each of them (30), seed (1).
"""

from __future__ import annotations

import sys

from tests.real.condor_rig import pool_lab
from tests.real.osg_day import KILLING, OURS, Draw, play, told


def main() -> None:
    """Play the same draw three times."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    draw = Draw(for_s=60.0 * minutes, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    with pool_lab("bench-osg") as pool:
        pool.cluster.begin()
        pool.cluster.start()
        days = [play(pool, "ours", draw, OURS)]
        days.append(play(pool, "killing", draw, KILLING))
        days.append(play(pool, "never evicting", draw, OURS, patient=True))
        print(told(days), flush=True)
        for day in days:
            print(
                f"{day.name}: at work twice at once: {day.overlaps}; booked twice: {day.twice}",
                file=sys.stderr,
            )
        pool.cluster.settle()


if __name__ == "__main__":
    main()
