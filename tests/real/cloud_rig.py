"""One test cloud for all tests of a session; it ends with the process, however that ends."""

from __future__ import annotations

import atexit
import functools

from backfill.lab.cloud.handle import Cloud


@functools.cache
def running_cloud() -> Cloud:
    """The session's cloud, started by the first test that needs it."""
    cloud = Cloud("test")
    cloud.down()
    atexit.register(cloud.down)
    cloud.up(tied=True)
    return cloud
