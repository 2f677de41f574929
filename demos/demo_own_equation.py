"""An equation of one's own: reaction-diffusion, -div(a_y ∇u) + r_y u = 1, as a formulation in one class.

The class gives two things on each cell, for states s = (u_c, ∇u) scaled by |T|^{1/2}: the matrix C_y of the density
½ a |∇u|² + ½ r u², and the load of f. Frame, loss, solutions, error bounds and training follow, and PETSc from `forms`.
"""

import argparse
from pathlib import Path

import torch

from fem_frames import Field, Grid, P1Values, Pointwise, Problem, QuadraticFormulation, Uniform
from training import Configuration, Surrogate, train


class ReactionDiffusion(QuadraticFormulation):
    name = "reaction-diffusion"
    fields = (Field("u", P1Values),)

    def blocks(self, y):
        a, r = self.mean(self.coefficient(y)), self.check_parameters(y)[:, 2].to(self.wide)  # (K, B), (B,)
        C = torch.zeros(len(a), 3, 3, len(r)).to(a)
        C[:, 0, 0] = r  # ∫ r u² = |T| (r u_c² + r gᵀ moments g)
        C[:, 1:, 1:] = torch.eye(2).to(a)[..., None] * a[:, None, None] + r * self.moments[..., None]
        return C

    def state_functional(self, y):
        return self.source_functional(y)

    @staticmethod
    def forms(V, w, a, f, y, dx):
        from ufl import TestFunction, TrialFunction, grad, inner

        def energy(u, v):
            return (a * inner(grad(u), grad(v)) + y[2] * u * v) * dx

        return energy(TrialFunction(V), TestFunction(V)), f * TestFunction(V) * dx, 0.5 * energy(w, w) - f * w * dx


parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"))
parser.add_argument("--levels", type=int, default=4)
given = parser.parse_args()

diffusion = Pointwise(lambda x, y: 1 + y[..., 0] * x[..., 0] + y[..., 1] * x[..., 1] ** 2)
problem = Problem(Grid((1, 1)), diffusion, Uniform((0, 0, 1), (1, 2, 20)), name="reaction-diffusion")
options = dict(levels=given.levels, optimizer="soap", level_decay=1.0, epochs=400, test_samples=64)
settings = Configuration(formulation="reaction-diffusion", **options)
result = train(settings, given.out / "own_equation", problem=problem, force=True, quiet=True)
surrogate = Surrogate.load(given.out / "own_equation", problem)
y = problem.parameters.sample(8, seed=5)
better = surrogate.improve(y, tol=1e-6)  # multigrid from the net's answer
print(f"MRE {result['test']['mre']:.1e}, relative bounds up to {surrogate.certify(y).relative.max():.1e}")
print(f"after {int(better.iterations.max())} iterations the error in the energy norm is at most 1e-6")
assert result["test"]["mre"] < 0.02
assert better.error_bound.max() <= 1e-6
