"""One contract for every operator: dense matrix, transpose, batches, gradients, in every precision and dimension."""

import numpy as np
import pytest
import torch
from frames import (
    SIX,
    block_diagonal,
    case,
    dense_blocks,
    dense_differential,
    dense_forms,
    dense_localisation,
    dense_residuals,
    finest_level,
    nodal_forms,
    samples,
)

from fem_frames import Congruent, Frame, make_formulation
from fem_frames.formulations.flux_residuals import ConstantFluxResidual, QuadratureFluxResidual
from fem_frames.frame import matrices
from fem_frames.frame.sparse import SparseMatrix
from fem_frames.operators.cells import CellBlocks, CellScalars
from fem_frames.operators.linear import batch_last
from fem_frames.operators.products import SparseProduct

pytestmark = pytest.mark.serial
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
P2 = ("interval, P2", "square, P2", "cube, P2")
SYNTHESES = (*SIX, *P2, "interval, LS, level 0", "square, one level", "square, dolfinx", "ring, LS")
"""Those whose levels and families are of another kind too: empty or single levels, other children, harmonic fields."""
CONSTANT = ("interval, LS", "square", "square, weighted", "square, lognormal", "square, P2, constant")
"""Where a is constant on cells, so that blocks are in closed form, or a sum of modes."""
REALISATIONS = {
    "recursive": ("recursive", {}),
    "gather": ("gather", {}),
    "csr": ("sparse", {"layout": "csr"}),
    "coo": ("sparse", {"layout": "coo"}),
}


def check_contract(op, dense, batch=3):
    """`dense` (r, n), or (B, r, n) for an operator made for B samples y."""
    dense = torch.as_tensor(dense, dtype=torch.float64)
    dtype, (rows, columns) = op.dtype, op.shape
    assert dense.shape[-2:] == (rows, columns)
    assert (op.batch is None) == (dense.ndim == 2)
    many = dense if dense.ndim == 3 else dense.expand(batch, -1, -1)
    size = torch.linalg.matrix_norm(many, 2).max() if dense.numel() else 0.0
    # The dense matrix has rounding errors of its own, which show in float64 only.
    bound = (100 if dtype == torch.float64 else 20) * torch.finfo(dtype).eps * size

    def close(found, expected, scale):
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert torch.linalg.vector_norm(found.double() - expected, dim=-1).max() <= bound * scale

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(many), columns, generator=generator).to(dtype)
    z = torch.randn(len(many), rows, generator=generator).to(dtype)
    image, pulled = (many @ x.double()[..., None])[..., 0], (z.double()[:, None] @ many)[:, 0]
    norm_x, norm_z = torch.linalg.vector_norm(x.double()), torch.linalg.vector_norm(z.double())

    assert (op.to_dense().double() - dense).abs().max() <= bound
    close(op(x), image, norm_x)
    close(op.T(z), pulled, norm_z)
    # Memory may be batch-first or batch-last: the same numbers.
    assert torch.equal(op(batch_last(x).T), op(x))
    # The adjoint identity of what was computed.
    left, right = (op(x).double() * z.double()).sum(), (x.double() * op.T(z).double()).sum()
    assert abs(left - right) <= 2 * bound * norm_x * norm_z
    if len(many) == 1 or op.batch is None:
        close(op(x[0]), image[0], norm_x)
        close(op.T(z[0]), pulled[0], norm_z)
    # Autograd and forward mode.
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(op(leaf), leaf, z)
    close(gradient, pulled, norm_z)
    _, tangent = torch.func.jvp(op, (torch.zeros_like(x),), (x,))
    close(tangent, image, norm_x)
    _, pull = torch.func.vjp(op, torch.zeros_like(x))
    close(pull(z)[0], pulled, norm_z)
    if dtype == torch.float64:
        torch.autograd.gradcheck(op, leaf, check_forward_ad=True, fast_mode=True)
        torch.autograd.gradgradcheck(lambda v: op(v) ** 2, leaf, fast_mode=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SYNTHESES)
