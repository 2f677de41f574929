"""An equation of one's own: reaction-diffusion, -div(a_y ∇u) + r_y u = f, as a formulation in one class.

The class gives two things on each cell, for states s = (u_c, ∇u) scaled by |T|^{1/2}: the matrix C_y of the density
½ a |∇u|² + ½ r u², and the load of f. Frame, loss, solutions, error bounds, training and PETSc follow.
"""

import argparse
from pathlib import Path

import torch

from fem_frames import Field, Grid, P1Values, Pointwise, Problem, QuadraticFormulation, Uniform
from training import Configuration, Surrogate, train


class ReactionDiffusion(QuadraticFormulation):
    """Minimise ∫ ½ a_y |∇u|² + ½ r_y u² - f u, with r_y = y[2]."""

    name = "reaction-diffusion"
    fields = (Field("u", P1Values),)

    def blocks(self, y):
        a, r = self.mean(self.coefficient(y)), self.check_parameters(y)[:, 2].to(self.wide)  # (K, B), (B,)
        C = torch.zeros(len(a), *(1 + self.moments.shape[1],) * 2, a.shape[1], dtype=a.dtype, device=a.device)
        C[:, 0, 0] = r  # ∫ r u² = |T| (r u_c² + r gᵀ moments g)
        eye = torch.eye(self.moments.shape[1]).to(a)
        C[:, 1:, 1:] = eye[..., None] * a[:, None, None] + r * self.moments[..., None]
        return C

    def state_functional(self, y):
        return self.source_functional(y)

    @staticmethod
    def forms(V, w, a, f, y, dx):
        from ufl import TestFunction, TrialFunction, grad, inner

        u, v = TrialFunction(V), TestFunction(V)
        return (
            (a * inner(grad(u), grad(v)) + y[2] * u * v) * dx,
            f * v * dx,
            (0.5 * a * inner(grad(w), grad(w)) + 0.5 * y[2] * w * w - f * w) * dx,
        )


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"))
parser.add_argument("--levels", type=int, default=4)
parser.add_argument("--epochs", type=int, default=400)
given = parser.parse_args()

diffusion = Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0] + y[..., 1] * x[..., 1] ** 2)
problem = Problem(Grid((1, 1)), diffusion, Uniform((0, 0, 1), (1, 2, 20)), name="reaction-diffusion")
settings = Configuration(
    formulation="reaction-diffusion", levels=given.levels, optimizer="soap", level_decay=1.0, epochs=given.epochs
)
run = given.out / "own_equation"
result = train(settings, run, problem=problem, force=True, quiet=True)
surrogate = Surrogate.load(run, problem)
y = problem.parameters.sample(8, seed=5)
better = surrogate.improve(y, tol=1e-6)  # conjugate gradients from the net's answer
print(f"MRE {result['test']['mre']:.1e} against PETSc, relative bounds {surrogate.certify(y).relative.max():.1e}")
print(f"after {int(better.iterations.max())} iterations the error in the energy norm is at most 1e-6")
assert result["test"]["mre"] < 0.02
assert better.error_bound.max() <= 1e-6
