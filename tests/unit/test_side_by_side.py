"""Which files of real tests share a process, and in which order they begin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.real import side_by_side
from tests.real.side_by_side import ROOT, Group, Meter, Room, groups, in_order, passed

REAL = "import pytest\npytestmark = pytest.mark.real\n"


def written(folder: Path, **texts: str) -> list[Path]:
    files = [folder / f"test_{name}.py" for name in texts]
    for file, text in zip(files, texts.values(), strict=True):
        file.write_text(text)
    return files


def test_users_of_a_cloud_take_turns_in_two_and_all_others_are_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKFILL_TEST_CLOUD", raising=False)
    files = written(
        tmp_path,
        plain="def test_nothing_real() -> None: ...",
        lab=REAL,
        stuck=REAL + "def test_it(tenant: TenantRig) -> None: ...",
        room=REAL + "from tests.real.cloud_rig import running_cloud",
        guests=REAL + "from tests.real.cloud_rig import cloud_with_guests",
        faults=REAL + "def test_it(clouds: Path) -> None: ...",
    )
    apart = [Group("lab", (str(files[1]),)), Group("guests", (str(files[4]),))]
    durations = {"faults": 90.0, "room": 60.0, "stuck": 50.0}
    assert groups(files, durations=durations) == [
        *apart,
        Group("cloud", (str(files[3]), str(files[2]))),
        Group("cloud_2", (str(files[5]),)),
    ]
    assert groups(files[:3]) == [apart[0], Group("cloud", (str(files[2]),))]


def test_who_names_a_cloud_that_is_up_has_all_its_users_take_turns_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_TEST_CLOUD", "mine")
    users = dict.fromkeys(("a", "b"), REAL + "def test_it(tenant: TenantRig) -> None: ...")
    files = written(tmp_path, **users)
    assert groups(files) == [Group("cloud", tuple(map(str, files)))]


def test_every_file_with_a_real_test_is_in_exactly_one_group() -> None:
    files = sorted(ROOT.glob("tests/real/test_*.py")) + sorted(ROOT.glob("tests/contract/test_*.py"))
    marked = [str(file) for file in files if re.search(r"mark\.real\b", file.read_text())]
    found = groups(files)
    assert sorted(marked) == sorted(file for group in found for file in group.files)
    assert len({group.name for group in found}) == len(found) > 20


def test_the_longest_begin_first_and_what_is_not_known_after_them(tmp_path: Path) -> None:
    files = written(tmp_path, quick=REAL, slow=REAL, new=REAL, big=REAL + "#" * 1000)
    order = in_order(groups(files), {"quick": 3.0, "slow": 900.0})
    assert [group.name for group in order] == ["slow", "big", "new", "quick"]


def test_what_is_noted_was_measured_with_the_same_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: docs/soak.md told of files how long they take in the gate."""
    monkeypatch.setattr(side_by_side, "durations_file", lambda marks: tmp_path / f"{marks}.json")
    side_by_side._remember("soak", {"lab": 900.0})
    side_by_side._remember("soak", {"pause": 60.0})
    side_by_side._remember("gate", {"lab": 9.0})
    assert json.loads((tmp_path / "soak.json").read_text()) == {"lab": 900.0, "pause": 60.0}
    known = side_by_side._remembered("soak")
    assert known["lab"] == 900.0
    assert known["cloud"] > 0.0  # as on some other machine


def test_files_whose_tests_are_all_for_longer_runs_are_not_begun(tmp_path: Path) -> None:
    files = written(
        tmp_path,
        some=REAL + "@pytest.mark.soak\ndef test_long() -> None: ...",
        alike="import pytest\npytestmark = [pytest.mark.real, pytest.mark.gate]\n",
        only="import pytest\npytestmark = [pytest.mark.real, pytest.mark.soak]\n",
    )

    def begun(marks: str) -> list[str]:
        return [group.name for group in groups(files, marks)]

    assert begun("real and not gate and not soak") == ["some"]
    assert begun("real and not soak") == ["some", "alike"]
    assert begun("soak") == ["some", "alike", "only"]


@pytest.mark.parametrize(
    ("status", "said", "named", "fine"),
    [
        (0, "3 passed", True, True),
        (1, "1 failed", False, False),
        (5, "8 deselected", False, True),
        (5, "8 deselected", True, False),
        (5, "no tests ran", False, False),
    ],
)
def test_a_file_of_which_nothing_ran_has_passed_only_where_all_is_for_other_runs(
    status: int, said: str, named: bool, fine: bool
) -> None:
    """Not where somebody named it, nor where it has no tests at all."""
    assert passed(status, said, named) is fine


def test_a_file_that_is_named_and_not_begun_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is begun then: who reads that all went well would believe that it ran."""
    files = written(tmp_path, lab=REAL, plain="def test_nothing_real() -> None: ...")
    monkeypatch.setattr("sys.argv", ["side_by_side", *map(str, files)])
    with pytest.raises(SystemExit) as ended:
        side_by_side.main()
    assert ended.value.code == 2
    assert f"{files[1]}: no test there is 'real and not soak'" in capsys.readouterr().err


def test_a_file_that_does_not_exist_is_told_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever mistypes a name gets no traceback."""
    monkeypatch.setattr("sys.argv", ["side_by_side", "tests/real/test_nothing.py"])
    with pytest.raises(SystemExit) as ended:
        side_by_side.main()
    assert ended.value.code == 2
    assert "tests/real/test_nothing.py: there is no such file" in capsys.readouterr().err


def test_more_begin_only_while_processors_idle() -> None:
    """The first ones always; then one after the other, each given time to show what it needs."""
    idle = [0.0]
    room = Room(2, 4, lambda: idle[0])
    assert room.for_another(0, 100.0)
    assert room.for_another(1, 100.0)
    assert not room.for_another(2, 110.0)
    idle[0] = 0.5
    assert not room.for_another(2, 111.0)
    assert room.for_another(2, 120.0)
    assert not room.for_another(3, 121.0)
    assert room.for_another(3, 130.0)
    assert not room.for_another(4, 140.0)
    assert Room(4, 1, lambda: 1.0).for_another(0, 0.0)
    assert not Room(4, 1, lambda: 1.0).for_another(1, 100.0)


def test_idle_time_is_a_share_of_what_has_passed_since_the_last_look() -> None:
    meter = Meter()
    shares = [meter.read() for _ in range(3)]
    assert all(0.0 <= share <= 1.0 for share in shares)
