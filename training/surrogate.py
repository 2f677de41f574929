"""Surrogate: a trained net with its frame and formulation, saved in one folder and queried without DOLFINx.

B samples, p parameters, Nhat frame coefficients, N points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fem_frames.files import is_there
from fem_frames.formulations.formulation import Formulation
from fem_frames.formulations.registry import make_formulation
from fem_frames.frame.arrays import FrameArrays
from fem_frames.frame.fields import joined_components
from fem_frames.frame.level_matrices import flux_at_centres, flux_field, values_of
from fem_frames.mesh.geometry import Floats
from fem_frames.messages import either
from fem_frames.operators.coordinates import Coordinates
from fem_frames.operators.frame import DTYPES, Frame, check_device, check_dtype, make_synthesis
from fem_frames.operators.products import accumulation_dtype
from fem_frames.problem.definition import Problem, Uniform
from fem_frames.solvers.bounds import ErrorBound, certify, error_bound
from fem_frames.solvers.output_bounds import OutputValues, certify_outputs
from fem_frames.studies.plots import check_plot
from fem_frames.studies.solution_plots import check_drawable, plot_solutions
from nets.frame_net import FrameNet
from nets.multigrid import MultigridNet
from training.answers import as_arrays, has_flux, summary, values_at
from training.description import NetDescription
from training.improvement import Improved, improved
from training.output import check_format, export_net, make_function, write_series
from training.outputs import Outputs, as_directions, differentiable_output, output_tangent
from training.own import OwnModule, OwnPartError, OwnParts
from training.saved_problem import check_saved, fingerprint, problem_content, saved_problem
from training.tensor_files import load_tensors, save_tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND, VERSION = "surrogate", 1
FRAME, NET = "frame.npz", "surrogate.pt"


class Surrogate:
    """Maps y to the solution by a net and its frame, with a loss and an error bound that need no reference.

    Without its problem it has solutions, but no losses and bounds. Its file suffices for built-in problems, and for
    those with a `ByRegion`, `Affine` or `ExpAffine` coefficient and a constant source; give other problems to `load`.
    See docs/surrogates.md.
    """

    def __init__(
        self,
        net: FrameNet,
        description: NetDescription,
        arrays: FrameArrays,
        problem: Problem | None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.net, self.description, self.arrays = net, description, arrays
        self.record = dict(record or {})
        self._problem = problem
        self.device = next(net.parameters()).device

    def __repr__(self) -> str:
        return summary(self, self._problem)

    # ---- queries

    def __call__(self, y: npt.ArrayLike | Tensor) -> dict[str, Tensor]:
        """Nodal values (B, N) of each field on the finest mesh, for y (B, p) or (p,); of vectors (B, N, components)."""
        return joined_components(self.fields(y), _stacked)

    @torch.no_grad()
    def fields(self, y: npt.ArrayLike | Tensor) -> dict[str, Tensor]:
        """Nodal values (B, N) of each field of the frame: the components of vectors are fields of their own."""
        samples = self._samples(y)
        nodal = self._nodal(samples)
        return self._coordinates.fields(nodal, samples)

    def _nodal(self, samples: Tensor) -> Tensor:
        """(B, N) the net's free nodal values."""
        if isinstance(self.net, MultigridNet):
            return self.net.nodal_values(samples)
        raw = self.net(samples).to(self._synthesis.dtype)
        return raw if self.description.nodal else self._synthesis(raw)

    @torch.no_grad()
    def coefficients(self, y: npt.ArrayLike | Tensor) -> Tensor:
        """(B, Nhat) frame coefficients, computed in the net's precision and converted to float64."""
        w = self.net(self._samples(y)).to("cpu" if self.device.type == "mps" else self.device, torch.float64)
        return self._coordinates.coefficients(w) if self.description.nodal else w

    def at(self, points: npt.ArrayLike, y: npt.ArrayLike | Tensor) -> dict[str, Tensor]:
        """Values of each field at any points (n, d) of the domain, for y (B, p) or (p,): (B, n) for u, (B, n, d) for σ.

        `surrogate.at([[0.5, 0.5]], y)["u"]` is the value in the middle of the unit square. In one dimension σ is in P1
        like u and has values (B, n).
        """
        return joined_components(values_at(self.arrays, self.fields(y), points), _stacked)

    @torch.no_grad()
    def flux(self, y: npt.ArrayLike | Tensor) -> Tensor:
        """(B, K, d) the flux on every finest cell, in float64.

        For (E) it is a_y ∇u with the mean of a_y over the cell. Its normal components jump between cells, so it has no
        divergence in L2. For (LS) it is the discrete σ, which is in H(div), at the centres of cells.
        """
        flux = flux_field(self.arrays)
        if flux is not None:
            return torch.as_tensor(flux_at_centres(self.arrays, as_arrays(self.fields(y))[flux.name]))
        return self.formulation.flux(self.coefficients(y), self._exact_samples(y))

    def loss(self, y: npt.ArrayLike | Tensor) -> Tensor:
        """(B,) the functional at the surrogate's solution, in float64."""
        return self.formulation.loss(self.coefficients(y), self._exact_samples(y))

    def error_bound(self, y: npt.ArrayLike | Tensor, norm: str | None = None) -> Tensor:
        """(B,) bounds for the error, without a reference; see `fem_frames.error_bound`.

        (E): norm="energy", against the discrete solution. (LS): norm="functional", the default, or "energy", both
        against the exact solution.
        """
        return error_bound(self.formulation, self.coefficients(y), self._exact_samples(y), norm)

    def certify(self, y: npt.ArrayLike | Tensor, norm: str | None = None) -> ErrorBound:
        """The bounds of `error_bound`, absolute and relative, with their norm."""
        return certify(self.formulation, self.coefficients(y), self._exact_samples(y), norm)

    def output(self, y: npt.ArrayLike | Tensor, outputs: Outputs, adjoint: bool = False) -> OutputValues:
        """Outputs (B, s) of the solutions with bounds; `adjoint` corrects them. See `fem_frames.certify_outputs`."""
        return certify_outputs(self.formulation, self.coefficients(y), self._exact_samples(y), outputs, adjoint)

    def differentiable_output(self, y: Tensor, outputs: Outputs) -> Tensor:
        """(B, s) outputs of the net's solutions, with gradients in y."""
        self._checked(y)  # raises if y is wrong
        return differentiable_output(self, y, outputs)

    def output_tangent(self, y: npt.ArrayLike | Tensor, v: npt.ArrayLike | Tensor, outputs: Outputs) -> Tensor:
        """(B, s) derivatives of the outputs in directions v (B, p) or (p,), by one tangent solve for a solver."""
        return output_tangent(self, self._samples(y), as_directions(v, self._samples(y)), outputs)

    def improve(
        self, y: npt.ArrayLike | Tensor, tol: float, max_iterations: int = 1000, norm: str | None = None
    ) -> Improved:
        """Improves the net's answer until the error bound is below tol.

        Multigrid corrects it, or conjugate gradients in frame coordinates for formulations without multigrid. `norm`
        chooses the norm of the bound, as in `error_bound`.
        """
        return improved(self.formulation, self.coefficients(y), self._exact_samples(y), tol, max_iterations, norm)

    def to(self, precision: str | None = None, device: torch.device | str | None = None) -> Surrogate:
        """The same surrogate with its net rounded to another precision, moved to another device, or both.

        The precisions are float16, bfloat16, float32 and float64.
        """
        dtype = check_dtype(self.description.precision if precision is None else precision)
        description = replace(self.description, precision=str(dtype).removeprefix("torch."))
        net = description.copied(
            self.net, self.arrays, self.device if device is None else check_device(device), self._problem
        )
        return Surrogate(net, description, self.arrays, self._problem, self.record)

    # ---- parts

    @property
    def problem(self) -> Problem:
        if self._problem is None:
            name = self.arrays.record.get("problem")
            raise ValueError(
                f"losses, bounds and a_y ∇u need the problem {name!r}, which is not built in: give it, as "
                + either(f"--problem {name}", "Surrogate.load(folder, problem=…)")
            )
        return self._problem

    @cached_property
    def formulation(self) -> Formulation:
        """The formulation in float64, so that rounding does not affect losses and bounds."""
        device = "cpu" if self.device.type == "mps" else self.device  # mps has no float64
        made = make_formulation(Frame.from_arrays(self.arrays, torch.float64, device), self.problem)
        known = self.record.get("fingerprint")
        if known is not None and not np.allclose(fingerprint(made), known, rtol=1e-8, atol=0):
            raise ValueError(
                f"the problem {self.problem.name} is not the one that the surrogate was trained for, "
                "its coefficient, source or boundary data are others; give that one, as "
                + either("--problem", "Surrogate.load(folder, problem=…)")
            )
        return made

    @cached_property
    def _synthesis(self) -> Any:
        return make_synthesis(self.arrays, accumulation_dtype(DTYPES[self.description.precision]), self.device)

    @cached_property
    def _coordinates(self) -> Coordinates:
        return Coordinates(self.arrays, self._problem)

    def _samples(self, y: npt.ArrayLike | Tensor) -> Tensor:
        """y as a tensor for the net."""
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.as_tensor(self._checked(y)).to(self.device, dtype)

    def _exact_samples(self, y: npt.ArrayLike | Tensor) -> Tensor:
        return torch.as_tensor(self._checked(y)).to(self.formulation.frame.device)

    def _checked(self, y: npt.ArrayLike | Tensor) -> Floats:
        given = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        if self._problem is not None:
            return self._problem.check_parameters(given)
        values = np.atleast_2d(np.asarray(given, np.float64))
        p = self.description.parameters
        if values.ndim != 2 or values.shape[1] != p or not np.isfinite(values).all():
            raise ValueError(f"y has shape {np.shape(given)}; finite values (B, {p}) or ({p},) are expected")
        if self.description.box is not None:
            box = Uniform(*self.description.box)
            if box.outside(values).any():
                raise ValueError(f"y is outside {box}, which the surrogate was trained for")
        return values

    # ---- files and other programs

    def save(self, folder: str | Path) -> None:
        """Writes frame and net into a folder, which is created if it does not exist."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.arrays.save(folder / FRAME)
        self.save_net(folder)

    def save_net(self, folder: Path) -> None:
        """Writes the net into a folder that has the frame already."""
        if self._problem is not None:
            self.record["fingerprint"] = fingerprint(self.formulation)
        content = {
            "net": asdict(self.description),
            "weights": {name: value.detach().cpu() for name, value in self.net.state_dict().items()},
            "record": self.record,
            **problem_content(self._problem, self.arrays),
        }
        save_tensors(folder / NET, KIND, VERSION, content)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        problem: Problem | None = None,
        device: torch.device | str = "cpu",
        net: OwnModule | None = None,
    ) -> Surrogate:
        """Reads a surrogate from a folder of `save`.

        Losses and bounds need `problem` if the file cannot hold it: if it is not built in and has a `Pointwise`
        coefficient or a source that is a function. A net of your own needs `net`: the module, or the function that
        makes it, as given to `train`. The module itself stays unchanged; a copy gets the weights.
        """
        folder = Path(folder)
        OwnParts(net=net)  # refuses what is neither a module nor a function
        is_there(folder)
        if not (folder / NET).is_file():
            if (folder / "failure.json").exists():
                raise ValueError(
                    f"{folder} holds a run that failed, so there is no surrogate; failure.json in it says why"
                )
            if (folder / "configuration.toml").exists():
                end = either(f"fem-frames train --out {folder} --resume", f"train(None, {str(folder)!r}, resume=True)")
                more = either("--problem", "problem=…")
                raise ValueError(
                    f"{folder} holds no surrogate yet: `{end}` finishes the run, with {more} for a problem of your own"
                )
            make = either(f"fem-frames train --out {folder} …", f"train(configuration, {str(folder)!r})")
            raise ValueError(f"{folder} holds no surrogate; `{make}` makes one")
        device = check_device(device)
        content = load_tensors(folder / NET, KIND, VERSION)
        arrays = FrameArrays.load(folder / FRAME)
        if problem is not None:
            if not isinstance(problem, Problem):
                raise ValueError(
                    f"problem is a {type(problem).__name__}; a Problem is expected, as make_problem gives it"
                )
            arrays.check_problem(problem)
        else:
            try:
                problem = saved_problem(content, arrays)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{folder / NET} describes no problem of {folder / FRAME}: {error}") from error
        try:
            description = NetDescription.from_record(content["net"], content["weights"], arrays)
            made = description.restored(content["weights"], arrays, device, net, folder, problem)
            check_saved(content)
        except OwnPartError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            why = str(error).split("\n")[0]
            raise ValueError(
                f"{folder / NET} does not fit {folder / FRAME}: {why}; one of them is damaged or another run's"
            ) from error
        return cls(made, description, arrays, problem, content.get("record"))

    def to_function(self, y: npt.ArrayLike | Tensor, field: str | None = None, comm: Any = None) -> Any:
        """A DOLFINx function on the finest mesh for one y, on all ranks of comm; by default on this process alone.

        `field` is by default the first, u. A flux in RT0 becomes a constant vector per cell, its value at the centre.
        """
        values = {name: value[0] for name, value in self._values(y).items()}
        if len(self._checked(y)) != 1:
            raise ValueError(f"one y is expected, not {len(self._checked(y))}")
        field = next(iter(values)) if field is None else field
        if field not in values:
            raise ValueError(f"there is no field {field!r}; the surrogate has {', '.join(values)}")
        return make_function(self.arrays, values[field], field, comm)

    def write(self, y: npt.ArrayLike | Tensor, path: str | Path, flux: bool = False) -> None:
        """Writes all fields for ParaView: one y as .xdmf, .vtu, .vtk or .pvd, several as a series in .xdmf or .pvd.

        The samples of a series are its times 0, 1, …; a .json file next to it lists their y. `flux` adds a_y ∇u unless
        the flux is a field already.
        """
        samples, path = self._checked(y), Path(path)
        check_format(path, len(samples))
        fields = self._values(samples, flux)
        steps = [{name: values[i] for name, values in fields.items()} for i in range(len(samples))]
        write_series(self.arrays, steps, samples, path)

    def plot(self, y: npt.ArrayLike | Tensor, path: str | Path | None = None, flux: bool = False) -> Figure:
        """Draws all fields for one or several y as a matplotlib figure, and saves it if there is a path.

        This works in one and two dimensions; use `write` and ParaView in three. `flux` adds a_y ∇u unless the flux is
        a field already. pyplot and its backend stay unchanged.
        """
        samples, path = self._checked(y), None if path is None else Path(path)
        check_plot(path)
        check_drawable(self.arrays, len(samples))
        title = str(self.arrays.record.get("problem"))
        return plot_solutions(self.arrays, self._values(samples, flux), samples, path, title)

    def export(self, path: str | Path) -> None:
        """Writes the net, y to frame coefficients, for programs without fem-frames: .pt2 (torch.export) or .onnx."""
        net = self.net
        if isinstance(net, MultigridNet):
            net = self.to().net.requires_grad_(False)  # without gradients, the program may overwrite what it owns
            assert isinstance(net, MultigridNet)
            net.prepare_tracing()
        export_net(net, self.description.parameters, Path(path))

    def _values(self, y: npt.ArrayLike | Tensor, flux: bool = False) -> dict[str, Floats]:
        """Values of each field at points (B, N) or on cells (B, K, d); `flux` adds a_y ∇u unless it is a field."""
        found = values_of(self.arrays, as_arrays(self.fields(y)))
        if flux and not has_flux(self.arrays):
            found["flux"] = self.flux(y).cpu().numpy()
        return found


def _stacked(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts, dim=-1)
