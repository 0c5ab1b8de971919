"""Tells a cloud of its hosts with real guests: guests.py DIRECTORY HOST=ZONE...; runs in its env.

DIRECTORY/guest has the parts of the image.
"""

import sys
from pathlib import Path

import openstack


def image(cloud, name, path, disk_format, container, **properties):
    """Upload it for everybody."""
    return cloud.create_image(
        name,
        filename=str(path),
        disk_format=disk_format,
        container_format=container,
        visibility="public",
        wait=True,
        **properties,
    ).id


def images(cloud, parts):
    """Upload the guest with its slurmd, and one that only counts on its console; both boot by kernel."""
    kernel = image(cloud, "kernel", parts / "kernel", "aki", "aki")
    initrd = image(cloud, "initrd", parts / "initrd", "ari", "ari")
    cmdline = (parts / "cmdline").read_text()
    boot = {
        "kernel_id": kernel,
        "ramdisk_id": initrd,
        "hw_qemu_guest_agent": "yes",
        "hw_scsi_model": "virtio-scsi",
        "hw_cdrom_bus": "scsi",
    }
    blank = parts / "blank"
    blank.write_bytes(bytes(1 << 20))
    image(cloud, "counter", blank, "raw", "bare", **boot, os_command_line=f"{cmdline} backfill.count")
    image(cloud, "guest", parts / "disk.qcow2", "qcow2", "bare", **boot, os_command_line=cmdline)


def main():
    """Give each host a zone of its own, so that nothing gets there by chance, and upload images."""
    cloud = openstack.connect(cloud="admin")
    for place in sys.argv[2:]:
        host, _, zone = place.partition("=")
        aggregate = cloud.compute.create_aggregate(name=zone, availability_zone=zone)
        cloud.compute.add_host_to_aggregate(aggregate, host)
    images(cloud, Path(sys.argv[1]) / "guest")


main()
