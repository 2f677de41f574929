"""The only door to DOLFINx: every call that differs between the releases 0.5, 0.9 and 0.11 is here.

It works without PETSc, which a DOLFINx may lack: assembly and solvers are in `petsc.py`. Other modules import MPI, fem
and ufl from here, so that one place reports what is missing.

Meshes consist of affine simplices in dimension d = 1, 2, 3, in float64. Tables have one row per cell that this rank
owns. "Input" numbers are row numbers of the arrays from which a mesh was made: unlike DOLFINx's own numbers they
depend neither on the release nor on the number of ranks.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

# DOLFINx 0.5 loads the reference BLAS; torch, if imported later, would use it and be five times slower.
with contextlib.suppress(ImportError):
    import torch  # noqa: F401

import numpy as np
import numpy.typing as npt

from fem_frames.fenicsx.absence import FEniCSxError, no_fenicsx

try:
    import basix
    import dolfinx
    import ufl
    from dolfinx import cpp, fem, io
    from dolfinx import mesh as dmesh
    from mpi4py import MPI
    from ufl.algorithms.apply_algebra_lowering import apply_algebra_lowering
    from ufl.algorithms.apply_derivatives import apply_derivatives
except ModuleNotFoundError as error:
    raise no_fenicsx(error) from error

from fem_frames.files import one_line
from fem_frames.mesh.coarse import Grid, MeshArrays
from fem_frames.mesh.geometry import Floats, Ints, orient

# DOLFINx makes libraries that are loaded later share their symbols. The kernels of torch.compile all have the same
# name and would overwrite each other's memory.
if hasattr(sys, "getdlopenflags"):
    sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_GLOBAL)

_OLD = not hasattr(basix, "ufl")  # before 0.7 elements came from UFL
if not _OLD:
    import basix.ufl

_NAMES = (None, "interval", "triangle", "tetrahedron")
REFINES_INTERVALS = not _OLD

if (0, 5) < tuple(int(n) for n in dolfinx.__version__.split(".")[:2]) < (0, 9):
    raise FEniCSxError(f"DOLFINx {dolfinx.__version__} is not supported, 0.5 and 0.9 or newer are")
# DOLFINx 0.5 does not export its scalar type, which is always that of PETSc.
_SCALARS = fem.petsc.PETSc.ScalarType if _OLD else dolfinx.default_scalar_type
if np.issubdtype(_SCALARS, np.complexfloating):
    raise FEniCSxError("this DOLFINx has complex scalars; fem-frames needs real ones")


P = ParamSpec("P")
T = TypeVar("T")


def _compiling(function: Callable[P, T]) -> Callable[P, T]:
    """Wraps a function that may call FFCx: hides FFCx's log, and turns compiler failures into errors with a remedy."""

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> T:
        before = logging.root.manager.disable
        logging.disable(max(before, logging.INFO))
        try:
            return function(*args, **kwargs)
        except OSError as error:
            raise ValueError(
                f"FFCx cannot write what it compiles: {one_line(error)}; set HOME, or XDG_CACHE_HOME and "
                "XDG_CONFIG_HOME, to a folder that can be written and has room"
            ) from error
        except Exception as error:
            if type(error).__name__ not in ("VerificationError", "CompileError"):  # raised by cffi and distutils
                raise
            raise ValueError(
                f"the C compiler that FFCx calls fails: {one_line(error)}; is there room in TMPDIR and XDG_CACHE_HOME?"
            ) from error
        finally:
            logging.disable(before)

    return quiet


# ---- meshes ---------------------------------------------------------------------------------------------


@_compiling
def generate(grid: Grid) -> MeshArrays:
    """The mesh that DOLFINx generates for a grid, as arrays."""
    comm, d = MPI.COMM_SELF, len(grid.shape)
    if d == 1:
        mesh = dmesh.create_interval(comm, grid.shape[0], [grid.lower[0], grid.upper[0]])
    elif d == 2:
        mesh = dmesh.create_rectangle(comm, [np.array(grid.lower), np.array(grid.upper)], list(grid.shape))
    else:
        mesh = dmesh.create_box(comm, [np.array(grid.lower), np.array(grid.upper)], list(grid.shape))
    return arrays_of(mesh)


@_compiling
def create(points: Floats, cells: Ints, comm: MPI.Comm) -> dmesh.Mesh:
    """Mesh distributed over the ranks of comm, from the arrays of rank 0 (those of other ranks are ignored)."""
    points, cells = np.ascontiguousarray(points), np.ascontiguousarray(cells, np.int64)
    gdim = comm.bcast(points.shape[1])
    if comm.rank:
        points, cells = np.zeros((0, gdim)), np.zeros((0, gdim + 1), np.int64)
    name = _NAMES[gdim]
    if _OLD:
        domain = ufl.Mesh(ufl.VectorElement("Lagrange", ufl.Cell(name, geometric_dimension=gdim), 1))
        return dmesh.create_mesh(comm, cells, points, domain, ghost_mode=dmesh.GhostMode.none)
    return dmesh.create_mesh(
        comm, cells=cells, x=points, e=ufl.Mesh(basix.ufl.element("Lagrange", name, 1, shape=(gdim,)))
    )


