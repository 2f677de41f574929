"""Comparisons of methods: their cells are run once, resumed, refused and reported, and words follow from numbers."""

import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from processes import COMMAND, start_program
from small_runs import call_command, run_command

from training.comparison import bases
from training.comparison.cases import COMPARISONS, Effort, cell_name
from training.comparison.cells import cells_of
from training.comparison.fronts import FAMILIES, NETS, first_below, front, solution
from training.comparison.report import collect, page_text, read_comparison, write_comparison
from training.comparison.tables import percent, shown_rows
from training.comparison.verdicts import PURPOSE, verdicts

pytestmark = pytest.mark.serial
LEVELS = {"disks1": 3, "carreau": 2, "paper": 3}
LITTLE = Effort(
    samples=4,
    fine_samples=2,
    batches=(1, 4),
    seconds=0.0,
    petsc=2,
    training=0.5,
    solves=150,
    basis=40,
    modes=(4, 8),
    greedy=3,
    polynomials=40,
    learn=3,
)


@pytest.fixture(scope="module")
def tiny():
    """The preset `quick` on very coarse meshes, with hardly any effort."""
    cases = tuple(replace(c, levels=LEVELS[c.name]) for c in COMPARISONS["quick"].cases if c.name in LEVELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPARISONS, "quick", replace(COMPARISONS["quick"], cases=cases, effort=LITTLE))
        yield COMPARISONS["quick"]


def compare(out, *arguments, **options):
    return call_command("compare", "--preset", "quick", "--out", out, *arguments, **options)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """All cells of the small comparison, run in this process."""
    out = tmp_path_factory.mktemp("comparison") / "tiny"
    told = json.loads(compare(out, "--here", "--json").stdout)
    assert told["done"] == told["cells"] == 24
    return out


def rows_of(out, case):
    found = next(c for c in collect(out)["cases"] if c["name"] == case)
    return {row["method"]: row for row in found["rows"]}, found["facts"]


# ---- what there is


def test_presets_have_the_paper_s_problem_and_no_linear_methods_for_nonlinear_ones():
    for comparison in COMPARISONS.values():
        names = [cell_name(case, method) for case, method in comparison.chosen()]
        assert len(set(names)) == len(names)
        assert "paper-reduced" in names
        assert not {"carreau-direct", "carreau-reduced", "paper-multigrid"} & set(names)
        assert comparison.effort.petsc >= comparison.effort.fine_samples  # errors against the finer mesh have one base
        assert {1, 64} <= set(comparison.effort.batches)
    cases = {case.name: case for case in COMPARISONS["full"].cases}
    assert {"disks2", "disks4", "waves", "spot", "hard", "elastic", "carreau", "disks1-fine", "cube"} <= set(cases)
    assert cases["disks1-fine"].levels == 8


def test_cells_measure_what_is_known_about_their_methods(whole):
    for case, how in (("disks1", "assembled"), ("paper", "batched")):
        rows, facts = rows_of(whole, case)
        assert {row["kind"] for row in rows.values()} <= set(FAMILIES)
        assert rows["PETSc, lu"]["error"] < 1e-9 > rows["SciPy, direct"]["error"]
        assert rows["solve to 1e-06"]["error"] < 1e-4 > rows["solve to 1e-06"]["gradient_error"]
        assert rows[f"POD, 8 modes, {how}"]["error"] < rows[f"POD, 4 modes, {how}"]["error"]
        assert rows["PETSc, lu"]["finer_error"] == pytest.approx(facts["error"], rel=1e-6)
        assert facts["superclose"] < facts["error"]
        assert all(row["D_ms"] > 0 for row in rows.values())
        by_pymor, batched = rows["pyMOR, POD, 8 modes"], rows[f"POD, 8 modes, {how}"]
        assert by_pymor["error"] == pytest.approx(batched["error"], rel=0.5)  # the means are over other samples
        assert by_pymor["remark_modes"] == 8
        assert (by_pymor["remark_interpolation_error"] < 1e-9) == (how == "batched")
    assert rows["PETSc, lu"]["bound"]["most"] < 1.2  # least squares: the functional is the error, against a finer mesh
    rows, facts = rows_of(whole, "disks1")
    assert rows["PETSc, lu"]["bound"] is None  # errors of rounding
    assert rows["multigrid (2, 2) + 4"]["error"] < 1e-4 < rows["multigrid (1, 1)"]["error"]
    assert set(rows["multigrid (2, 2)"]["times"]["4"]) == {"query", "coefficient", "coefficient and set-up", "solve"}
    assert rows["a net for the outputs"]["output_error"] > 0 < rows["a net for the outputs"]["gradient_ms"]
    assert rows["POD and a net"]["solves"] == 150
    with_bounds = [row for row in rows.values() if row.get("bound")]
    assert len(with_bounds) > 15
    assert all(row["bound"]["least"] >= 1 for row in with_bounds)
    rows, _ = rows_of(whole, "carreau")
    assert rows["PETSc, SNES with lu"]["error"] < 1e-6
    assert {*NETS, "POD and a net", "solve to 0.01"} <= set(rows)


