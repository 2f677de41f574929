"""The bases of SOAP on devices, by Cholesky factors, are those of LAPACK up to signs, whatever the matrices."""

import pytest
import torch

from training.optimizers.soap import SOAP, cholesky_basis, householder_basis

pytestmark = pytest.mark.serial


def images(dtype, rows, condition, count=20):
    """(G, r, r) symmetric matrices times bases near their eigenvectors, and these bases."""
    generator = torch.Generator().manual_seed(0)
    vectors, off = torch.randn(2, count, rows, rows, dtype=torch.float64, generator=generator)
    vectors = torch.linalg.qr(vectors).Q
    values = condition ** -torch.linspace(0, 1, rows, dtype=torch.float64)
    near = torch.linalg.qr(vectors + 0.1 * off).Q
    return ((vectors * values) @ vectors.mT @ near).to(dtype), near.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rows", [2, 8, 64])
@pytest.mark.parametrize("condition", [1e0, 1e4, 1e8])
def test_bases_by_cholesky_factors_are_those_of_householders(dtype, rows, condition):
    image, near = images(dtype, rows, condition)
    found, wanted = cholesky_basis(image, near), householder_basis(image.double(), near)
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    unit = torch.eye(rows, dtype=torch.float64)
    assert float((found.double().mT @ found.double() - unit).abs().max()) < 10 * rows * eps
    # Vectors are determined by the image to its condition number times the rounding of float64.
    close = 10 * rows * eps + 100 * condition * torch.finfo(torch.float64).eps
    assert float(((found.double().mT @ wanted).abs() - unit).abs().max()) < close


@pytest.mark.parametrize("condition", [1e12, 1e16, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bases_are_orthonormal_where_columns_are_dependent(dtype, condition):
    image, near = images(dtype, 16, condition)
    found = cholesky_basis(image, near).double()
    assert float((found.mT @ found - torch.eye(16)).abs().max()) < 200 * torch.finfo(dtype).eps


def test_matrices_without_a_basis_keep_the_one_they_had():
    image, near = images(torch.float32, 4, 10.0, count=3)
    image[0], image[2] = 0.0, torch.nan
    found = cholesky_basis(image, near)
    assert torch.equal(found[0], near[0])
    assert torch.equal(found[2], near[2])
    assert not torch.equal(found[1], near[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_steps_do_not_depend_on_the_way_bases_are_found(dtype):
    """One after the other over several changes of bases; one matrix has no gradient at all."""
    shapes, found = [(30, 5), (6, 30), (2, 40, 3), (7, 7)], []
    for way in (householder_basis, cholesky_basis):
        torch.manual_seed(0)
        size = sum(torch.Size(shape).numel() for shape in shapes)
        vector = torch.nn.Parameter(torch.zeros(size, dtype=dtype))
        made = SOAP(vector, shapes, lr=1e-2, eps=1e-4)
        made._orthonormal = way
        mixing = torch.randn(size, 4)
        for _ in range(45):
            gradient = mixing @ torch.randn(4) + 0.1 * torch.randn(size)
            gradient[-49:] = 0.0
            vector.grad = gradient.to(dtype)
            made.step()
        found.append(vector.detach().double())
    off = float((found[0] - found[1]).abs().max() / found[0].abs().max())
    assert off < {torch.float16: 0.05, torch.float32: 1e-3, torch.float64: 1e-9}[dtype]