def test_prolongations_and_synthesis(name, dtype):
    _, arrays = case(name)
    frame = Frame.from_arrays(arrays, dtype)
    check_contract(frame.H, matrices.synthesis(arrays).toarray())
    for field in frame.level_sizes:
        for index in range(1, len(arrays.levels)):
            if frame.level_sizes[field][index - 1]:
                P = matrices.prolongation(arrays, index, field).toarray()
                check_contract(frame.P(arrays.first_level + index, field), P)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("realisation", REALISATIONS)
@pytest.mark.parametrize("name", SYNTHESES)
def test_differentials(name, realisation, dtype):
    _, arrays = case(name)
    kind, options = REALISATIONS[realisation]
    D = Frame.from_arrays(arrays, dtype, differential=kind, **options).D
    check_contract(D, dense_differential(arrays))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*SIX, *CONSTANT, *P2])
def test_block_operators(name, dtype):
    """C_y, A_y, the local matrices and E, against NumPy in float64."""
    problem, arrays = case(name)
    formulation = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    y = samples(problem, 2, dtype)
    exact = y.double().numpy()
    basis = finest_level(arrays)
    height = np.concatenate([f.scale[0] for f in basis.families])
    check_contract(formulation.A(y), nodal_forms(problem, arrays, exact))
    check_contract(formulation.nodal_differential, dense_differential(basis) / height)
    C, D, forms = dense_blocks(problem, arrays, exact), dense_differential(arrays), dense_forms(problem, arrays, exact)
    np.testing.assert_allclose(D.T @ C @ D, forms, atol=1e-12 * np.abs(forms).max())
    check_contract(formulation.C(y), C)
    check_contract(formulation.localisation, dense_localisation(arrays))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name", ["interval", "interval, LS", "interval, LS, mixed", "square", "square, mixed", "square, P2", "cube"]
)
def test_congruent_forms_agree(name, dtype):
    """HᵀA_yH = DᵀC_yD, each against the matrix from quadrature."""
    problem, arrays = case(name)
    formulation = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    y = samples(problem, 2, dtype)
    forms = dense_forms(problem, arrays, y.double().numpy())
    check_contract(formulation.stable(y), forms)
    x = torch.randn(2, formulation.frame.frame_size).to(dtype)
    expected = np.einsum("bm,bmn,bn->b", x.double(), forms, x.double())
    assert formulation.stable(y).quadratic(x).dtype == formulation.wide
    np.testing.assert_allclose(formulation.stable(y).quadratic(x).double(), expected, rtol=20 * torch.finfo(dtype).eps)
    if dtype in (torch.float64, torch.float32):  # in half precision it loses digits even here: see the studies
        bound = 1e3 * torch.finfo(dtype).eps * np.abs(forms).max()
        np.testing.assert_allclose(formulation.bpx(y).to_dense().double(), forms, atol=bound, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flux_residuals_in_closed_form_and_by_quadrature_have_one_norm(dtype):
    problem, arrays = case("interval, LS")
    formulation = make_formulation(Frame.from_arrays(arrays, dtype), problem)
    y = samples(problem, 2, dtype)
    R = formulation.R(y)
    assert isinstance(R, ConstantFluxResidual)
    inverse = (1 / formulation.coefficient(y)).expand(-1, len(arrays.rule_weights), -1)
    by_points = QuadratureFluxResidual(inverse, formulation._weights, formulation._offsets, 1.0, dtype)
    exact = y.double().numpy()
    check_contract(by_points, block_diagonal(dense_residuals(problem, arrays, exact)))
    # q, h/√12 q/a and τ/a - g on cells of length h = 1/32: x - x_c has the mean square h²/12
    a = exact[:, arrays.regions]
    closed = np.zeros((*a.shape, 3, 3))
    closed[..., 0, 2], closed[..., 1, 2] = 1, 2.0**-5 / 12**0.5 / a
    closed[..., 2, 0], closed[..., 2, 1] = -1, 1 / a
    check_contract(R, block_diagonal(closed))
    C = dense_blocks(problem, arrays, exact)
    for op in (R, by_points):
        assert (Congruent(op).to_dense().double() - C).abs().max() <= 20 * torch.finfo(dtype).eps * np.abs(C).max()


def test_cell_blocks_that_are_not_square():
    blocks = torch.randn(5, 2, 3, 4, dtype=torch.float64)  # (K, r, n, B)
    dense = torch.stack([torch.block_diag(*blocks[..., b]) for b in range(4)])
    check_contract(CellBlocks(blocks), dense)
    values = torch.rand(5, 1, dtype=torch.float64)
    check_contract(CellScalars(values, 2), torch.diag(values[:, 0].repeat_interleave(2))[None])


def test_more_batch_axes_and_vmap():
    _, arrays = case("square")
    D = Frame.from_arrays(arrays, torch.float64).D
    x = torch.randn(2, 3, D.shape[1], dtype=torch.float64)
    flat = D(x.reshape(6, -1)).reshape(2, 3, -1)
    assert torch.equal(D(x), flat)
    assert torch.equal(torch.vmap(D)(x), flat)
    assert torch.equal(torch.vmap(D, in_dims=1, out_dims=1)(x), flat)
    assert D(x[:0]).shape == (0, 3, D.shape[0])
    dense = torch.as_tensor(dense_differential(arrays))
    forward, reverse = torch.func.jacfwd(D)(x[0, 0]), torch.func.jacrev(D)(x[0, 0])
    assert torch.equal(forward, reverse)
    assert (forward - dense).abs().max() <= 100 * torch.finfo(dense.dtype).eps * torch.linalg.matrix_norm(dense, 2)
    hessian = torch.func.hessian(lambda w: (D(w) ** 2).sum())(x[0, 0])
    assert torch.allclose(hessian, 2 * dense.T @ dense, atol=1e-12)


def check_compiled(name, dtype, realisation, **options):
    """One graph, gradients included."""
    torch.compiler.reset()
    problem, arrays = case(name)
    formulation = make_formulation(Frame.from_arrays(arrays, dtype, differential=realisation), problem)
    y = samples(problem, 3, dtype)
    w = torch.randn(3, formulation.frame.frame_size).to(dtype)

    def gradient(function):
        leaf = w.clone().requires_grad_()
        return torch.autograd.grad(function(leaf).sum(), leaf)[0].double()

    def twice(x):
        return formulation.loss(2 * x, y)

    expected, found = gradient(twice), gradient(torch.compile(twice, fullgraph=True, **options))
    assert torch.linalg.norm(found - expected) <= 20 * torch.finfo(dtype).eps * torch.linalg.norm(expected)


@pytest.mark.parametrize("realisation", ["recursive", "gather"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["square", "interval, LS, mixed"])
def test_operators_can_be_traced(name, dtype, realisation):
    check_compiled(name, dtype, realisation, backend="aot_eager")


def test_compiled_kernels_and_dolfinx_in_one_process():
    """DOLFINx leaves symbols of libraries global: a second compiled function would then run the first one's kernel."""
    case("interval, LS")  # imports DOLFINx, before the first function
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
    except Exception as error:  # whatever is missing: a compiler, Python's or torch's headers
        pytest.skip(f"torch cannot compile here: {str(error).splitlines()[0][:80]}")
    check_compiled("interval, LS", torch.float32, "recursive")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_long_sums_do_not_stagnate_in_half_precision(dtype):
    """5000 ones sum to 2048 where float16 is accumulated in float16."""
    rows = SparseMatrix.from_entries(np.zeros(5000, int), np.arange(5000), np.ones(5000), (1, 5000))
    total = SparseProduct(rows, dtype, torch.device("cpu"))(torch.ones(5000, 3, dtype=dtype))
    assert torch.equal(total, torch.full((1, 3), 5000.0).to(dtype))


def test_products_are_deterministic():
    _, arrays = case("cube")
    D = Frame.from_arrays(arrays, torch.float16).D
    z = torch.randn(8, D.shape[0]).half()
    assert all(torch.equal(D.T(z), D.T(z)) for _ in range(5))


def test_prolongation_of_a_linear_function_is_itself():
    _, arrays = case("L-shape")
    P = Frame.from_arrays(arrays, torch.float64).P(2)
    free = arrays.fields[0].free
    inside = P.T(torch.ones(P.shape[0], dtype=torch.float64))
    assert P.shape == (len(free[-1]), len(free[-2]))
    # A coarse hat is one at its point and a half on the six edges that meet there: four in all.
    assert inside.max() == 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["square, LS", "square, weighted"])
def test_prolongation_from_a_level_without_free_points_is_zero(name, dtype):
    """All points of the coarsest square are on the boundary: its vectors are empty, in every batch."""
    _, arrays = case(name)
    P = Frame.from_arrays(arrays, dtype).P(1)
    assert P.shape == (1, 0)
    assert P.to_dense().shape == (1, 0)
    for batch in ((), (3,), (2, 3)):
        x = torch.zeros(*batch, 0, dtype=dtype, requires_grad=True)
        image = P(x)
        assert torch.equal(image, torch.zeros(*batch, 1, dtype=dtype))
        image.sum().backward()
        assert x.grad.shape == (*batch, 0)
        assert P.T(torch.ones(*batch, 1, dtype=dtype)).shape == (*batch, 0)


@pytest.mark.parametrize("name", ["interval, LS", "square", "cube"])
def test_states_of_order_one_in_every_level(name):
    """H1-normalised hats have states of norm at most one, so half precision neither over- nor underflows."""
    _, arrays = case(name)
    norms = Frame.from_arrays(arrays, torch.float64).D.to_dense().norm(dim=0)
    assert 0.3 < norms.min() <= norms.max() <= 1 + 1e-12


# ---- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :-1], r"length \d+, but x has shape .*level_sizes"),
        (lambda x: x.double(), "torch.float32, but x in torch.float64"),
        (lambda x: x.numpy(), "takes torch tensors"),
        (lambda x: x.to("meta"), "is on cpu, but x on meta"),
        (lambda x: x[0, 0], "takes vectors of length"),
    ],
)
def test_vectors_that_do_not_fit(change, message):
    _, arrays = case("square")
    D = Frame.from_arrays(arrays, torch.float32).D
    with pytest.raises(ValueError, match=message):
        D(change(torch.zeros(2, D.shape[1])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dtype="int8"), "dtype is 'int8'; choose from float16"),
        (dict(device="nowhere"), "device 'nowhere' cannot be used"),
        (dict(differential="fast"), "differential is 'fast'; choose from recursive"),
        (dict(differential="sparse", layout="dense"), "layout is 'dense'; choose from csr"),
        (dict(differential="recursive", layout="csr"), "has no option .layout."),
        (dict(dtype="float16", differential="sparse", accumulate=torch.float16), "layout='coo'"),
    ],
)
def test_frames_that_cannot_be_made(arguments, message):
    _, arrays = case("square")
    with pytest.raises(ValueError, match=message):
        Frame.from_arrays(arrays, **arguments)


def test_parts_that_do_not_belong_together():
    problem, arrays = case("square")
    frame = Frame.from_arrays(arrays, torch.float32)
    formulation = make_formulation(frame, problem)
    y = samples(problem, 2, torch.float32)
    with pytest.raises(ValueError, match="does not fit B of shape"):
        Congruent(frame.H, formulation.C(y))
    with pytest.raises(ValueError, match=r"torch\.float64.*make both from one frame"):
        Congruent(Frame.from_arrays(arrays, torch.float64).D, formulation.C(y))
    with pytest.raises(ValueError, match="made for 2 samples"):
        formulation.C(y)(torch.zeros(3, frame.D.shape[0]))
    with pytest.raises(ValueError, match="no prolongation to level 1; the frame has those to 2, …, 3"):
        frame.P(1)
    with pytest.raises(ValueError, match="no family 'sigma'"):
        frame.P(2, "sigma")
