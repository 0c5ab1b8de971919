"""Journal records to what is stored, and back: text in memory, packed text in a file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable

from backfill.core.model.records import REMEMBERED
from backfill.ports.storage import Record

Row = tuple[float, str, str, str]
# In the order of the table's columns. `lasting`: 1 for what a restarted daemon needs, and only that
# has its type there.
Packed = tuple[float, str, str, str, int, bytes]

# Made once: `json.dumps` with separators of one's own makes one for every call.
_encode = json.JSONEncoder(separators=(",", ":")).encode

# Words that records are full of, the most frequent last. What is stored can be read with exactly
# this text only: another one needs a number of its own, and this one stays for what is there.
_WORDS_1 = (
    b'{"event":"start","managed":0}{"t":"Tick","now_s":17{"steps":0}{"t":"PrioritiesSeen","ids":["'
    b'"priorities":[1000,{"t":"LastWords","text":{"t":"HoldSet","subject":"on":true,"keep":'
    b'{"t":"Claimed","job_id":"","hosts":["],"at_s":17,"waiting":true}{"t":"ClaimEnded"'
    b'{"t":"ClaimAnswered"{"t":"Woken","correction_s":0.00{"t":"Proven","report":{"correction_s":'
    b'"offset_s":0.00,"bound_s":0.00,"source":"","addresses":["10."],"facts":[{"name":"munge:to '
    b'the guest","ok":true,"said":"","took_s":0.0},{"name":"files:/home","ok":true{"t":"Refusal",'
    b'"subject":"cluster","what":"a new instance","reason":"limits.max_instances = is reached"}'
    b'{"t":"InstanceGone","host":"","name":""{"t":"InstanceStopped"{"t":"InstanceSeen","instance":'
    b'{"name":"vn","host":"bm","state":"paused","running","tag":{"cluster":"","node":"vn",'
    b'"generation":1},"resources":{"cpus":,"memory_mb":},"rss_mb":,"boot_s":17},"seen_s":17'
    b'{"t":"PauseInstance"{"t":"ThawInstance"{"t":"SuspendJob","job_id":"{"t":"ResumeJob"'
    b'{"t":"DrainNode"{"t":"UndrainNode"{"t":"SetAddress","address":"255.255.255.255"'
    b'{"t":"DeleteInstance"{"t":"DeleteNode"{"t":"WakeInstance"{"t":"ProbeJobs"'
    b'"reason":"host was given to job {"t":"OperationStarted","key":"PauseInstance:vn","at_s":17'
    b',"host":"{"t":"OperationDone","key":"ThawInstance:vn{"key":"","elapsed_s":0.0,"problem":""}'
    b'{"t":"NodesRead","names":["{"t":"SourcesSeen","sources":["{"t":"SourceSeen","source":"slurm",'
    b'"seen_s":17,"from_s":17{"t":"HostSeen","host":{"name":"bm","node":"","capacity":{"cpus":'
    b',"memory_mb":000},"busy":0.},"seen_s":17{"t":"JobGone","id":"","seen_s":17'
    b'{"t":"SetNode","node":{"name":"vn","address":"10./16","host":"bm","generation":1,"phase":'
    b'"evicting","displaced","returning","booting","ready","since_s":17,"created_s":17,"reason":'
    b'"it has proven itself","held":[{"id":"","restarts":0}],"rung_kind":"pause","rung_since_s":17'
    b',"proven_s":17,"proof_s":17,"woken_s":17,"idle_since_s":17,"drained_s":17,"suspended_s":17'
    b',"probed_s":17},"reason":"no job is left on it"}{"t":"NodeManaged","node":{"name":"vn'
    b'{"t":"NodeSeen","node":{"name":"vn","base":"ALLOCATED","MIXED","IDLE","flags":["COMPLETING",'
    b'"DRAIN","DYNAMIC_NORM"],"reason":"backfill: ","address":"10.","cpus":,"cpus_allocated":,'
    b'"memory_mb":000,"partitions":["htc"],"features":["backfill"],"boot_time_s":17,'
    b'"slurmd_start_s":17.0},"seen_s":17{"t":"JobSeen","job":{"id":"","raw_id":,"partition":"htc",'
    b'"state":"PENDING","SUSPENDED","COMPLETED","RUNNING","flags":["COMPLETING"],"qos":"normal",'
    b'"user":"","account":"","name":"","nodes":["vn"],"num_nodes":,"cpus":,"memory_mb":000,'
    b'"priority":,"submit_s":17.0,"eligible_s":17.0,"start_s":17.0,"time_limit_s":86400.0,'
    b'"restarts":1,"requeue":false,"reason":"None"},"seen_s":17'
)
WORDS = {1: _WORDS_1}
_NOW = 1


def rows(records: Iterable[Record]) -> list[Row]:
    """Return the row of each record. Raises TypeError or ValueError before anything is stored."""
    return [(float(r.at_s), r.kind, r.subject, dump(r.body)) for r in records]


def packed(records: Iterable[Record]) -> list[Packed]:
    """Pack lines for a file, where they take a third of the room."""
    found: list[Packed] = []
    for r in records:
        kind = str(r.body.get("t", ""))
        lasting = kind in REMEMBERED
        text = pack(dump(r.body))
        found.append((float(r.at_s), r.kind, r.subject, kind if lasting else "", int(lasting), text))
    return found


def dump(body: dict[str, object]) -> str:
    """Plain JSON data as compact text, keys in their order. TypeError: it is not plain."""
    return _encode(body)


def pack(text: str) -> bytes:
    """Pack the text, with a number in front that says how."""
    # Small tables: making them would take longer than the packing.
    packer = zlib.compressobj(6, zlib.DEFLATED, -12, 1, zlib.Z_DEFAULT_STRATEGY, WORDS[_NOW])
    return bytes((_NOW,)) + packer.compress(text.encode()) + packer.flush()


def unpack(stored: bytes | str) -> str:
    """Undo `pack`; text is from a journal of version 1. ValueError: it is neither."""
    if isinstance(stored, str):
        return stored
    words = WORDS.get(stored[0]) if stored else None
    if words is None:
        raise ValueError("a record of the journal is packed in a way that is not known here")
    try:
        return zlib.decompressobj(-12, words).decompress(stored[1:]).decode()
    except zlib.error as error:
        raise ValueError(f"a record of the journal is damaged: {error}") from error


def record(number: int, at_s: float, kind: str, subject: str, body: str) -> Record:
    """Undo `rows` for one line; `packed` as well, once the body is unpacked."""
    return Record(at_s, kind, subject, json.loads(body), number)
