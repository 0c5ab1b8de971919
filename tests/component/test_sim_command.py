"""The commands read, replay, report and write, and refuse bad input in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.swf import swf_lines
from backfill.ui.commands.replay import main
from backfill.ui.commands.workload import main as workload
from backfill.ui.parser import BAD_DATA

SAMPLES = Path(__file__).parents[2] / "scenarios" / "traces"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    jobs = [
        ModelJob(0, 100, 3),
        ModelJob(10, 50, 4),
        ModelJob(20, 60, 1, 80),
        ModelJob(20, 70, 1, 300),
        ModelJob(30, 5, 9),
    ]
    path = tmp_path / "t.swf"
    path.write_text("".join(swf_lines(jobs, ())), encoding="utf-8")
    return path


def test_jobs_csv(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row per replayed job; what was left out is told on stderr."""
    out = tmp_path / "jobs.csv"
    assert main([str(trace), "--cluster", "4x1", "--no-instances", "--jobs-csv", str(out)]) == 0
    assert out.read_text(encoding="utf-8").splitlines() == [
        "job_id,submit,start,end,processors",
        "1,0,0,100,3",
        "2,10,100,150,4",
        "3,20,20,80,1",
        "4,20,150,220,1",
    ]
    captured = capsys.readouterr()
    assert "left out: 1 job: more processors than the machine has" in captured.err
    assert "4 jobs on 4 x 1 processors, easy, batch" in captured.out
    assert sorted(tmp_path.iterdir()) == [out, trace]


