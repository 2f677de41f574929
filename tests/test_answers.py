"""Answers of a surrogate: values at points, fluxes, pictures, series for ParaView, several y in one query."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from frames import CASES, case
from small_runs import run_command

from fem_frames import Frame, Grid, MeshHierarchy, export_frame, flux_at_centres, make_formulation, make_problem
from fem_frames.mesh.location import locate
from fem_frames.mesh.simplices import facet_vectors
from training import Configuration, Surrogate, train
from training.answers import values_at

pytestmark = pytest.mark.serial
RUNS = {
    "1D": dict(problem="quarters", formulation="least-squares", levels=3),
    "2D": dict(problem="checkerboard", levels=2),
    "2D, LS": dict(problem="checkerboard", formulation="least-squares", levels=2),
    "3D": dict(problem="cube", levels=1),
}
Y = np.array([[1, 0.8, 1.4, 0.7], [0.6, 1.2, 1.0, 1.5], [1, 1, 1, 1]])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folders of small runs, by name."""
    folder = tmp_path_factory.mktemp("runs")

    def get(name):
        if not (folder / name).exists():
            train(Configuration(**RUNS[name], epochs=5, test_samples=2), folder / name, quiet=True)
        return folder / name

    return get


def inner_points(arrays, count=500):
    """Points (count, d), the finest cells that they lie in, and their barycentric coordinates there."""
    random = np.random.default_rng(0)
    cells = random.integers(0, len(arrays.volumes), count)
    hats = random.dirichlet(np.ones(arrays.dimension + 1), count)
    return np.einsum("nl,nld->nd", hats, arrays.points[arrays.levels[-1].cells[cells]]), cells, hats


# ---- values at points


@pytest.mark.parametrize("name", [name for name in CASES if "mixed" not in name])
def test_points_are_found_in_their_cells(name):
    arrays = case(name)[1]
    x, cells, hats = inner_points(arrays)
    found, barycentric = locate(x, arrays.points, arrays.levels)
    np.testing.assert_array_equal(found, cells)
    np.testing.assert_allclose(barycentric, hats, atol=1e-10)
    found, barycentric = locate(arrays.points, arrays.points, arrays.levels)  # corners of cells lie in one of these
    assert (np.sort(barycentric, axis=1)[:, :-1] < 1e-10).all()


def test_coarse_meshes_of_many_cells_are_searched():
    problem = replace(make_problem("checkerboard"), mesh=Grid((60, 50)), resolved_from=0)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem, first_level=0)
    x, cells, _ = inner_points(arrays, 20_000)
    np.testing.assert_array_equal(locate(x, arrays.points, arrays.levels)[0], cells)


@pytest.mark.parametrize("dimension", [2, 3])
def test_linear_fields_and_fluxes_are_reproduced(dimension):
    """P1 has all u = a + b·x, RT0 all σ = c + s x, whose fluxes are n·σ in the middle of facets."""
    arrays = case({2: "square, LS", 3: "cube, LS"}[dimension])[1]
    b, c, s = np.arange(1.0, dimension + 1), np.arange(dimension, 0.0, -1), 0.7
    facets = arrays.simplices(len(arrays.levels) - 1, dimension - 1)[0]
    middles = arrays.points[facets].mean(axis=1)
    nodal = {
        "u": 2 + arrays.points @ b,
        "sigma": (facet_vectors(arrays.points, facets) * (c + s * middles)).sum(axis=1),
    }
    fields = {name: torch.as_tensor(np.stack([v, 3 * v])) for name, v in nodal.items()}
    x, _, _ = inner_points(arrays)
    found = values_at(arrays, fields, x)
    np.testing.assert_allclose(found["u"], np.stack([2 + x @ b, 3 * (2 + x @ b)]), rtol=1e-12)
    np.testing.assert_allclose(found["sigma"], np.stack([c + s * x, 3 * (c + s * x)]), rtol=1e-10)


