"""Programs in ONNX: their operations in torch, and their numbers by ONNX's own evaluator where it is installed."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from curved_meshes import plate_problem
from frames import mixed
from scipy import special
from walls import CONDITIONS, ROBIN, varying

from fem_frames import Pointwise, make_problem
from fem_frames.commands import main
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.operators.products import SparseProduct, accumulation_dtype
from nets.blocks import HALF
from training import Configuration, Surrogate, onnx_programs, train
from training.onnx_programs import BAG, FACTOR, INVERSE, RowSums, in_onnx_operations, inverse

pytestmark = pytest.mark.serial
SIZES = (1, 3, 64)
DOUBLE = dict(precision="float64")
CASES = {
    "disks": ("disks", 4, {}),
    "disks in float64": ("disks", 3, DOUBLE),
    "disks in half precision": ("disks", 3, dict(precision="float16", mixed=True)),
    "nodal values": ("disks", 3, dict(loss="nodal")),
    "box": ("checkerboard", 3, {}),
    "waves": ("waves", 3, {}),
    "lognormal": ("lognormal", 3, {}),
    "spot": ("spot", 3, {}),
    "elastic": ("elastic", 2, {}),
    "reaction": ("reaction", 3, DOUBLE),
    "one level": ("cube", 2, {}),
    "boundary data": (varying(2, **CONDITIONS["neumann"]), 2, {}),
    "robin": (varying(2, **ROBIN["one wall"]), 2, {}),
    "interval": (mixed(1), 6, {}),
    "levels below the first mesh": (plate_problem(), 1, {}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("onnx")


def surrogate_of(name, folder):
    """A surrogate of a case with the weights that training starts from, slightly changed."""
    given, levels, settings = CASES[name]
    problem = make_problem(given) if isinstance(given, str) else given
    place = folder / name.replace(" ", "-")
    if not place.exists():
        settings = dict(levels=levels, net="multigrid", epochs=0, test_samples=0) | settings
        train(Configuration(**settings), place, problem=problem, quiet=True)
    surrogate = Surrogate.load(place, problem)
    with torch.no_grad():
        surrogate.net.weights.mul_(
            torch.linspace(0.9, 1.1, surrogate.net.weights.numel()).view_as(surrogate.net.weights)
        )
    return surrogate


def samples_of(surrogate):
    dtype = torch.float64 if surrogate.description.precision == "float64" else torch.float32
    return [torch.as_tensor(surrogate.problem.parameters.sample(size, size)).to(dtype) for size in SIZES]


def check_answers(surrogate, program):
    """Compares with the .pt2 program, because a net answers by a Chebyshev cycle where that is better."""
    dtype = getattr(torch, surrogate.description.precision)
    # Cycles are in float32 for half precision; the last thing is to round.
    tolerance = 500 * torch.finfo(accumulation_dtype(dtype)).eps + (torch.finfo(dtype).eps if dtype in HALF else 0)
    traced = traced_program(surrogate).module()
    for y in samples_of(surrogate):
        expected, found = traced(y), torch.as_tensor(program(y))
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        off = (found.double() - expected.double()).abs().max()
        assert float(off) < tolerance * float(expected.double().abs().max())


def traced_program(surrogate):
    net = surrogate.to().net.requires_grad_(False)
    net.prepare_tracing()
    example = torch.zeros_like(samples_of(surrogate)[1])
    shapes = ({0: torch.export.Dim("batch", min=1, max=2**31)},)
    return torch.export.export(net.eval(), (example,), dynamic_shapes=shapes, strict=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [[3], [0, 1, 0, 5, 2, 2, 17, 1, 8, 9], [2] * 6, [40, 1, 1, 3]])
def test_row_sums_are_sparse_products(lengths, dtype):
    generator = torch.Generator().manual_seed(1)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    columns = torch.randint(0, 7, (int(starts[-1]),), generator=generator)
    weights = torch.randn(int(starts[-1]), dtype=dtype, generator=generator)
    x = torch.randn(7, 5, dtype=dtype, generator=generator)
    matrix = SparseMatrix(starts.numpy(), columns.numpy(), weights.double().numpy(), (len(lengths), 7))
    sums = RowSums(columns.int(), starts.int(), weights)
    torch.testing.assert_close(sums(x), SparseProduct(matrix, dtype, torch.device("cpu"))(x))
    padded = sum(part.columns.numel() for part in sums.sums)
    assert padded < 2 * sum(lengths) + lengths.count(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 7, 32])
def test_elimination_inverts_as_accurately_as_a_factorisation(n, dtype):
    generator = torch.Generator().manual_seed(n)
    basis = torch.linalg.qr(torch.randn(6, n, n, dtype=torch.float64, generator=generator))[0]
    matrices = basis * torch.logspace(0, 3, n, dtype=torch.float64)[:, None] @ basis.mT if n > 1 else 1 + basis**2
    truth = torch.linalg.inv(matrices)

    def off(found):
        return float((found.double() - truth).abs().max() / truth.abs().max())

    factorised = torch.cholesky_inverse(torch.linalg.cholesky(matrices.to(dtype)))
    assert off(inverse(matrices.to(dtype))) < 4 * off(factorised) + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", CASES)
def test_programs_in_onnx_operations_give_the_same_numbers(name, folder):
    surrogate = surrogate_of(name, folder)
    module = in_onnx_operations(traced_program(surrogate))
    used = {node.target for node in module.graph.nodes}
    assert not {BAG, FACTOR, INVERSE} & used
    check_answers(surrogate, module)


# ---- files


@pytest.fixture
def evaluator():
    pytest.importorskip("onnxscript")
    return pytest.importorskip("onnx.reference").ReferenceEvaluator


@pytest.mark.parametrize("name", ["disks in float64", "waves", "robin"])
def test_files_give_the_same_numbers_for_any_number_of_samples(name, folder, evaluator):
    import onnx

    surrogate, file = surrogate_of(name, folder), folder / f"{name.replace(' ', '-')}.onnx"
    surrogate.export(file)
    onnx.checker.check_model(str(file), full_check=True)
    program = evaluator(str(file))
    check_answers(surrogate, lambda y: program.run(None, {"y": y.numpy()})[0])
    assert b".py" not in file.read_bytes()  # no lines of code


@pytest.fixture(scope="module")
def ordinary(folder):
    settings = dict(problem="quarters", levels=2, net="full", rank=4, epochs=2, test_samples=0)
    train(Configuration(**settings), folder / "ordinary", quiet=True)
    return folder / "ordinary"


def test_files_of_ordinary_nets(ordinary, tmp_path, evaluator, capsys):
    main(["export-net", str(ordinary), "--out", str(tmp_path / "net.onnx"), "--json"])
    told = capsys.readouterr()
    assert json.loads(told.out)["bytes"] == (tmp_path / "net.onnx").stat().st_size
    assert not told.err
    program, surrogate = evaluator(str(tmp_path / "net.onnx")), Surrogate.load(ordinary)
    for y in samples_of(surrogate):
        with torch.no_grad():
            torch.testing.assert_close(torch.as_tensor(program.run(None, {"y": y.numpy()})[0]), surrogate.net(y))


def test_functions_that_onnx_does_not_know(tmp_path, evaluator):
    def coefficient(x, y):
        z = x[..., 0] * y[..., 0]
        return 2 + (torch.special.bessel_j0(z) if isinstance(z, torch.Tensor) else special.j0(z))

    made = replace(mixed(2), coefficient=Pointwise(coefficient))
    settings = Configuration(levels=1, net="multigrid", epochs=0, test_samples=0)
    train(settings, tmp_path / "run", problem=made, quiet=True)
    surrogate = Surrogate.load(tmp_path / "run", made)
    with pytest.raises(ValueError, match=r"it has no operation for \S*bessel_j0; write a .pt2 file"):
        surrogate.export(tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()
    surrogate.export(tmp_path / "net.pt2")


def test_nets_that_are_too_large_for_a_file(ordinary, tmp_path, evaluator, monkeypatch):
    monkeypatch.setattr(onnx_programs, "LARGEST", 1000)
    with pytest.raises(ValueError, match=r"bytes of weights and tables, more than an ONNX file may: write a .pt2"):
        Surrogate.load(ordinary).export(tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("absent", ["onnx", "onnxscript"])
def test_a_package_that_is_not_installed(absent, ordinary, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(SystemExit):
        main(["export-net", str(ordinary), "--out", str(tmp_path / "net.onnx")])
    assert "pip install onnx onnxscript; or write a .pt2 file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