@pytest.mark.parametrize(("scheduler", "start"), [("easy", 20), ("fcfs", 150)])
def test_json(trace: Path, capsys: pytest.CaptureFixture[str], scheduler: str, start: int) -> None:
    """The measures are one JSON object, with what was replayed."""
    assert main([str(trace), "--cluster", "2x2", "--scheduler", scheduler, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["scheduler"], printed["tie"], printed["processors"]) == (scheduler, "batch", 4)
    assert printed["jobs"] == 4
    assert printed["wait_s"]["count"] == 4
    assert printed["left_out"] == {"more processors than the machine has": 1}
    assert printed["makespan_s"] >= start


def test_processors_that_are_kept(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing starts that would run into a maintenance, or needs what somebody else has then."""
    kept, out = tmp_path / "kept.yaml", tmp_path / "jobs.csv"
    kept.write_text("reservations: [{at_s: 90s, for_s: 30s}, {processors: 1, at_s: 160s, for_s: 40s}]\n")
    command = [str(trace), "--cluster", "4x1", "--reservations", str(kept)]
    assert main([*command, "--jobs-csv", str(out)]) == 0
    assert out.read_text(encoding="utf-8").splitlines()[1:] == [
        "1,0,120,220,3",
        "2,10,10,60,4",
        "3,20,200,260,1",
        "4,20,220,290,1",
    ]
    assert "4 jobs on 4 x 1 processors, easy, batch, 2 reservations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("reservations:\n- {processors: 5, at_s: 0, for_s: 1h}", "2:4: reservations[0].processors"),
        (  # no key of another kind of file is recommended
            "reservations:\n- {nodes: bm1, at_s: 0, for_s: 1h}",
            "reservations[0].nodes is not a known key; known keys here: at_s, for_s, processors",
        ),
        ("reservations:\n- {at_s: 1h}", "k.yaml:2:3: reservations[0].for_s is missing"),
        ("reservations: [", "k.yaml:1:16: "),
    ],
)
def test_a_wrong_file_of_reservations(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    """It is refused with file, line and remedy before anything is played."""
    (tmp_path / "k.yaml").write_text(content)
    assert main([str(trace), "--cluster", "4", "--reservations", str(tmp_path / "k.yaml")]) == BAD_DATA
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_fractions_stay_exact(tmp_path: Path) -> None:
    """A trace with fractions of seconds is written with them, and only where there are any."""
    trace, out = tmp_path / "t.swf", tmp_path / "o.csv"
    rest = " -1" * 9
    trace.write_text(f"1 -0.5 -1 1.25 1 -1 -1 1 -1{rest}\n2 0 -1 2 1 -1 -1 1 -1{rest}\n", encoding="utf-8")
    assert main([str(trace), "--cluster", "1", "--jobs-csv", str(out)]) == 0
    assert out.read_text(encoding="utf-8").splitlines()[1:] == ["1,-0.5,-0.5,0.75,1", "2,0,0.75,2.75,1"]


def test_bad_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken trace ends with status 2, the place and the remedy, and no file."""
    broken, out = tmp_path / "b.swf", tmp_path / "o.csv"
    broken.write_text("1 2 3\n", encoding="utf-8")
    assert main([str(broken), "--cluster", "4x1", "--jobs-csv", str(out)]) == BAD_DATA
    printed = capsys.readouterr()
    assert printed.err == (f"backfill: {broken}:1: 3 columns where SWF has 18; complete or remove the line\n")
    assert printed.out == ""
    assert not out.exists()


def test_a_csv_that_cannot_be_written(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that does not exist is told."""
    out = tmp_path / "none" / "o.csv"
    assert main([str(trace), "--cluster", "4x1", "--jobs-csv", str(out)]) == BAD_DATA
    assert capsys.readouterr().err.startswith(f"backfill: cannot write {out}: there is no directory")


def test_a_csv_on_stdout_keeps_the_link_to_it(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--jobs-csv /dev/stdout` with stdout in a file: the table follows the rows."""
    assert main([str(trace), "--cluster", "4x1", "--jobs-csv", "/dev/stdout"]) == 0
    assert capsys.readouterr().out.startswith("job_id,submit,start,end,processors\n")
    assert Path("/dev/stdout").is_symlink()


def test_a_link_stays_a_link(trace: Path, tmp_path: Path) -> None:
    """What it leads to is written, whole."""
    real, link = tmp_path / "real.csv", tmp_path / "latest.csv"
    real.write_text("old")
    link.symlink_to(real)
    assert main([str(trace), "--cluster", "4x1", "--jobs-csv", str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text().startswith("job_id,")


def test_an_archive_with_a_password_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What Python cannot unpack is told with what to do."""
    path = tmp_path / "t.zip"
    with ZipFile(path, "w") as pack:
        pack.writestr("t.swf", "1 0 -1 10 1 -1 -1 1 20 -1 1 -1 -1 -1 -1 -1 -1 -1\n")
    packed = bytearray(path.read_bytes())
    packed[6] |= 1  # the flag of encryption, in the file's head and in the directory
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(packed)
    assert main([str(path), "--cluster", "4x1"]) == BAD_DATA
    assert "cannot be unpacked" in capsys.readouterr().err


def test_a_csv_may_go_to_a_device(trace: Path) -> None:
    """What is no plain file is written to as it is, not replaced."""
    assert main([str(trace), "--cluster", "4x1", "--jobs-csv", "/dev/null"]) == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("text", ["", "x4", "0x4", "4x0", "4x", "-1x4", "1.5x2", "4x1x1"])
def test_a_cluster_that_is_none(text: str) -> None:
    """Anything but two positive numbers is refused."""
    with pytest.raises(ValueError, match="NODESxCPUS"):
        Cluster.parse(text)


def test_clusters() -> None:
    """Nodes times CPUs; nodes alone have one each."""
    assert Cluster.parse("128x2").processors == 256
    assert Cluster.parse("128") == Cluster(128, 1)


def test_bad_arguments_are_a_usage_error(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cluster's form is explained."""
    with pytest.raises(SystemExit) as caught:
        main([str(trace), "--cluster", "many"])
    assert caught.value.code == 64
    assert "not of the form NODESxCPUS" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["lublin", "lublin-typed", "poisson", "htc"])
def test_workloads_are_written_and_read(model: str, tmp_path: Path) -> None:
    """Every model's sample is a trace that the reader takes whole."""
    path = tmp_path / "w.swf"
    assert workload([model, "--jobs", "50", "--processors", "16", "-o", str(path)]) == 0
    assert len(read_trace(path)) == 50


def test_workload_arguments_are_checked(tmp_path: Path) -> None:
    """No jobs, no load, no folder: each is refused."""
    out = str(tmp_path / "w.swf")
    for wrong in (["--jobs", "0"], ["--load", "0"], ["--load", "inf"]):
        with pytest.raises(SystemExit):
            workload(["lublin", *wrong, "-o", out])
    assert workload(["lublin", "--jobs", "5", "-o", str(tmp_path / "none" / "w.swf")]) == BAD_DATA
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["poisson", "--mean-gap-s", "1e308"], "give a smaller --mean-gap-s"),
        (["htc", "--mean-gap-s", "1e308"], "give a smaller --mean-gap-s"),
        (["poisson", "--mean-gap-s", "1e20"], "give a smaller --mean-gap-s"),
        (["htc", "--estimate-factor", "1e308"], "give a smaller --estimate-factor"),
        (["lublin", "--load", "1e-308"], "give a larger --load"),
        (["poisson", "--mean-gap-s", "1e20", "--estimate-factor", "2"], "--mean-gap-s or a smaller --est"),
    ],
)
def test_times_that_no_trace_holds_are_not_written(
    words: list[str], cure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names the option, and there is no file that `replay` would refuse."""
    path = tmp_path / "w.swf"
    assert workload([*words, "--jobs", "10", "-o", str(path)]) == 64
    told = capsys.readouterr().err
    assert cure in told
    assert told.count("\n") == 1
    assert not path.exists()


def test_a_dash_is_the_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert workload(["poisson", "--jobs", "3", "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("; Version: 2.2\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("digits", ["1" + "0" * 24, "9" * 5000, "-" + "9" * 5000, "x" * 5000])
def test_a_number_of_many_digits_is_not_repeated(
    digits: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        workload(["poisson", "--processors", digits, "-o", str(tmp_path / "w.swf")])
    assert caught.value.code == 64
    told = capsys.readouterr().err
    assert "_whole" not in told
    assert len(told) < 200


@pytest.mark.parametrize(
    ("sample", "arguments"),
    [
        ("lublin-64.swf", ["lublin", "--jobs", "400", "--processors", "64", "--load", "0.8"]),
        ("htc-backlog.swf", ["htc", "--jobs", "400", "--backlog", "150", "--mean-gap-s", "120"]),
        ("poisson.swf", ["poisson", "--jobs", "300", "--mean-gap-s", "10"]),
    ],
)
def test_shipped_samples_are_what_the_models_draw(sample: str, arguments: list[str], tmp_path: Path) -> None:
    """The samples can be made again, byte for byte."""
    path = tmp_path / sample
    assert workload([*arguments, "--seed", "1", "-o", str(path)]) == 0
    assert path.read_bytes() == (SAMPLES / sample).read_bytes()
