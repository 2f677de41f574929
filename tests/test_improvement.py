"""Surrogates improved by conjugate gradients: in the norm that is asked for, and what is refused."""

import pytest
import torch

from fem_frames import error_bound, solve
from fem_frames.solvers.conjugate_gradients import ConvergenceError
from training import Configuration, Surrogate, train

pytestmark = pytest.mark.serial
RUNS = {
    "1D": dict(problem="quarters", formulation="least-squares", levels=5),
    "2D": dict(problem="checkerboard", levels=3),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Surrogates of small runs, by name."""
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            settings = Configuration(**RUNS[name], optimizer="soap", level_decay=1.0, epochs=150, test_samples=8)
            train(settings, folder / "run", quiet=True)
            made[name] = Surrogate.load(folder / "run")
        return made[name]

    return get


def test_improvement_in_the_energy_norm(trained):
    """(LS) has two norms, in which bounds differ; the one asked for gets below the tolerance."""
    surrogate = trained("1D")
    exact, y = surrogate.formulation, surrogate.problem.parameters.sample(2, 2)
    samples = torch.as_tensor(y)
    start, least = (
        error_bound(exact, w, samples, "energy") for w in (surrogate.coefficients(y), solve(exact, samples, 1e-12).w)
    )
    torch.testing.assert_close(surrogate.error_bound(y, "energy"), start)
    found = surrogate.certify(y, norm="energy")
    assert found.norm.name == "energy"
    assert torch.equal(found.value, start)
    tol = float((0.5 * (start + least)).max())
    better = surrogate.improve(y, tol, norm="energy")
    assert better.norm.name == "energy"
    assert (better.error_bound <= tol).all()
    torch.testing.assert_close(better.error_bound, error_bound(exact, better.w, samples, "energy"))
    with pytest.raises(ConvergenceError, match="the mesh allows no smaller one: train with more levels than 5"):
        surrogate.improve(y, 0.5 * float(least.min()), norm="energy")
    for ask in (surrogate.error_bound, surrogate.certify, lambda y, norm: surrogate.improve(y, 1.0, norm=norm)):
        with pytest.raises(ValueError, match="norm is 'L2'; the formulation least-squares has bounds in the norm"):
            ask(y, norm="L2")
    with pytest.raises(ValueError, match="formulation energy has bounds in the norm 'energy'"):
        trained("2D").error_bound([1, 1, 1, 1], "functional")


@pytest.mark.parametrize("count", [0, -3, 2.5, None])
def test_improvement_without_iterations_is_refused(trained, count):
    with pytest.raises(ValueError, match=r"max_iterations is .*; a whole number of at least 1 is expected"):
        trained("2D").improve([1, 1, 1, 1], 1e-3, max_iterations=count)


def test_too_few_iterations_are_said_to_be_that(trained):
    surrogate = trained("2D")
    tol = 1e-3 * float(surrogate.error_bound([1, 1, 1, 1]))
    with pytest.raises(ConvergenceError, match=r"after 1 iterations, above tol = .*; raise max_iterations") as error:
        surrogate.improve([1, 1, 1, 1], tol, max_iterations=1)
    assert error.value.reached.iterations.tolist() == [1]
    assert "(energy norm, against the discrete solution)" in str(error.value)