@pytest.mark.parametrize("name", RUNS)
def test_a_surrogate_has_its_nodal_values_at_its_points(trained, name):
    surrogate = Surrogate.load(trained(name))
    arrays, y = surrogate.arrays, surrogate.problem.parameters.sample(2, 0)
    torch.testing.assert_close(surrogate.at(arrays.points, y)["u"], surrogate(y)["u"], rtol=1e-5, atol=1e-7)
    if name == "1D":
        torch.testing.assert_close(surrogate.at(arrays.points[:, 0], y)["sigma"], surrogate(y)["sigma"])
    elif name == "2D, LS":
        expected = flux_at_centres(arrays, surrogate(y)["sigma"].numpy())
        np.testing.assert_allclose(surrogate.at(arrays.centres, y)["sigma"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[0.5, 0.5], [0.5, 1.1], [2, 2]], r"point 1 = \[0.5, 1.1\] lies outside the domain"),
        ([[0.5, 1 + 1e-8]], "point 0 = .* lies outside the domain"),
        ([[0.5, float("nan")]], "point 0 = .* is not finite"),
        ([0.5, 0.5], r"points have shape \(2,\); \(n, 2\) is expected"),
        ("middle", "points must be an array of numbers"),
    ],
)
def test_points_elsewhere_are_refused(trained, points, message):
    with pytest.raises(ValueError, match=message):
        Surrogate.load(trained("2D")).at(points, Y[0])


def test_the_boundary_belongs_to_the_domain_and_a_hole_does_not(trained):
    surrogate = Surrogate.load(trained("2D"))
    on_edges = surrogate.at([[0, 0], [1, 1], [0.5, 1 + 1e-12], [-1e-12, 0.25]], Y)["u"]
    assert on_edges.shape == (3, 4)
    assert on_edges.abs().max() < 1e-9
    ring = case("ring, LS")[1]
    with pytest.raises(ValueError, match=r"point 0 = \[0.5, 0.5\] lies outside"):
        locate([[0.5, 0.5]], ring.points, ring.levels)


# ---- fluxes


@pytest.mark.parametrize("name", ["interval", "square", "square, mixed", "square, lognormal", "cube, mixed"])
def test_the_flux_is_the_mean_coefficient_times_the_gradient(name):
    """By nodal values and hats, and by NumPy's a_y."""
    problem, arrays = case(name)
    exact = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = problem.parameters.sample(2, 0)
    w = torch.cos(torch.arange(2.0 * arrays.frame_size, dtype=torch.float64)).view(2, -1)
    finest = arrays.levels[-1]
    gradient = np.einsum("kld,bkl->bkd", finest.gradients, exact.synthesise(w)["u"].numpy()[:, finest.cells])
    x = np.einsum("qn,knd->kqd", arrays.rule_points, arrays.points[finest.cells])
    a = problem.coefficient_values(problem.tabulate(x, arrays.regions), y, x) @ arrays.rule_weights
    found = exact.flux(w, torch.as_tensor(y))
    np.testing.assert_allclose(found, a[..., None] * gradient, rtol=1e-9, atol=1e-10)


def test_the_flux_of_least_squares_is_its_own_field(trained):
    surrogate = Surrogate.load(trained("2D, LS"))
    expected = flux_at_centres(surrogate.arrays, surrogate(Y)["sigma"].double().numpy())
    np.testing.assert_array_equal(surrogate.flux(Y), expected)
    assert Surrogate.load(trained("1D")).flux(Y).shape == (3, 8, 1)


# ---- words and pictures


def test_its_repr_says_what_it_is(trained):
    lines = repr(Surrogate.load(trained("2D"))).splitlines()
    assert lines[0] == "Surrogate of checkerboard (energy, 2D, levels 1 to 2)"
    assert lines[1].strip() == "y in [0.5, 1.5]^4"
    assert re.fullmatch(r" +net full of \d+ parameters in float32, Nhat = \d+", lines[2])
    assert re.fullmatch(r" +mean relative error [\d.]+e[+-]\d+ on its test set", lines[3])


