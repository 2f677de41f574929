"""Problems and formulations in quadratic elements for tests."""

from fem_frames import (
    ByRegion,
    Frame,
    Grid,
    MeshHierarchy,
    P2Energy,
    Problem,
    Uniform,
    export_frame,
    make_formulation,
)

LEVELS = {1: 4, 2: 3, 3: 1}
NAME = "energy-p2"


def unit(d, **changes):
    """-Δu = 1 on the unit cube, u = 0 on its boundary."""
    return Problem(Grid((1,) * d), ByRegion({0: 0}), Uniform((0.5,), (1.5,)), **changes)


def exported(problem, levels, formulation=NAME):
    return export_frame(MeshHierarchy.from_problem(problem, levels), problem, formulation)


def made(problem, levels, dtype="float64", formulation=NAME):
    return make_formulation(Frame.from_arrays(exported(problem, levels, formulation), dtype), problem)


class P2Reaction(P2Energy):
    """With the reaction 1 + y[1] x[0]."""

    name = "test-p2-reaction"

    def reaction(self, y):
        y = self.check_parameters(y).to(self.wide)
        return 1 + y[:, 1] * self._points[:, :, 0, None]

    @staticmethod
    def forms(V, w, a, f, y, dx):
        from fem_frames.fenicsx.door import ufl

        r = 1 + y[1] * ufl.SpatialCoordinate(V.mesh)[0]

        def energy(u, v):
            return (a * ufl.inner(ufl.grad(u), ufl.grad(v)) + r * u * v) * dx

        u, v = ufl.TrialFunction(V), ufl.TestFunction(V)
        return energy(u, v), f * v * dx, 0.5 * energy(w, w) - f * w * dx