@_compiling
def refine(coarse: dmesh.Mesh) -> tuple[dmesh.Mesh, Ints]:
    """(fine mesh, (cells,) coarse parent of each fine cell): DOLFINx halves every edge. On one rank.

    Refines intervals only if `REFINES_INTERVALS`.
    """
    coarse.topology.create_entities(1)
    if _OLD:
        fine, parent, _ = cpp.refinement.plaza_refine_data(
            coarse._mesh, False, cpp.refinement.RefinementOptions.parent_cell
        )
        fine = dmesh.Mesh(fine, ufl.Mesh(coarse.ufl_domain().ufl_coordinate_element()))
    else:
        fine, parent, _ = dmesh.refine(coarse, partitioner=None, option=dmesh.RefinementOption.parent_cell)
    return fine, np.asarray(parent, np.int64)[input_cells(fine)]  # DOLFINx lists parents in input order


def arrays_of(mesh: dmesh.Mesh, cell_tags: Any = None, facet_tags: Any = None) -> MeshArrays:
    """Gathers a DOLFINx mesh, distributed or not, on every rank, with points sorted by their coordinates.

    The order does not depend on the release or on the number of ranks. Untagged cells get region 0.
    """
    d, comm = mesh.topology.dim, mesh.comm
    if (
        mesh.topology.cell_type != getattr(dmesh.CellType, str(_NAMES[d]))
        or mesh.geometry.dim != d
        or nodes(mesh).shape[1] != d + 1
    ):
        raise ValueError(
            "the DOLFINx mesh must consist of straight intervals, triangles or tetrahedra in R^1, R^2 or R^3; "
            f"this one has {mesh.topology.cell_type.name}s in R^{mesh.geometry.dim} (DOLFINx's readers take gdim=2)"
        )
    for tags, dim in ((cell_tags, d), (facet_tags, d - 1)):
        if tags is not None and tags.dim != dim:
            raise ValueError(
                f"tags of dimension {tags.dim} were given where dimension {dim} is expected; "
                "give (mesh, cell tags, facet tags), None for missing tags"
            )
    x, cells = coordinates(mesh), nodes(mesh)
    regions = np.zeros(len(cells), np.int64)
    if cell_tags is not None:
        own = cell_tags.indices < len(cells)
        regions[cell_tags.indices[own]] = cell_tags.values[own]
    facets, tags = _tagged_facets(mesh, facet_tags) if facet_tags is not None else (np.zeros((0, d), np.int64), [])
    number = mesh.geometry.index_map().local_to_global(np.arange(len(x), dtype=np.int32))
    parts = comm.allgather((number, x, number[cells], regions, number[facets], np.asarray(tags, np.int64)))
    numbers, x, cells, regions, facets, tags = (np.concatenate([part[i] for part in parts]) for i in range(6))
    numbers, first = np.unique(numbers, return_index=True)
    # Different releases compute coordinates with different rounding.
    points = x[first]
    order = np.lexsort(np.round(points / np.abs(points).max(initial=1e-300), 11).T[::-1] + 0.0)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    points, gathered = points[order], np.sort(place[np.searchsorted(numbers, cells)], axis=1)
    order = np.lexsort(gathered.T[::-1])
    return MeshArrays(
        points=points,
        cells=orient(points, gathered[order]),
        regions=regions[order],
        facets=place[np.searchsorted(numbers, facets)].reshape(-1, d),
        facet_tags=tags,
    )


def _tagged_facets(mesh: dmesh.Mesh, tags: Any) -> tuple[Ints, npt.NDArray]:
    """Rows of coordinates(mesh) of the tagged facets of cells on this rank, and their tags."""
    facets, indices = facet_nodes(mesh), np.asarray(tags.indices)
    own = np.flatnonzero(indices < len(facets))
    own = own[(facets[indices[own]] >= 0).all(axis=1)]
    return facets[indices[own]], np.asarray(tags.values)[own]


def facet_nodes(mesh: dmesh.Mesh) -> Ints:
    """(facets, d) rows of coordinates(mesh) of the facets that this rank owns, -1 outside its cells. Collective."""
    topology, d = mesh.topology, mesh.topology.dim
    for pair in ((d - 1, d), (d, d - 1), (d - 1, 0), (d, 0)):
        topology.create_connectivity(*pair)
    node_of_vertex = np.full(topology.index_map(0).size_local + topology.index_map(0).num_ghosts, -1, np.int64)
    node_of_vertex[_table(topology.connectivity(d, 0), d + 1, mesh)] = nodes(mesh)
    # Two ranks know a facet between them; only its owner counts it.
    return node_of_vertex[topology.connectivity(d - 1, 0).array.reshape(-1, d)[: topology.index_map(d - 1).size_local]]