def test_errors_of_pymor_and_of_the_batched_bases_agree_sample_by_sample(whole, tiny):
    from training.comparison.yardstick import Yardstick

    cell = next(cell for cell in cells_of(tiny, whole) if cell.name == "paper-reduced")
    yard = Yardstick(cell.case, cell.effort, cell.folder)
    methods = {method.name: method for method in bases.reduced_bases(yard, cell.folder)}
    one, many = (methods[name].values(yard.y[:2]) for name in ("pyMOR, POD, 8 modes", "POD, 8 modes, batched"))
    assert float((one - many).abs().max()) < 1e-9 * float(many.abs().max())


# ---- running


def test_complete_cells_are_skipped_and_measured_again_with_what_was_learned(whole, tiny):
    cells = {cell.name: cell for cell in cells_of(tiny, whole)}
    cell = cells["disks1-frame-best"]
    before, when = cell.read(), cell.result.stat().st_mtime_ns
    assert json.loads(compare(whole, "--here", "--json", "--cells", cell.name).stdout)["done"] == 1
    assert cell.result.stat().st_mtime_ns == when
    compare(whole, "--here", "--json", "--again", "--cells", cell.name, "--workers", 2)
    after = cell.read()
    assert cell.result.stat().st_mtime_ns > when
    assert after["rows"][0]["error"] == pytest.approx(before["rows"][0]["error"], rel=1e-6)
    assert after["rows"][0]["remark_steps"] == before["rows"][0]["remark_steps"]
    assert (before["workers"], after["workers"]) == (1, 2)
    assert "2 cells at a time, which disturb each other's times" in page_text(collect(whole))


def test_the_list_shows_what_is_there(whole, tiny, tmp_path):
    rows = json.loads(compare(whole, "--list", "--json").stdout)["rows"]
    assert {row["status"] for row in rows} == {"done"}
    rows = json.loads(compare(tmp_path / "none", "--list", "--json").stdout)["rows"]
    assert {(row["status"], row["methods"]) for row in rows} == {("new", 0)}
    assert not (tmp_path / "none").exists()


def test_a_cell_that_is_interrupted_is_run_again_and_a_partial_folder_reported(tmp_path):
    """With the public preset, because its cells are processes that know no other."""
    out = tmp_path / "quick"
    arguments = ("compare", "--preset", "quick", "--out", out, "--cells", "paper-direct")
    process = start_program(COMMAND, *arguments)
    until = time.monotonic() + 120
    while not (out / ".paper-direct.lock").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) != 0
    assert not (out / "paper-direct.json").exists()
    assert "fem-frames: no cell of" in run_command("report", out, "--no-figures", check=False).stderr
    run_command(*arguments)
    told = json.loads(run_command("report", out, "--no-figures", "--json").stdout)
    assert (told["cases"], told["rows"]) == (1, 1)
    page = (out / "report" / "comparison.md").read_text()
    assert "not measured: disks1-petsc" in page
    assert "| SciPy, direct | – | – |" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cells", "disks9-*"], "none has such a name; `fem-frames compare --list` shows all names"),
        (["--workers", "0"], "--workers is 0: at least one cell at a time"),
    ],
)
def test_wrong_options_are_refused_before_a_folder_is_made(tmp_path, options, message):
    assert message in compare(tmp_path / "new", *options, expect=2).stderr
    assert not (tmp_path / "new").exists()


def test_folders_of_other_things_are_refused(tmp_path, whole):
    (tmp_path / "file").write_text("precious")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.tex").write_text("precious")
    assert "is a file: give a folder" in compare(tmp_path / "file", expect=2).stderr
    assert "holds other files: give an empty folder" in compare(tmp_path / "notes", expect=2).stderr
    said = call_command("compare", "--preset", "full", "--out", whole, expect=2).stderr
    assert "holds the comparison quick: choose another --out for full" in said
    assert "holds no experiment" in call_command("tables", "--preset", "cpu", "--out", whole, expect=2).stderr


