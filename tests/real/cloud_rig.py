"""One test cloud for all tests of a session; it ends with the process, however that ends."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backfill.lab.cloud.handle import CloudHandle


@functools.cache
def running_cloud() -> CloudHandle:
    """The session's cloud, started by the first test that needs it.

    Who runs these tests often names one that is up already in BACKFILL_TEST_CLOUD.
    """
    ready = os.environ.get("BACKFILL_TEST_CLOUD", "")
    cloud = CloudHandle(ready or f"test-{os.getpid()}")
    if not ready:
        cloud.down()
        atexit.register(cloud.down)
        cloud.up(tied=True)
    return cloud


@functools.cache
def cloud_with_guests(with_heat: bool = False) -> CloudHandle:
    """A cloud with a compute host whose guests are real, for long tests only."""
    cloud = CloudHandle(f"test-guests-{os.getpid()}")
    cloud.down()
    atexit.register(cloud.down)
    cloud.up(tied=True, real_guests=True, with_heat=with_heat)
    return cloud


@contextmanager
def cloud_entered() -> Iterator[Path]:
    """Inside, the calling thread is in the network of the session's cloud; its clouds.yaml."""
    cloud = running_cloud()
    with cloud.network():
        yield cloud.clouds_yaml
