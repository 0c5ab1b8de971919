"""A Cinder driver for the test cloud: every volume is one sparse file, on any of its hosts."""

import os
from pathlib import Path

from cinder.image import image_utils
from cinder.volume import driver

_GIB = 1 << 30


class FileDriver(driver.VolumeDriver):
    """All compute hosts share one file system here, so that nothing is exported or mounted."""

    def check_for_setup_error(self):
        """Check nothing: the directory is made with the cloud."""

    def local_path(self, volume):
        """Return the path of a volume."""
        return str(Path(self.configuration.safe_get("volumes_dir"), volume["name"]))

    def create_volume(self, volume):
        """Create an empty one."""
        self._resize(volume, volume["size"])

    def delete_volume(self, volume):
        """Gone already is fine."""
        Path(self.local_path(volume)).unlink(missing_ok=True)

    def extend_volume(self, volume, new_size):
        """In GiB."""
        self._resize(volume, new_size)

    def copy_image_to_volume(self, context, volume, image_service, image_id, disable_sparse=False):
        """As Glance has it, unpacked; the file grows back to the volume's size."""
        image_utils.fetch_to_raw(
            context, image_service, image_id, self.local_path(volume), "1M", size=volume["size"]
        )
        self._resize(volume, volume["size"])

    def initialize_connection(self, volume, connector):
        """Nova's libvirt driver opens what GPFS has as a file, and mounts nothing for it."""
        data = {"name": volume["name"], "device_path": self.local_path(volume)}
        return {"driver_volume_type": "gpfs", "data": data}

    def terminate_connection(self, volume, connector, **more):
        """Nothing is open on this side."""

    def create_export(self, context, volume, connector):
        """Nothing to export."""

    def ensure_export(self, context, volume):
        """Nothing to export."""

    def remove_export(self, context, volume):
        """Nothing to export."""

    def _update_volume_stats(self):
        self._stats = {
            "volume_backend_name": self.configuration.safe_get("volume_backend_name"),
            "vendor_name": "backfill",
            "driver_version": "1",
            "storage_protocol": "file",
            "total_capacity_gb": "infinite",
            "free_capacity_gb": "infinite",
            "reserved_percentage": 0,
        }

    def _resize(self, volume, size_gb):
        with open(self.local_path(volume), "ab") as file:
            os.truncate(file.fileno(), size_gb * _GIB)