def test_results_of_other_settings_and_damaged_ones_are_refused(tiny, tmp_path):
    out = tmp_path / "tiny"
    compare(out, "--here", "--json", "--cells", "paper-direct")
    file = out / "paper-direct.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"effort": record["effort"] | {"samples": 5}}))
    assert "was measured with another effort" in compare(out, "--list", expect=2).stderr
    file.write_text("{}")
    assert "is no cell of this fem-frames: remove it" in compare(out, "--list", expect=2).stderr


def test_reports_name_the_damaged_file_and_write_nothing(tiny, tmp_path):
    out = tmp_path / "tiny"
    compare(out, "--here", "--json", "--cells", "paper-[dm]*")
    file, mark = out / "paper-direct.json", out / "experiment.json"
    good = json.loads(file.read_text())
    for change in ({"rows": [{**good["rows"][0], "error": "x"}]}, {"facts": {}}, {"versions": None}):
        file.write_text(json.dumps({**good, **change}))
        said = call_command("report", out, expect=2).stderr
        assert f"{file} is damaged" in said
        assert "remove it, and `fem-frames compare` measures it again" in said
    file.write_text(json.dumps({**good, "seconds": float("nan")}))
    assert f"{file} is no cell of this fem-frames: remove it" in call_command("report", out, expect=2).stderr
    file.write_text(json.dumps(good))
    finer = out / "paper" / "finer.npz"
    finer.write_bytes(finer.read_bytes()[:100])
    said = compare(out, "--here", "--again", "--cells", "paper-direct", expect=2).stderr
    assert f"{finer} is damaged" in said
    assert "remove it, and it is made again" in said
    for text in ("", "{", "[]", "null", "{}"):
        mark.write_text(text)
        for said in (call_command("report", out, expect=2).stderr, compare(out, expect=2).stderr):
            assert f"{mark} is damaged" in said
            assert '{"comparison": "full"}' in said
    assert not (out / "report").exists()


def test_without_pymor_its_cells_say_what_to_install(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(bases, "is_there", lambda: False)
    said = compare(tmp_path / "tiny", "--here", "--cells", "paper-reduced", expect=2).stderr
    assert 'there is no pyMOR here: pip install "fem-frames[compare]"' in said
    assert not (tmp_path / "tiny" / "paper-reduced.json").exists()


# ---- reports


def test_the_report_of_a_folder_and_of_its_json_are_the_same(whole, tmp_path):
    told = json.loads(call_command("report", whole, "--out", tmp_path, "--json").stdout)
    assert told["figures"] == ["disks1.png", "carreau.png", "paper.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in told["figures"])
    page, record = (tmp_path / "comparison.md").read_text(), (tmp_path / "comparison.json").read_text()
    (tmp_path / "comparison.md").unlink()
    call_command("report", tmp_path / "comparison.json", "--json")
    assert ((tmp_path / "comparison.md").read_text(), (tmp_path / "comparison.json").read_text()) == (page, record)
    for case in json.loads(record)["cases"]:
        assert f"superclose **{percent(case['facts']['superclose'])}**" in page
        for row in shown_rows(case["rows"], 4):
            assert f"| {row['method']} |" in page
    assert str(whole) not in record  # a report may be published


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {**r, "version": 99}, "it is of version 99"),
        (lambda r: {**r, "cases": [{**case, "facts": {}} for case in r["cases"]]}, "it has no 'superclose'"),
        (lambda r: {**r, "cases": 7}, "cannot be read as a comparison"),
    ],
)
def test_a_damaged_json_is_refused_by_name(whole, tmp_path, change, message):
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(change(collect(whole))))
    said = call_command("report", damaged, "--out", tmp_path / "out", expect=2).stderr
    assert said.startswith(f"fem-frames: {damaged} cannot be read as a comparison")
    assert message in said
    assert not (tmp_path / "out").exists()


def test_options_of_experiments_are_refused_for_comparisons(whole):
    said = call_command("report", whole, "--fresh-seed", 3, expect=2).stderr
    assert "are about experiments of `tables`, this is a comparison" in said


def test_the_pages_in_docs_say_what_their_json_says(tmp_path):
    files = list((Path(__file__).parent.parent / "docs" / "results").glob("comparison*/comparison.json"))
    assert files
    for path in files:
        write_comparison(read_comparison(path), tmp_path)
        for name in ("comparison.md", "comparison.json"):
            assert path.with_name(name).read_text() == (tmp_path / name).read_text()


