"""Pings a guest all the time and finds the longest silence: what a migration looks like outside."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
import time

_EVERY_S = 0.005


class Pings:
    """Echo requests to one IPv4 address from inside of a `with`. Needs root. Monotonic seconds."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.settimeout(0.05)
        self._mark = os.getpid() & 0xFFFF
        self._answers: list[float] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]

    def __enter__(self) -> Pings:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def heard(self, limit_s: float = 30.0) -> None:
        """Wait for an answer that comes after now."""
        since_s = self.now()
        while not self._answers or self._answers[-1] < since_s:
            if self.now() > since_s + limit_s:
                raise TimeoutError(f"{self._address} was silent for {limit_s:g} s")
            time.sleep(_EVERY_S)

    def longest_silence_s(self, since_s: float) -> float:
        """The longest time without an answer since `since_s`, seconds."""
        times = [since_s, *(at_s for at_s in self._answers if at_s > since_s)]
        return max(after - before for before, after in itertools.pairwise(times))

    def _send(self) -> None:
        number = 0
        while not self._over.wait(_EVERY_S):
            number = (number + 1) & 0xFFFF
            try:
                self._socket.sendto(_echo(self._mark, number), (self._address, 0))
            except OSError:
                continue  # nobody at that address at this moment: that is silence, too

    def _receive(self) -> None:
        while not self._over.is_set():
            try:
                packet = self._socket.recv(256)
            except OSError:
                continue
            icmp = packet[(packet[0] & 0xF) * 4 :]
            if icmp[0] == 0 and struct.unpack("!H", icmp[4:6])[0] == self._mark:
                self._answers.append(self.now())


def _echo(mark: int, number: int) -> bytes:
    """An ICMP echo request (RFC 792)."""
    head = struct.pack("!BBHHH", 8, 0, 0, mark, number)
    total = sum(struct.unpack("!4H", head))
    total = (total >> 16) + (total & 0xFFFF)
    return struct.pack("!BBHHH", 8, 0, ~total & 0xFFFF, mark, number)
