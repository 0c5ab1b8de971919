"""`backfill daemon --check`: a real call of the hook, as the user and by the way of Slurm's own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from backfill.config.model import Config, HookPlaceKind
from backfill.core.model.cluster import SlurmSettings
from backfill.core.model.visible import visible
from backfill.drivers.slurm.hooks.install import CHECK_MARK, HookPlan, groups_of, is_hook, programs
from backfill.drivers.slurm.settings import slurm_uid
from backfill.engine.connection_limiter import Refused, Trust, user_told
from backfill.engine.listener import Listener
from backfill.engine.messages import HookCall, Message
from backfill.ui import slurm_parts

_AGAIN = "say `backfill slurm hooks install` again"
_SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """The sentences about what was proven, and about what is missing, with the remedy."""

    proven: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def check_hooks(config: Config, settings: SlurmSettings) -> Found:
    """Call each of our hooks that slurm.conf names; the daemon that runs answers, or one like it.

    The hook has no job and names no node, so nothing comes of it.
    """
    on_host = config.slurm.hooks.place is HookPlaceKind.HOST
    named = [Path(p) for p in (settings.prolog if on_host else settings.prolog_slurmctld).split(",")]
    ours, directory = programs(config.slurm.hooks.place.value)[0], config.slurm.hooks.directory
    own = Path(directory, ours)
    key = "Prolog" if on_host else "PrologSlurmctld"
    if own.exists() and own not in named:
        return Found(problems=(f"{own} is there, but {key} does not name it; {_AGAIN}",))
    hooks = [path for path in named if path == own or is_hook(path)]
    if not hooks:
        return Found()  # another hint says what that means
    uid = 0 if on_host else slurm_uid(settings)
    if uid is None:
        return Found(problems=("scontrol does not tell who SlurmUser is, so no hook is believed",))
    if os.getuid() not in (0, uid):
        who = user_told(uid)
        return Found(problems=(f"the hook can be tried by root and by {who} only; run this so",))
    plan = slurm_parts.hook_plan(config)
    try:
        with _answering(config, plan, uid) as by:
            found = [_called(path, plan, uid, by) for path in hooks]
    except RuntimeError as error:
        return Found(problems=(str(error),))
    return Found(tuple(p for p, _ in found if p), tuple(p for _, p in found if p))


def _called(path: Path, plan: HookPlan, uid: int, by: str) -> tuple[str, str]:
    """Call one hook; return what it proves, and what is wrong with it."""
    who = user_told(uid)
    if not path.exists():
        return "", f"slurm.conf names the hook {path}, which is not there; {_AGAIN}"
    if not is_hook(path):
        return "", f"the hook {path} was built by an older backfill; {_AGAIN}"
    became = uid != os.getuid()
    groups = groups_of(uid) if became else []
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            [str(path)],
            env={"SLURM_SCRIPT_CONTEXT": "check"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=plan.timeout_ms / 1000 + _SLACK_S,
            user=uid if became else None,
            group=groups[0] if became else None,
            extra_groups=groups if became else None,
        )
    except PermissionError:
        return "", (
            f"{who} may not start the hook {path}: open it and the directories above it to that "
            "user (chmod o+x)"
        )
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"the hook {path} cannot be run as {who}: {error}"
    took_ms = (time.monotonic() - began_s) * 1000
    if done.returncode == 0:
        heard = visible(done.stdout.removeprefix(CHECK_MARK.decode()).strip())
        return (f"the hook {path}, run by {who}, was answered by {by} in {took_ms:.0f} ms: {heard}", "")
    said = visible(done.stderr.strip()) or "nothing"
    return ("", f"the hook {path}, run by {who} and heard by {by}, says: {said}; {_remedy(said, plan)}")


def _remedy(said: str, plan: HookPlan) -> str:
    if "its log" in said:
        return f"let slurm.hooks.log ({plan.log}) be where that user may write"
    if "not believed" in said:
        return "the daemon that runs does not know this SlurmUser: say `backfill policy reload`"
    if "Permission denied" in said:
        place = plan.endpoint.partition(":")[2]
        return f"open the directories above {place} to that user (chmod o+x)"
    if "cannot reach" in said or "cannot ask" in said:
        return f"it was built for another place than {plan.endpoint}: {_AGAIN}"
    return "its log, and the daemon's, may tell more"


@contextlib.contextmanager
def _answering(config: Config, plan: HookPlan, uid: int) -> Iterator[str]:
    """Yield who answers the hook: the daemon that runs, otherwise a listener like its own."""
    if _listens(plan.endpoint):
        yield "the daemon that runs"
        return
    inbox: SimpleQueue[Message | None] = SimpleQueue()
    own = Listener(inbox, lambda body, user: {}, _SLACK_S, Trust(uid), Refused())  # type: ignore[arg-type]  # None is ours
    answering = threading.Thread(target=_answer, args=(inbox,), daemon=True)
    try:
        kind, _, place = plan.endpoint.partition(":")
        if kind == "unix":
            own.listen_unix(Path(place))
        else:
            address, _, port = place.rpartition(":")
            own.listen_tcp(address, int(port))
        answering.start()
        yield "a listener like the daemon's"
    finally:
        own.close()
        inbox.put(None)


def _answer(inbox: SimpleQueue[Message | None]) -> None:
    while (message := inbox.get()) is not None:
        if isinstance(message, HookCall):
            message.reply("ok it was heard")


def _listens(endpoint: str) -> bool:
    kind, _, place = endpoint.partition(":")
    host, _, port = place.rpartition(":")
    try:
        if kind == "unix":
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect(place)
        else:
            socket.create_connection((host, int(port)), 2.0).close()
    except OSError:
        return False
    return True