def is_mesh(candidate: Any) -> bool:
    return isinstance(candidate, dmesh.Mesh)


def _table(table: Any, width: int, mesh: dmesh.Mesh) -> npt.NDArray:
    owned = mesh.topology.index_map(mesh.topology.dim).size_local
    return np.asarray(getattr(table, "array", table)).reshape(-1, width)[:owned]


def nodes(mesh: dmesh.Mesh) -> Ints:
    """(cells, d+1) rows of coordinates(mesh)."""
    geometry = mesh.geometry
    table = geometry.dofmaps[0] if hasattr(geometry, "dofmaps") else geometry.dofmap
    if hasattr(table, "links"):
        return _table(table, len(table.links(0)) if table.num_nodes else mesh.topology.dim + 1, mesh).astype(np.int64)
    return _table(table, table.shape[1], mesh).astype(np.int64)


def coordinates(mesh: dmesh.Mesh) -> Floats:
    """(nodes, d) coordinates, ghosts included."""
    return np.asarray(mesh.geometry.x[:, : mesh.geometry.dim], np.float64)


def move(mesh: dmesh.Mesh, to: Floats) -> None:
    """Moves the nodes of a mesh to (nodes, d), ghosts included."""
    mesh.geometry.x[:, : mesh.geometry.dim] = to


def input_cells(mesh: dmesh.Mesh) -> Ints:
    """(cells,) input number of each cell."""
    return _table(mesh.topology.original_cell_index, 1, mesh)[:, 0].astype(np.int64)


def input_nodes(mesh: dmesh.Mesh) -> Ints:
    """(nodes,) input number of each row of coordinates(mesh)."""
    return np.asarray(mesh.geometry.input_global_indices, np.int64)


def make_tags(mesh: dmesh.Mesh, dimension: int, entities: Ints, values: Ints) -> Any:
    """Tags for measures of forms: of cells of this rank, or of facets by their rows in facet_nodes(mesh), ascending."""
    return dmesh.meshtags(mesh, dimension, entities.astype(np.int32), values.astype(np.int32))


# ---- spaces ---------------------------------------------------------------------------------------------


@_compiling
def space(mesh: dmesh.Mesh, *families: str | tuple[str, int]) -> fem.FunctionSpace:
    """Space of a family, such as "P", or ("P", 2) for another degree than 1; or the mixed space of several families."""
    make, cell = (ufl.FiniteElement, mesh.ufl_cell()) if _OLD else (basix.ufl.element, _NAMES[mesh.topology.dim])
    pairs = [(family, 1) if isinstance(family, str) else family for family in families]
    elements = [make(family, cell, degree) for family, degree in pairs]
    if len(elements) > 1:
        elements = [ufl.MixedElement(*elements) if _OLD else basix.ufl.mixed_element(elements)]
    return (fem.FunctionSpace if _OLD else fem.functionspace)(mesh, elements[0])


@_compiling
def quadrature_space(mesh: dmesh.Mesh, degree: int) -> fem.FunctionSpace:
    """Functions with values at the points of quadrature(d, degree)."""
    name = _NAMES[mesh.topology.dim]
    if _OLD:
        element = ufl.FiniteElement("Quadrature", mesh.ufl_cell(), degree, quad_scheme="default")
        return fem.FunctionSpace(mesh, element)
    return fem.functionspace(mesh, basix.ufl.quadrature_element(name, scheme="default", degree=degree))


def dofs(V: fem.FunctionSpace) -> Ints:
    """(cells, n) local dofs; those of a subspace are numbered as in the whole space."""
    return _table(V.dofmap.list, V.dofmap.dof_layout.num_dofs, V.mesh).astype(np.int64)