def test_pictures_leave_pyplot_and_its_backend_alone(trained, tmp_path):
    """Where nothing was chosen, where a backend was, and where there are figures."""
    program = f"""
import sys
import matplotlib
from training import Surrogate
s = Surrogate.load({str(trained("2D"))!r})
y = s.problem.parameters.sample(2, 0)
s.plot(y, "u.pdf")
assert "matplotlib.pyplot" not in sys.modules
matplotlib.use("svg")
import matplotlib.pyplot as plt
mine = plt.figure()
figure = s.plot(y[0], flux=True)
assert isinstance(figure, matplotlib.figure.Figure)
assert figure._repr_png_().startswith(bytes([0x89]) + b"PNG")
assert len(figure.axes) == 4  # two maps with their scales
from fem_frames.commands import main
assert main(["query", {str(trained("2D"))!r}, "--y", "1,1,1,1", "--plot", "q.png"]) == 0
assert main(["plot", {str(trained("2D"))!r}, "--samples", "1"]) == 0
assert matplotlib.get_backend() == "svg"
assert plt.get_fignums() == [mine.number]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "u.pdf").read_bytes().startswith(b"%PDF")


def test_no_file_of_the_packages_or_demos_imports_pyplot():
    root = Path(__file__).parent.parent
    forbidden = re.compile(r"matplotlib\.use\(|import matplotlib\.pyplot|from matplotlib import .*pyplot")
    for folder in ("fem_frames", "nets", "training", "demos"):
        for path in (root / folder).rglob("*.py"):
            assert not forbidden.search(path.read_text()), path


@pytest.mark.parametrize("name", ["1D", "2D, LS"])
def test_several_y_are_in_one_picture(trained, name):
    surrogate = Surrogate.load(trained(name))
    one, three = surrogate.plot(Y[0]), surrogate.plot(Y)
    if name == "1D":
        assert [len(axes.lines) for axes in one.axes] == [1, 1]
        assert [len(axes.lines) for axes in three.axes] == [3, 3]
    else:
        assert (len(one.axes), len(three.axes)) == (2 + 2, 6 + 2)
    with pytest.raises(ValueError, match="draw at most 12"):
        surrogate.plot(np.ones((13, 4)))


def test_solutions_in_space_are_written_instead(trained):
    surrogate = Surrogate.load(trained("3D"))
    with pytest.raises(ValueError, match=r"not drawn: write them with write\(y, 'u.xdmf'\)"):
        surrogate.plot(np.ones(8))
    with pytest.raises(ValueError, match=r"must end in \.png"):
        surrogate.plot(np.ones(8), "u.doc")


# ---- series for ParaView


@pytest.mark.parametrize("name", RUNS)
def test_a_series_of_vtu_files_has_all_solutions(trained, tmp_path, name):
    import meshio

    surrogate = Surrogate.load(trained(name))
    y = surrogate.problem.parameters.sample(3, 1)
    surrogate.write(y, tmp_path / "u.pvd", flux=True)
    times = re.findall(r'timestep="(\d+)" part="0" file="(u_\d+.vtu)"', (tmp_path / "u.pvd").read_text())
    assert [int(time) for time, _ in times] == [0, 1, 2]
    np.testing.assert_array_equal(json.loads((tmp_path / "u.json").read_text())["y"], y)
    d = surrogate.arrays.dimension
    for i, (_, file) in enumerate(times):
        mesh = meshio.read(tmp_path / file)
        np.testing.assert_allclose(mesh.point_data["u"], surrogate(y)["u"][i].numpy(), rtol=1e-6)
        key = "sigma" if name == "2D, LS" else "flux"
        if name != "1D":
            np.testing.assert_allclose(mesh.cell_data[key][0][:, :d], surrogate.flux(y)[i], rtol=1e-6)


@pytest.mark.parametrize("name", RUNS)
def test_a_series_in_xdmf_has_all_times(trained, tmp_path, name):
    surrogate = Surrogate.load(trained(name))
    y = surrogate.problem.parameters.sample(3, 1)
    surrogate.write(y, tmp_path / "u.xdmf", flux=True)
    text = (tmp_path / "u.xdmf").read_text()
    fields = {"u", "sigma"} if "LS" in name or name == "1D" else {"u", "flux"}
    assert text.count('CollectionType="Temporal"') == 2
    assert re.findall(r'<Time Value="(\d)" />', text) == ["0", "1", "2"] * 2
    assert set(re.findall(r'Attribute Name="(\w+)"', text)) == fields
    assert json.loads((tmp_path / "u.json").read_text())["times"] == [0, 1, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["u.h5", "u.json", "u.xdmf"]


def test_a_series_is_written_as_a_whole_or_not_at_all(trained, tmp_path):
    surrogate = Surrogate.load(trained("2D"))
    with pytest.raises(ValueError, match=r"3 solutions to .*u.vtu, which holds one: .* end in .xdmf or .pvd"):
        surrogate.write(Y, tmp_path / "u.vtu")
    (tmp_path / "u_0002.vtu").mkdir()
    with pytest.raises(ValueError, match=r"u_0002.vtu: it is a folder"):
        surrogate.write(Y, tmp_path / "u.pvd")
    assert [p.name for p in tmp_path.iterdir()] == ["u_0002.vtu"]


def test_fluxes_in_space_become_functions_of_dolfinx(trained):
    surrogate = Surrogate.load(trained("2D, LS"))
    function = surrogate.to_function(Y[0], "sigma")
    found = function.x.array.reshape(-1, 2)
    expected = surrogate.flux(Y[0])[0].numpy()
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(expected, axis=0), rtol=1e-6)


# ---- the command


def test_query_takes_several_y(trained, tmp_path):
    np.save(tmp_path / "y.npy", Y[1:])
    (tmp_path / "y.csv").write_text("# two samples\n" + "\n".join(",".join(map(str, row)) for row in Y[1:]) + "\n")
    first = ("--y", ",".join(map(str, Y[0])))
    run = str(trained("2D"))
    found = [
        json.loads(run_command("query", run, *first, *more, "--flux", "--json", cwd=tmp_path).stdout)
        for more in (("--y-file", "y.npy"), ("--y-file", "y.csv"), ())
    ]
    assert found[0] == found[1]
    rows, one = found[0]["samples"], found[2]
    assert [row["y"] for row in rows] == Y.tolist()
    assert set(one) == {*rows[0], "points", "centres"} - {"y"}
    assert rows[0]["loss"] == pytest.approx(one["loss"])
    np.testing.assert_allclose(rows[0]["values"]["u"], one["values"]["u"], rtol=1e-4, atol=1e-7)
    assert np.shape(one["values"]["flux"]) == (len(one["centres"]), 2)
    files = ("--out", "u.pvd", "--plot", "u.png")
    told = run_command("query", run, *first, "--y-file", "y.npy", "--tol", 0.05, *files, cwd=tmp_path).stdout
    assert re.search(r"norm: energy norm, against the discrete solution\n +sample +error bound +relative", told)
    assert re.search(r"\n +2 .*\nwritten: u.pvd\ndrawn: u.png\n", told)
    assert len(list(tmp_path.glob("u_*.vtu"))) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give the parameters by --y"),
        (["--y", "1,1,1,1", "--y", "1,1"], "some y have 4 numbers, some 2"),
        (["--y-file", "absent.csv"], "there is no file absent.csv"),
        (["--y-file", "words.csv"], "--y-file words.csv: .*numbers with commas"),
        (["--y-file", "words.npy"], "--y-file words.npy: .*"),
        (["--y-file", "empty.csv"], "empty.csv holds no samples"),
        (["--y", "1,1,1,1", "--y", "1,1,1,1", "--out", "u.vtu"], "for a series the name must end in .xdmf or .pvd"),
        (["--y", "1,1,1,1", "--y", "1,1,1,1", "--out", "v.pvd"], "v_0001.vtu is there already"),
    ],
)
def test_what_is_wrong_with_samples_is_one_line(trained, tmp_path, monkeypatch, capsys, options, message):
    from fem_frames.commands import main

    monkeypatch.chdir(tmp_path)
    for name, text in {"words.csv": "1,one\n", "words.npy": "1,1", "empty.csv": "\n", "v_0001.vtu": ""}.items():
        (tmp_path / name).write_text(text)
    folder = str(trained("2D"))
    with pytest.raises(SystemExit):
        main(["query", folder, *options])
    assert re.search(message, capsys.readouterr().err)
