"""Runs inside Salt's own environment: one JSON request per line in, one JSON answer per line out.

Salt pins much that the daemon does not want, and logs and patches as it likes, so it never shares a
process with the daemon. This file imports nothing of ours; it ends when its input ends. Lines that
carry the key `event` are hints and may come at any time.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_KEY_BITS = 2048
# With one of these settings the master takes everybody for whom they say they are.
_LETS_IN = ("open_mode", "auto_accept")
_TAGS = ("salt/minion/", "salt/job/")
_out = threading.Lock()
# One at a time: Salt's renderers share what they keep, and would render one machine from another's.
_rendering = threading.Lock()


def say(line: dict[str, Any], stream: Any) -> None:
    """One line out, whole, whichever thread speaks."""
    with _out:
        stream.write(json.dumps(line, default=str) + "\n")
        stream.flush()


class PlainError(Exception):
    """Its text says all that is to be said."""


class Master:
    """The master as the driver uses it: keys, runs of states, and events."""

    def __init__(self, config: str) -> None:
        import salt.client
        import salt.config
        import salt.wheel

        # Without its file Salt would be the master of a machine that has none, with defaults.
        if not Path(config).is_file():
            raise PlainError(f"there is no master's configuration {config}")
        Path(config).open("rb").close()  # nor of one whose file it may not read
        self.opts: dict[str, Any] = salt.config.master_config(config)
        self._public = Path(self.opts["pki_dir"], "master.pub")
        if not self._public.exists():
            raise PlainError(f"no master has run with {config} yet: start salt-master once")
        # Deleting a key makes a new cluster key by default, and every minion would sign in again.
        self._wheel = salt.wheel.WheelClient(self.opts)
        self._client = salt.client.LocalClient(mopts=self.opts)

    def _turn(self, function: str, **words: Any) -> dict[str, Any]:
        """One function of the wheel, whose failures are texts: the last line says what is wrong."""
        found = self._wheel.cmd(function, kwarg=words)
        if isinstance(found, str):
            raise PlainError(found.strip().splitlines()[-1])
        return dict(found or {})

    def make_key(self, id: str) -> dict[str, Any]:  # noqa: A002
        """Make a fresh accepted key pair, whatever was there; add the master's own public key."""
        made = self._turn("key.gen_accept", id_=id, keysize=_KEY_BITS, force=True)
        return {"private": made["priv"], "public": made["pub"], "master": self._public.read_text()}

    def states(self, id: str, grains: dict[str, Any], keep: bool = True) -> dict[str, Any]:  # noqa: A002
        """Render a machine's low state here from the master's own tree and pillar.

        `keep`: so that `again` can be asked for it.
        """
        files, pillar = self._base("file_roots"), self._base("pillar_roots")
        found = render(files, pillar, grains, id=id)
        place = self._place(id)
        if keep:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            place.write_text(json.dumps(grains))
        others = bool(self.opts["ext_pillar"]) or self.opts["fileserver_backend"] != ["roots"]
        lets_in = next((key for key in _LETS_IN if self.opts[key]), "")
        return {**found, "folders": [*files, *pillar], "others": others, "lets_in": lets_in}

    def again(self, ids: list[str]) -> dict[str, Any]:
        """Return the present answer of `states` for machines that were asked about before."""
        known = {i: self._place(i) for i in ids if self._place(i).exists()}
        return {"answers": {i: self.states(i, json.loads(p.read_text())) for i, p in known.items()}}

    def _place(self, id: str) -> Path:  # noqa: A002
        """Return the path of a machine's grains, which are kept as long as its key."""
        return Path(self.opts["cachedir"], "backfill", id)

    def _base(self, roots: str) -> list[str]:
        """Directories of the environment base; gitfs or an ext_pillar are not rendered here."""
        if "base" not in self.opts[roots]:
            raise PlainError(f"{roots} of the master has no environment base")
        return list(self.opts[roots]["base"])

    def delete_key(self, id: str, cut: bool = False) -> dict[str, Any]:  # noqa: A002
        """Forget the key; `cut`: whoever still uses it is thrown out at once, too."""
        self._wheel.opts["rotate_aes_key"] = cut
        self._turn("key.delete", match=id)
        self._place(id).unlink(missing_ok=True)
        return {}

    def keys(self) -> dict[str, Any]:
        """Return the machines whose key the master has accepted."""
        return {"accepted": list(self._turn("key.list_all")["minions"])}

    def look(self, ids: list[str], asked: dict[str, Any], within_s: float) -> dict[str, Any]:
        """Let these minions compare themselves with their states; returns Salt's full answers."""
        return self._call(ids, "backfill_look.look", {"asked": asked}, within_s)

    def apply(self, ids: list[str], test: bool, within_s: float) -> dict[str, Any]:
        """Run the states of these minions; Salt's full returns."""
        return self._call(ids, "state.apply", {"test": test}, within_s)

    def _call(self, ids: list[str], function: str, words: Any, within_s: float) -> dict[str, Any]:
        # Salt would wait for a master that is not there as long as for its minions.
        at = (self.opts["interface"], self.opts["ret_port"])
        try:
            socket.create_connection(at, timeout=5).close()
        except OSError as error:
            raise PlainError(f"no master listens on {at[0]}:{at[1]}, start it") from error
        found = self._client.cmd(
            ids,
            function,
            kwarg=words,
            tgt_type="list",
            timeout=int(within_s),
            gather_job_timeout=5,
            full_return=True,
        )
        return {"answers": found}

    def listen(self, stream: Any) -> None:
        """Pass on starts and results, for ever."""
        import salt.utils.event

        bus = salt.utils.event.get_master_event(self.opts, self.opts["sock_dir"], listen=True)
        while True:
            event = bus.get_event(wait=60, full=True)
            if event and event["tag"].startswith(_TAGS):
                say({"event": event["tag"], **heard(event["data"])}, stream)