def abstract_vector(d: int, count: int) -> Any:
    """A coefficient with `count` components on no mesh in particular, for forms that are read and not assembled.

    Its polynomials are cubic, so that UFL does not take its second derivatives for zero.
    """
    name = _NAMES[d]
    if _OLD:
        cell = ufl.Cell(name, geometric_dimension=d)
        domain = ufl.Mesh(ufl.VectorElement("Lagrange", cell, 1))
        return ufl.Coefficient(ufl.FunctionSpace(domain, ufl.VectorElement("Lagrange", cell, 3, dim=count)))
    domain = ufl.Mesh(basix.ufl.element("Lagrange", name, 1, shape=(d,)))
    return ufl.Coefficient(ufl.FunctionSpace(domain, basix.ufl.element("Lagrange", name, 3, shape=(count,))))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """UFL logs the errors that it raises: without that, one message is left."""
    loggers = [logging.getLogger(name) for name in ("UFL", "ufl")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def lowered(form: Any) -> Any:
    """A UFL form or expression without tensor algebra and derivatives: sums, products and functions of components."""
    for _ in range(2):  # derivatives make new products
        form = apply_derivatives(apply_algebra_lowering(form))
    return form


# ---- the reference cell ---------------------------------------------------------------------------------


def reference_cell(d: int) -> Any:
    """The interval, the triangle or the tetrahedron of basix."""
    return getattr(basix.CellType, str(_NAMES[d]))


def quadrature(d: int, degree: int) -> tuple[Floats, Floats]:
    """Points (Q, d) and weights (Q,) on the reference simplex: DOLFINx's own scheme."""
    points, weights = basix.make_quadrature(reference_cell(d), degree)
    return np.asarray(points).reshape(-1, d), np.asarray(weights)


def barycentric_quadrature(d: int, degree: int) -> tuple[Floats, Floats]:
    """The same scheme on any simplex: barycentric points (Q, d+1), which are hat values, and weights (Q,) of sum 1."""
    points, weights = quadrature(d, degree)
    return np.concatenate([1 - points.sum(axis=1, keepdims=True), points], axis=1), weights / weights.sum()


def entities(d: int, k: int) -> Ints:
    """(C, k+1) corners of the k-dimensional parts of the reference simplex, in the order of DOLFINx."""
    return np.array(basix.topology(reference_cell(d))[k], np.int64)


# ---- forms and output -----------------------------------------------------------------------------------


def constant(mesh: dmesh.Mesh, values: Floats) -> fem.Constant:
    """Numbers (n,) that forms may contain, and that may change between assemblies."""
    return fem.Constant(mesh, np.array(values, np.float64))


@_compiling
def compile_form(form: Any) -> Any:
    """Compiles a UFL form for assembly."""
    return fem.form(form)


def integral(form: Any, comm: MPI.Comm) -> float:
    """Value of a compiled scalar form, summed over all ranks."""
    return float(comm.allreduce(fem.assemble_scalar(form)))


def nodal_function(mesh: dmesh.Mesh, values: Floats, name: str) -> fem.Function:
    """P1 function with the given values (N,), or vectors (N, d), at the input nodes."""
    values = np.asarray(values)
    V = space(mesh, "P") if values.ndim == 1 else _vector_space(mesh, ("P", 1))
    function = fem.Function(V)
    function.name = name
    of_nodes = values.reshape(len(values), -1)
    function.x.array.reshape(-1, of_nodes.shape[1])[dofs(V)] = of_nodes[input_nodes(mesh)[nodes(mesh)]]
    function.x.scatter_forward()
    return function


def _vector_space(mesh: dmesh.Mesh, element: tuple[str, int]) -> fem.FunctionSpace:
    """Vectors with d components in a scalar element."""
    if _OLD:
        return fem.VectorFunctionSpace(mesh, element)
    return fem.functionspace(mesh, (*element, (mesh.geometry.dim,)))


@_compiling
def cell_function(mesh: dmesh.Mesh, values: Floats, name: str) -> fem.Function:
    """Vector function that is constant on cells, with the given values (K, d) on the input cells."""
    d = values.shape[1]
    V = _vector_space(mesh, ("DG", 0))
    function = fem.Function(V)
    function.name = name
    of_cell = dofs(V)[:, 0]
    function.x.array.reshape(-1, d)[of_cell] = np.asarray(values)[input_cells(mesh)]
    function.x.scatter_forward()
    return function


def write_xdmf(path: str | Path, points: Floats, cells: Ints, **fields: Floats) -> None:
    """Writes XDMF and HDF5 for ParaView: a mesh from arrays, and named fields at points or on cells."""
    write_xdmf_series(path, points, cells, [fields])


def write_xdmf_series(path: str | Path, points: Floats, cells: Ints, steps: Sequence[Mapping[str, Floats]]) -> None:
    """The same with the fields of several steps, which ParaView shows one after the other at the times 0, 1, …"""
    mesh = create(points, cells, MPI.COMM_SELF)
    with io.XDMFFile(MPI.COMM_SELF, str(path), "w") as file:
        file.write_mesh(mesh)
        for time, fields in enumerate(steps):
            for name, values in fields.items():
                make = nodal_function if len(values) == len(points) else cell_function
                file.write_function(make(mesh, values, name), float(time))


def versions() -> dict[str, str]:
    """Versions of the installed FEniCSx stack."""
    mpi = MPI.Get_library_version().split("\n")[0].strip("\0 ,")
    return {
        "dolfinx": dolfinx.__version__,
        "basix": basix.__version__,
        "ufl": getattr(ufl, "__version__", "unknown"),
        "mpi": mpi,
    }