# ---- words follow from numbers


def row(kind, ms, error, **more):
    times = {"1": {"query": 10 * ms}, "64": {"query": ms}}
    return {"method": kind, "kind": kind, "solves": 0, "times": times, "error": error, **more}


def record_of(*rows, superclose=0.01):
    facts = {"superclose": superclose, "error": 0.05, "output": 0.02}
    return {"effort": {"batches": [1, 64]}, "cases": [{"name": "disks1", "facts": facts, "rows": list(rows)}]}


MULTIGRID, DIRECT = row("multigrid", 1.0, 0.001), row("direct solves", 50.0, 1e-12)


def test_the_front_is_what_nothing_beats():
    rows = [row("PETSc", 9.0, 0.5), MULTIGRID, row("learned cycles", 0.5, 0.2), row("multigrid", 0.6, 0.3), DIRECT]
    assert [r["kind"] for r in front(rows, solution, 64)] == ["learned cycles", "multigrid", "direct solves"]
    assert first_below(rows, solution, 64, 0.01)[0] is MULTIGRID
    assert first_below(rows, solution, 64, 1e-20) is None
    one_at_a_time = {**row("PETSc", 3.0, 0.1), "times": {"1": {"query": 3.0}}}
    assert solution(one_at_a_time, 64) == (3.0, 0.1)
    assert solution({**one_at_a_time, "kind": "multigrid"}, 64) is None


def test_nets_that_nothing_beats_are_not_said_to_be_for_the_paper_only():
    net, slow_net = row(NETS[0], 0.5, 0.2), row(NETS[1], 2.0, 0.2)
    behind = verdicts(record_of(MULTIGRID, slow_net))
    assert behind["nets"].endswith(f"in any of 1 problem: the paper's nets are {PURPOSE}.")
    assert "200 times less error in 1 case" in behind["nets"]
    ahead = verdicts(record_of(MULTIGRID, net))
    assert PURPOSE not in ahead["nets"] + ahead["summary"]
    assert "Frame nets are on the Pareto front of error and time of solutions in 1 of 1 cases (disks1)" in ahead["nets"]
    first = verdicts(record_of(MULTIGRID, {**slow_net, "gradient_error": 0.005, "gradient_ms": 1.0}))["nets"]
    assert (
        "but one is the fastest way to gradients in y with an error below 1 % in 1 problem (disks1); otherwise" in first
    )


def test_the_first_below_the_error_of_the_mesh_is_named():
    petsc = {**row("PETSc", 4.0, 0.001), "times": {"1": {"query": 4.0}}}
    found = verdicts(record_of(MULTIGRID, DIRECT, petsc))
    assert "multigrid in 1 case (disks1 1 ms)" in found["many"]
    assert "PETSc's fastest solver takes 4 times as long" in found["many"]
    assert "PETSc in 1 case (disks1 4 ms)" in found["one"]  # multigrid takes 10 ms for one
    assert "(superclose) error, 64 solutions at a time are fastest by multigrid (disks1)." in found["summary"]
    assert not {"nets", "pod_net", "outputs", "paper"} & set(found)
    assert verdicts(record_of(MULTIGRID, DIRECT, superclose=1e-20)) == {}  # nothing is that accurate


def test_a_net_for_outputs_is_judged_by_outputs():
    net = {
        "method": "n",
        "kind": "a net for the outputs",
        "solves": 9,
        "output_ms": {"64": 0.01},
        "output_error": 0.015,
    }
    others = row("multigrid", 1.0, 0.001, output_ms={"64": 1.0}, output_error=0.001)
    found = verdicts(record_of(others, net))["outputs"]
    assert "a net for the outputs in 1 case (disks1 0.01 ms)" in found
    assert "below the mesh's own in 1 of 1 cases (disks1)" in found


def test_a_net_gains_nothing_where_a_reduced_basis_is_better_and_faster():
    record = record_of(row(NETS[1], 1.0, 1e-3), row("reduced basis, batched", 0.1, 1e-6))
    record["cases"][0]["name"] = "paper"
    assert verdicts(record)["paper"].endswith("So a net gains nothing there.")
    record["cases"][0]["rows"][1]["times"]["64"]["query"] = 2.0  # better, but slower
    assert "gains nothing" not in verdicts(record)["paper"]