def render(
    states: str | list[str],
    pillar: str | list[str],
    grains: dict[str, Any],
    given: dict[str, Any] | None = None,
    id: str = "machine",  # noqa: A002
) -> dict[str, Any]:
    """Render a machine's states in process, without master or minion: its low state, or errors.

    `grains` has the key `backfill` with at least `role` and `kind`; `given` replaces the pillar
    that is found below `pillar`. `seals`: by path of a secret from the pillar some random text, and
    the checksum of both.
    """
    import salt.client
    import salt.config
    import salt.exceptions

    with _rendering, tempfile.TemporaryDirectory() as place:
        if given is not None:
            pillar = str(Path(place, "pillar"))
            Path(pillar).mkdir()
            Path(pillar, "top.sls").write_text("base: {'*': [given]}\n")
            Path(pillar, "given.sls").write_text(json.dumps(given))
        # Grains are read from a file only.
        config = Path(place, "minion")
        settings = {
            "id": id,
            "root_dir": place,
            "file_client": "local",
            "file_roots": {"base": [states] if isinstance(states, str) else states},
            "pillar_roots": {"base": [pillar] if isinstance(pillar, str) else pillar},
            "grains": {**grains, "init": _INIT[grains["backfill"]["kind"]]},
            "enable_gpu_grains": False,
            "enable_fqdns_grains": False,
            "autoload_dynamic_modules": False,
            "pillar_safe_render_error": False,  # there is no log in which the reason would be
            "log_level": "error",
        }
        config.write_text(json.dumps(settings))
        opts = salt.config.minion_config(str(config))
        try:
            caller = salt.client.Caller(mopts=opts)
            found, known = caller.cmd("state.show_lowstate"), caller.opts["pillar"]
        except salt.exceptions.CommandExecutionError as error:  # the pillar
            found, known = [str(error)], {}
    errors = [line for line in found if isinstance(line, str)]
    if errors:
        return {"errors": errors, "states": [], "seals": {}}
    return {"errors": [], "states": found, "seals": dict(_seals(found, known))}


