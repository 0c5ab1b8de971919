"""The report's tables: starts by step beside published ones, evictions by step, the story."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from backfill.ui.report.own_starts import OwnStart
from backfill.ui.report.style import escape
from backfill.ui.report.svg import ms
from backfill.ui.report.timeline import Boot, Chart, Event, EvictionMark

_MOST_ROWS = 200
_ENOUGH = 4  # fewer values than this need no summary
_SHARES = (("median", 0.5), ("p95", 0.95), ("max", 1.0))
_DASH = "-"


@dataclass(frozen=True, slots=True)
class Peer:
    """A published system: what it takes to bring up a virtual node, seconds."""

    name: str
    source: str
    total_s: float


# Only totals can be set beside ours: each paper cuts its steps elsewhere.
PEERS = (
    Peer("Slurm-V", "published total: Zhang et al., Euro-Par 2016", 20.2),
    Peer("Multiverse, instant clone", "published total: Gunasekaran et al., CCGRID 2020", 36.0),
)
_STEPS = ("schedule", "host choice", "disk + define", "boot", "identity", "register", "ready")


@dataclass(frozen=True, slots=True)
class StartSteps:
    """A start by step, seconds; None where a step cannot be told from its neighbours."""

    schedule_s: float | None
    choice_s: float
    create_s: float
    boot_s: float | None
    identity_s: float | None
    register_s: float | None
    guest_s: float  # boot, identity and register together
    ready_s: float
    total_s: float


def start_steps(boot: Boot) -> StartSteps | None:
    """Divide a start into the steps that are usual in the field; None if it was not completed."""
    create = boot.step("create instance")
    if create is None or not boot.ready_s or not boot.registered_s:
        return None
    guest_s = boot.registered_s - create.end_s
    marks = dict(boot.marks)
    kernel_s, identity_s = marks.get("seed", marks.get("disk")), marks.get("identity")
    known = kernel_s is not None and identity_s is not None and identity_s <= guest_s
    return StartSteps(
        schedule_s=max(0.0, boot.decided_s - boot.submitted_s) if boot.submitted_s else None,
        choice_s=create.start_s - boot.decided_s,
        create_s=create.took_s,
        boot_s=kernel_s if known else None,
        identity_s=identity_s - kernel_s if known and identity_s and kernel_s else None,
        register_s=guest_s - identity_s if known and identity_s else None,
        guest_s=guest_s,
        ready_s=boot.ready_s - boot.registered_s,
        total_s=boot.ready_s - boot.decided_s,
    )


def starts_table(boots: Sequence[Boot]) -> str:
    """Our starts by step, then what others have published."""
    rows = []
    done = [(boot, steps) for boot in boots if (steps := start_steps(boot)) is not None]
    for boot, steps in done[:_MOST_ROWS]:
        rows.append(_start_row(f"{boot.node} on {boot.host}", steps))
    if len(done) >= _ENOUGH:
        middle = median(steps.total_s for _, steps in done)
        rows.append(_row([f"median of {len(done)}"], _merged("", len(_STEPS)), ms(middle), "summary"))
    for boot in [b for b in boots if b.end and not b.ready_s][:_MOST_ROWS]:
        why = _merged(escape(boot.end), len(_STEPS))
        rows.append(_row([f"{boot.node} on {boot.host}"], why, "failed"))
    for peer in PEERS:
        cells = _merged(escape(peer.source), len(_STEPS))
        rows.append(_row([peer.name], cells, ms(peer.total_s), "peer"))
    head = _head(("instance", *_STEPS, "total"))
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def own_table(found: Sequence[OwnStart]) -> str:
    """Machines of jobs by step; of those that came to nothing the reason."""
    rows = []
    for own in found[-_MOST_ROWS:]:
        kind = f"{own.what} on its nodes" if own.inside else own.what
        name = f"job {own.job}: {kind}"
        if own.total_s is None:
            rows.append(_row([name], _merged(escape(own.reason), len(own.steps)), "", "failed"))
            continue
        cells = "".join(f"<td>{_DASH if s is None else ms(s)}</td>" for _, s in own.steps)
        rows.append(_row([name], cells, ms(own.total_s)))
    steps = tuple(name for name, _ in found[0].steps)
    return f"<table>{_head(('machines', *steps, 'total'))}<tbody>{''.join(rows)}</tbody></table>"


def _start_row(name: str, steps: StartSteps) -> str:
    schedule = _DASH if steps.schedule_s is None else ms(steps.schedule_s)
    guest = (steps.boot_s, steps.identity_s, steps.register_s)
    if any(part is None for part in guest):
        middle = _merged(ms(steps.guest_s), 3)
    else:
        middle = "".join(f"<td>{ms(part or 0.0)}</td>" for part in guest)
    cells = f"<td>{ms(steps.choice_s)}</td><td>{ms(steps.create_s)}</td>{middle}"
    return _row([name], f"<td>{schedule}</td>{cells}<td>{ms(steps.ready_s)}</td>", ms(steps.total_s))


def evictions_table(timeline: Chart) -> str:
    """Each eviction with its latencies, and what they are in all."""
    found = timeline.evictions
    rows = [_eviction_row(timeline, eviction) for eviction in found[-_MOST_ROWS:]]
    if len(found) >= _ENOUGH:
        rows += [_summary_row(name, share, found) for name, share in _SHARES]
    head = _head(
        (
            "instance",
            "pushed off",
            "by",
            "room free after",
            "Slurm agrees after",
            "went on at",
            "stood still for",
            "way back",
            "end",
        ),
        left=3,
    )
    return f"<table>{head}<tbody>{''.join(rows)}</tbody></table>"


def _eviction_row(timeline: Chart, eviction: EvictionMark) -> str:
    takers = [c.job for c in timeline.claims if c.evicted and c.at_s == eviction.wanted_s]
    by = ", ".join(timeline.names.get(j) or f"job {j}" for j in takers) or _DASH
    end = "work goes on" if eviction.back_s else eviction.end or "under way"
    values = [_value(of(eviction)) for of in (_room_s, _told_s)]
    values += [eviction.back_host if eviction.back_s else _DASH]
    values += [_value(of(eviction)) for of in (_still_s, _back_s)]
    left = (eviction.node, eviction.host, by)
    return (
        "<tr>"
        + "".join(f'<td class="left">{escape(v)}</td>' for v in left)
        + "".join(f"<td>{escape(v)}</td>" for v in values)
        + f"<td>{escape(timeline.named(end))}</td></tr>"
    )


def _room_s(eviction: EvictionMark) -> float | None:
    return eviction.stopped_s - eviction.wanted_s if eviction.stopped_s else None


def _told_s(eviction: EvictionMark) -> float | None:
    return eviction.parked_s - eviction.wanted_s if eviction.parked_s else None


def _still_s(eviction: EvictionMark) -> float | None:
    return eviction.back_s - eviction.stopped_s if eviction.back_s and eviction.stopped_s else None


def _back_s(eviction: EvictionMark) -> float | None:
    return eviction.back_s - eviction.returning_s if eviction.back_s else None


def _value(seconds: float | None) -> str:
    return _DASH if seconds is None else ms(seconds)


def _summary_row(name: str, share: float, found: Sequence[EvictionMark]) -> str:
    """One share of all evictions, by latency."""
    room, told, still, back = (
        _value(_quantile([v for e in found if (v := of(e)) is not None], share))
        for of in (_room_s, _told_s, _still_s, _back_s)
    )
    cells = "".join(f"<td>{v}</td>" for v in ("", "", room, told, "", still, back, ""))
    return f'<tr class="summary"><td>{name} of {len(found)}</td>{cells}</tr>'


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of all values do not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def events_table(timeline: Chart, events: Sequence[Event]) -> str:
    """Events as sentences with the time since the beginning."""
    rows = "".join(
        f"<tr><td>{e.at_s - timeline.start_s:.3f} s</td><td>{escape(timeline.named(e.text))}</td></tr>"
        for e in events
    )
    return f'<table class="events"><tbody>{rows}</tbody></table>'


def _head(names: Sequence[str], left: int = 1) -> str:
    cells = "".join(
        f"<th{' class=left' if i < left else ''}>{escape(name)}</th>" for i, name in enumerate(names)
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _merged(text: str, columns: int) -> str:
    return f'<td class="merged" colspan="{columns}">{text}</td>'


def _row(left: Sequence[str], cells: str, total: str, css: str = "") -> str:
    names = "".join(f'<td class="left">{escape(name)}</td>' for name in left)
    kind = f' class="{css}"' if css else ""
    return f'<tr{kind}>{names}{cells}<td class="total">{escape(total)}</td></tr>'
