"""How soon slurmd is up in a guest of the site image, with systemd, beside one of the lab's own.

Both are booted in turns on the two hosts of one lab. Seconds of the guest's own clock from its start, as it
says itself when slurmd runs; medians, their ratio, and one line of JSON last.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from dataclasses import replace
from statistics import median

from backfill.drivers.libvirt.settings import ImageFiles
from backfill.lab import debian
from backfill.lab.image import GuestImage, build
from tests.contract.instance_rig import spec
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.test_site_image import guest_of

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "5"))
_READY = re.compile(r"^BACKFILL-READY ([\d.]+)", re.M)


def main() -> None:
    """Boot each kind so many times, and print what they said."""
    took_s: dict[str, list[float]] = defaultdict(list)
    guests = {"lab": build(), "site": guest_of(debian.OWN)}
    with running_lab("bench-boot") as lab:
        rig = LibvirtRig(lab, images={name: _files(guest, lab.domain_type) for name, guest in guests.items()})
        for trial in range(TRIALS):
            for kind in guests:
                took_s[kind].append(_boot(rig, kind))
                print(f"{kind} {trial + 1} of {TRIALS}: {took_s[kind][-1]:.1f} s", file=sys.stderr)
        rig.end()
    medians = {kind: round(median(times), 2) for kind, times in took_s.items()}
    ratio = round(medians["site"] / medians["lab"], 2)
    print(f"lab {medians['lab']} s, site {medians['site']} s, ratio {ratio}")
    print(
        json.dumps(
            {"bench": "boot", "trials": TRIALS, **{f"{k}_s": v for k, v in medians.items()}, "ratio": ratio}
        )
    )


def _files(guest: GuestImage, domain_type: str) -> ImageFiles:
    words = guest.cmdline_under(domain_type)
    return ImageFiles(guest.kernel, guest.initrd, guest.disk, words, guest.disk_format)


def _boot(rig: LibvirtRig, kind: str) -> float:
    host = rig.lab.hosts[0]
    rig.provider.create(replace(spec(rig, "vn1", host=host), image=kind))
    rig.booted("vn1")
    rig.until(lambda: _READY.search(rig.console_text("vn1")) is not None)
    said = _READY.search(rig.console_text("vn1"))
    rig.provider.delete(host, "vn1")
    assert said is not None
    return float(said[1])


if __name__ == "__main__":
    main()