def _seals(states: list[dict[str, Any]], pillar: Any) -> Iterator[tuple[str, list[str]]]:
    for state in states:
        if "contents_pillar" in state and state["fun"] == "decode":
            value = pillar
            for step in state["contents_pillar"].split(":"):
                value = value[step]
            mix = secrets.token_hex(16)
            content = mix.encode() + base64.b64decode(value)
            yield state["name"], [mix, hashlib.sha256(content).hexdigest()]


def heard(data: Any) -> dict[str, Any]:
    """Of an event: whose it is, and the answer where it tells of states that did not succeed.

    A minion may send events with any tag and with anything in them.
    """
    said = data if isinstance(data, dict) else {}
    failed = str(said.get("fun", "")).startswith("state.") and said.get("retcode") not in (0, None)
    return {"id": str(said.get("id", "")), "failed": failed, "return": failed and said.get("return")}


_INIT = {"virtual": "busybox", "metal": "systemd"}


def serve(config: str, requests: Iterator[str], stream: Any) -> None:
    """Answer requests until their end; or say why that is impossible."""
    try:
        master = Master(config) if config else None
    except BaseException as error:  # noqa: BLE001  Salt raises SystemExit and its own kinds
        say({"refused": _told(error)}, stream)
        return
    verbs: dict[str, Callable[..., dict[str, Any]]] = {"render": render}
    if master is not None:
        verbs |= {name: getattr(master, name) for name in _VERBS}
        threading.Thread(target=master.listen, args=(stream,), daemon=True).start()
        # The first rendering loads Salt's modules: a new node shall not wait for that.
        threading.Thread(target=_warm, args=(master,), daemon=True).start()
    say({"ready": True}, stream)
    for line in requests:
        request = json.loads(line)
        number, verb = request.pop("number"), request.pop("verb")
        # Each request has a thread, so that one slow minion does not hold up a key.
        threading.Thread(target=_answer, args=(verbs[verb], request, number, stream), daemon=True).start()


_VERBS = ("make_key", "delete_key", "keys", "states", "again", "look", "apply")


def _warm(master: Master) -> None:
    grains = {"role": "node", "kind": "virtual", "node": "nobody", "address": "0.0.0.0"}  # noqa: S104
    with contextlib.suppress(Exception):
        render(master._base("file_roots"), master._base("pillar_roots"), {"backfill": grains})


def _answer(work: Callable[..., dict[str, Any]], request: Any, number: int, stream: Any) -> None:
    try:
        answer = work(**request)
    except BaseException as error:  # noqa: BLE001  Salt raises SystemExit and its own kinds
        answer = {"error": _told(error)}
    say({"number": number, **answer}, stream)


def _told(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [""])[-1]
    return text if isinstance(error, PlainError) else f"{type(error).__name__}: {text}"


def _own_place() -> None:
    """Let all that is written for a moment vanish with this process, however that ends."""
    tempfile.tempdir = tempfile.mkdtemp(prefix="backfill-salt-")
    # It waits for what we never write, and so learns of our end.
    ours, _ = os.pipe()
    script = 'trap "" TERM INT HUP; read -r nothing; exec rm -rf "$0"'
    argv = ["/bin/sh", "-c", script, tempfile.tempdir]
    subprocess.Popen(argv, stdin=ours, stdout=subprocess.DEVNULL, start_new_session=True)
    os.close(ours)


def main() -> int:
    """`python inside.py [MASTER_CONFIG]`."""
    # Salt and its libraries print; our answers have a stream of their own.
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger().setLevel(logging.ERROR)
    _own_place()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1] if len(sys.argv) > 1 else "", iter(sys.stdin.readline, ""), stream)
    # Threads that wait for minions must not keep us.
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
