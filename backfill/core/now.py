"""The present time as a step sees it whose findings are kept: it notes what it is compared with."""

from __future__ import annotations

from typing import Any

from backfill.core.findings import Notes


class Now(float):
    """The present time, which notes every time with which it is compared.

    Reckoning with it gives a plain number: what comes of that is not kept.
    """

    __slots__ = ("notes",)
    notes: Notes

    def _compared(self, other: float) -> None:
        if float.__ge__(other, self) and other < self.notes.until_s:
            self.notes.until_s = float(other)

    def __lt__(self, other: float) -> bool:
        self._compared(other)
        return float.__lt__(self, other)

    def __le__(self, other: float) -> bool:
        self._compared(other)
        return float.__le__(self, other)

    def __gt__(self, other: float) -> bool:
        self._compared(other)
        return float.__gt__(self, other)

    def __ge__(self, other: float) -> bool:
        self._compared(other)
        return float.__ge__(self, other)

    def _plain(self) -> float:
        self.notes.fleeting = True
        return float(self)

    def __add__(self, other: float) -> float:
        return self._plain() + other

    __radd__ = __add__

    def __sub__(self, other: float) -> float:
        return self._plain() - other

    def __rsub__(self, other: float) -> float:
        return other - self._plain()

    def __mul__(self, other: float) -> float:
        return self._plain() * other

    __rmul__ = __mul__

    def __truediv__(self, other: float) -> float:
        return self._plain() / other

    def __floordiv__(self, other: float) -> float:
        return self._plain() // other

    def __mod__(self, other: float) -> float:
        return self._plain() % other

    def __format__(self, spec: str) -> str:
        return format(self._plain(), spec)

    def __str__(self) -> str:
        return str(self._plain())

    def __int__(self) -> int:
        return int(self._plain())

    def __round__(self, digits: Any = None) -> Any:
        return round(self._plain(), digits)
