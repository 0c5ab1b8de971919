"""The daemon's families of samples as Prometheus and OpenMetrics read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

OPENMETRICS = "application/openmetrics-text"


class _Handed(Collector):
    """Hands on what the daemon told."""

    def __init__(self, families: Iterable[dict[str, Any]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Make one metric of each family."""
        for family in self._families:
            metric = Metric(family["name"], family["help"], family["type"])
            for suffix, labels, value in family["samples"]:
                metric.add_sample(family["name"] + suffix, labels, float(value))
            yield metric


def exposition(families: Iterable[dict[str, Any]], accept: str = "") -> tuple[str, str]:
    """Return the text that suits an Accept header, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Handed(families))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # it compares versions that may be no numbers
        encode, content_type = choose_encoder("")
    return encode(registry).decode(), content_type
