"""Outputs of solutions: closed forms, bounds against the discrete solution, messages."""

import numpy as np
import pytest
import torch
from frames import case
from walls import ROBIN, formulation_on, linear, samples, varying

from fem_frames import (
    BoundaryFlux,
    Frame,
    LinearFunctional,
    OutputMap,
    PointValues,
    RegionMean,
    certify_outputs,
    make_formulation,
    solve,
)

pytestmark = pytest.mark.serial
LEVELS = {1: 4, 2: 3, 3: 1}


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", ["energy", "least-squares", "robin"])
def test_fluxes_of_linear_solutions_are_exact(d, kind):
    problem, _ = linear(d, robin=kind == "robin")
    made = formulation_on(problem, LEVELS[d], "energy" if kind == "robin" else kind)
    y = samples(problem, 3)
    walls = ["left", "right", *(["bottom", "top"] if d > 1 else []), "all"]
    outputs = OutputMap(made, [*map(BoundaryFlux, walls), RegionMean()])
    w = solve(made, y, 1e-12).w
    slopes = [-y[:, 1], y[:, 1], *([-y[:, 2], y[:, 2]] if d > 1 else []), 0 * y[:, 0]]
    mean = y[:, 0] + y[:, 1] / 2 + (y[:, 2] / 2 if d > 1 else 0)
    found = outputs.values(w, y)
    torch.testing.assert_close(found, torch.stack([*slopes, mean], dim=1), rtol=0, atol=1e-10)
    affine = (outputs.functional(y) * w[:, None]).sum(-1) + outputs.values(0 * w, y)
    torch.testing.assert_close(found, affine, rtol=0, atol=1e-12)


BOUNDED = {
    "square": lambda: make_formulation(Frame.from_arrays(case("square")[1], "float64"), case("square")[0]),
    "robin": lambda: formulation_on(varying(2, **ROBIN["one wall"]), 2),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_for_many_y_and_the_adjoint_is_sharper(name):
    made = BOUNDED[name]()
    y = samples(made.problem, 200)
    solution = solve(made, y, 1e-13).w
    generator = torch.Generator().manual_seed(0)
    w = solution * (1 + 0.1 * torch.randn(solution.shape, generator=generator, dtype=torch.float64))
    outputs = OutputMap(made, [PointValues([[0.3, 0.4], [0.5, 0.5]]), RegionMean(), BoundaryFlux("all")])
    truth = outputs.values(solution, y)
    plain, better = (certify_outputs(made, w, y, outputs, adjoint) for adjoint in (False, True))
    for found in (plain, better):
        assert ((found.values - truth).abs() <= found.error_bound).all()
        assert found.labels == outputs.labels
    assert (better.error_bound < 1e-3 * plain.error_bound).all()


def test_least_squares_has_outputs_without_bounds():
    problem, arrays = case("interval, LS")
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    y = samples(problem, 2)
    found = certify_outputs(made, solve(made, y, 1e-10).w, y, PointValues([0.3]))
    assert not found.bounded
    assert torch.isinf(found.error_bound).all()
    assert "no bound" in found.kind


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (PointValues([[2.0, 0.5]]), "outside the domain"),
        (PointValues([[np.nan, 0.5]]), "not finite"),
        (PointValues([[0.5, 0.5]], "p"), "there is no field 'p'"),
        (RegionMean("steel"), "there is no region 'steel'"),
        (BoundaryFlux("inflow"), "no boundary facet is called 'inflow'"),
        (LinearFunctional([1.0, 2.0]), "nodal values: pass"),
        ("u", "give PointValues"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(output, message):
    with pytest.raises(ValueError, match=message):
        OutputMap(BOUNDED["square"](), [output])
