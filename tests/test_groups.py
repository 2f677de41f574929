"""Regions and boundary groups by name: in arrays, gmsh files and DOLFINx meshes; solutions, frames, files, mistakes."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from gmsh_files import GROUPS, NAMES, PLATE, square_41
from mpi4py import MPI

from fem_frames import (
    ByRegion,
    Frame,
    FrameArrays,
    Grid,
    MeshArrays,
    MeshHierarchy,
    Problem,
    ReferenceSolver,
    Uniform,
    export_frame,
    make_formulation,
    make_problem,
    solve,
    solve_reference,
)
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.fenicsx.sweep import problem_digest

TWO = Uniform((1.0, 0.1), (2.0, 0.5))
BY_NAME = Problem(
    PLATE,
    ByRegion({"steel": 0, "air": 1}, fixed={"glue": 0.3}),
    TWO,
    dirichlet={"inflow": 1.0},
    neumann={"outflow": 0.5, "holes": lambda x: x[:, 1]},
)
BY_TAG = replace(
    BY_NAME,
    coefficient=ByRegion({1: 0, 3: 1}, fixed={2: 0.3}),
    dirichlet=(1,),
    dirichlet_value=1.0,
    neumann={2: 0.5, 3: lambda x: x[:, 1]},
)


def strips(**names):
    """The unit square of two strips with the tags 4 (left) and 6; the left side has the tag 7, the right one 8."""
    mesh = coarse_mesh(Grid((2, 1)))
    x = mesh.points
    left, right = (np.flatnonzero(np.isclose(x[:, 0], at))[None] for at in (0, 1))
    regions = np.where(x[mesh.cells].mean(axis=1)[:, 0] < 0.5, 4, 6)
    return MeshArrays(x, mesh.cells, regions, np.concatenate([left, right]), np.array([7, 8]), **names)


NAMED = dict(region_names={"steel": 4, "air": 6}, facet_names={"inflow": 7, "outflow": 8})


def flow(mesh, **changes):
    """−(a u')' = 0 across the strips, u = 0 on the left and a ∂u/∂n = 1 on the right."""
    problem = Problem(
        mesh,
        ByRegion({"steel": 0}, fixed={"air": 2.0}),
        Uniform((0.5,), (1.5,)),
        source=0.0,
        dirichlet={"inflow": 0.0},
        neumann={"outflow": 1.0},
    )
    return replace(problem, **changes)


def expected_flow(x, y):
    return np.minimum(x, 0.5) / y + np.maximum(x - 0.5, 0) / 2


def test_solutions_by_name_are_those_of_the_closed_form(comm):
    problem = flow(strips(**NAMED))
    x = MeshHierarchy.from_problem(problem, 2).points[:, 0]
    for mixed in (problem, replace(problem, coefficient=ByRegion({4: 0}, fixed={"air": 2.0}), neumann={8: 1.0})):
        u = solve_reference(mixed, [[0.8], [1.3]], 2, comm=comm).u
        np.testing.assert_allclose(u, [expected_flow(x, 0.8), expected_flow(x, 1.3)], atol=1e-9)


def test_names_and_tags_give_the_same_frame_solution_and_digest():
    """Bit for bit, in the frame and by PETSc."""
    y = TWO.sample(2, 0)
    one, other = (solve_reference(problem, y, 1, comm=MPI.COMM_SELF).u for problem in (BY_NAME, BY_TAG))
    np.testing.assert_array_equal(one, other)
    assert problem_digest(BY_NAME, 1, "energy") == problem_digest(BY_TAG, 1, "energy")
    frames = [export_frame(MeshHierarchy.from_problem(p, 1), p) for p in (BY_NAME, BY_TAG)]
    for name, array in frames[0].flat().items():
        np.testing.assert_array_equal(array, frames[1].flat()[name])


@pytest.mark.parametrize("refinement", ["red", "dolfinx"])
def test_frame_and_petsc_agree_on_a_gmsh_mesh(refinement):
    import torch

    problem = replace(BY_NAME, refinement=refinement)
    y = TWO.sample(2, 1)
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    formulation = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    found = solve(formulation, torch.as_tensor(y), 1e-11).w
    u = formulation.nodal_fields(formulation.frame.H(found))["u"].numpy()
    np.testing.assert_allclose(u, solve_reference(problem, y, 1, comm=MPI.COMM_SELF).u, atol=1e-6)


@pytest.mark.parametrize("refinement", ["red", "dolfinx"])
def test_references_on_a_gmsh_mesh_do_not_depend_on_the_ranks(comm, refinement):
    problem, y = replace(BY_NAME, refinement=refinement), TWO.sample(2, 2)
    serial = solve_reference(problem, y, 2, solver="lu", comm=MPI.COMM_SELF)
    for distribute in ("mesh", "samples"):
        found = solve_reference(problem, y, 2, distribute=distribute, comm=comm)
        np.testing.assert_allclose(found.u, serial.u, rtol=1e-6, atol=1e-6)


# ---- frames and surrogates keep the names


def test_a_saved_frame_knows_the_names_of_its_regions(tmp_path):
    problem = flow(strips(**NAMED))
    export_frame(MeshHierarchy.from_problem(problem, 2), problem).save(tmp_path / "frame.npz")
    arrays = FrameArrays.load(tmp_path / "frame.npz")
    assert arrays.record["region_names"] == {"steel": 4, "air": 6}
    made = make_formulation(Frame.from_arrays(arrays, "float64"), problem)
    assert made.problem.coefficient == ByRegion({4: 0}, fixed={6: 2.0})
    u = ReferenceSolver.on_frame(arrays, problem)([0.8])[0]["u"]
    np.testing.assert_allclose(u, expected_flow(arrays.points[:, 0], 0.8), atol=1e-9)


def test_a_frame_of_a_mesh_without_names_says_so():
    """As files of earlier versions."""
    by_tag = flow(strips(facet_names=NAMED["facet_names"]), coefficient=ByRegion({4: 0}, fixed={6: 2.0}))
    arrays = export_frame(MeshHierarchy.from_problem(by_tag, 1), by_tag)
    assert "region_names" not in arrays.record
    by_name = replace(by_tag, coefficient=ByRegion({"steel": 0}, fixed={"air": 2.0}))
    with pytest.raises(ValueError, match=r"no region is called 'steel'.* no names of regions.*export it again"):
        make_formulation(Frame.from_arrays(arrays, "float64"), by_name)


def test_a_surrogates_file_has_tags(tmp_path):
    from training.saved_problem import problem_content, saved_problem

    problem = flow(strips(**NAMED))
    arrays = export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    read = saved_problem(problem_content(problem, arrays), arrays)
    assert read.coefficient == ByRegion({4: 0}, fixed={6: 2.0})
    with pytest.raises(ValueError, match="serves only its frame"):
        read.show()


# ---- names of DOLFINx's tags


def tagged(comm):
    """DOLFINx's unit square with cells of tag 4 where x < 1/2 and 6 elsewhere, facets of tag 7 left and 8 right."""
    from dolfinx import mesh as dmesh

    mesh = dmesh.create_unit_square(comm, 2, 2)
    tags = []
    for d, places in (
        (2, {4: lambda x: x[0] <= 0.5, 6: lambda x: x[0] >= 0.5}),
        (1, {7: lambda x: np.isclose(x[0], 0), 8: lambda x: np.isclose(x[0], 1)}),
    ):
        found = [(dmesh.locate_entities(mesh, d, where), tag) for tag, where in places.items()]
        indices = np.concatenate([entities for entities, _ in found]).astype(np.int32)
        values = np.concatenate([np.full(len(entities), tag, np.int32) for entities, tag in found])
        order = np.argsort(indices)
        tags.append(dmesh.meshtags(mesh, d, indices[order], values[order]))
    return mesh, *tags


class MeshData(NamedTuple):
    """What DOLFINx 0.10 and newer read from gmsh files."""

    mesh: Any
    cell_tags: Any
    facet_tags: Any
    ridge_tags: Any
    peak_tags: Any
    physical_groups: Any


class Group(NamedTuple):
    dim: int
    tag: int


@pytest.mark.parametrize("kind", ["pairs", "tags", "MeshData"])
def test_dolfinx_meshes_come_with_names(comm, kind):
    tags = {"steel": (2, 4), "air": (2, 6), "inflow": (1, 7), "outflow": (1, 8)}
    mesh, cells, facets = tagged(comm)
    given = {
        "pairs": (mesh, cells, facets, tags),
        "tags": (mesh, cells, facets, {name: tag for name, (_, tag) in tags.items()}),
        "MeshData": MeshData(
            mesh,
            cells,
            facets,
            None,
            None,
            {"": Group(1, 3), "corner": Group(0, 7), **{k: Group(*v) for k, v in tags.items()}},
        ),
    }[kind]
    arrays = coarse_mesh(given)
    assert (arrays.region_names, arrays.facet_names) == (NAMED["region_names"], NAMED["facet_names"])
    problem = flow(given)
    u = solve_reference(problem, [0.8], 1, comm=comm).u[0]
    x = MeshHierarchy.from_problem(problem, 1).points[:, 0]
    np.testing.assert_allclose(u, expected_flow(x, 0.8), atol=1e-9)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"inflow": 99}, r"neither cells nor facets carry; give a pair \(dimension, tag\)"),
        ({"inflow": (1, 7, 0)}, r"stands for \(1, 7, 0\); give a pair"),
        ({"inflow": (1, "7")}, r"facet_names\['inflow'\] is '7'; a tag is expected"),
        ({"rest": (1, 7)}, "rename the group"),
        (["inflow"], "the names of tags are a list; a dictionary is expected"),
    ],
)
def test_bad_names_of_dolfinx_tags_are_refused(comm, names, message):
    with pytest.raises(ValueError, match=message):
        coarse_mesh((*tagged(comm), names))


def test_a_tag_of_cells_and_facets_needs_a_dimension(comm):
    mesh, cells, _ = tagged(comm)
    from dolfinx import mesh as dmesh

    left = np.sort(dmesh.locate_entities_boundary(mesh, 1, lambda x: np.isclose(x[0], 0))).astype(np.int32)
    facets = dmesh.meshtags(mesh, 1, left, np.full(len(left), 4, np.int32))
    with pytest.raises(ValueError, match=r"both cells and facets carry; give a pair .*\(2, 4\) for cells, \(1, 4\)"):
        coarse_mesh((mesh, cells, facets, {"inflow": 4}))
    assert coarse_mesh((mesh, cells, facets, {"inflow": (1, 4)})).facet_names == {"inflow": 4}


def test_a_flat_mesh_in_space_names_the_argument_of_the_reader():
    from dolfinx import mesh as dmesh

    quadrilaterals = dmesh.create_unit_square(MPI.COMM_SELF, 2, 2, dmesh.CellType.quadrilateral)
    with pytest.raises(ValueError, match=r"this one has quadrilaterals in R\^2 .*gdim=2"):
        coarse_mesh(quadrilaterals)


# ---- mistakes


def square(**changes):
    """The square of two triangles from a gmsh text, with a group inside of it and an empty one."""
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    mesh = MeshArrays(
        points,
        [[0, 1, 2], [0, 2, 3]],
        regions=[5, 6],
        facets=[[0, 1], [2, 3], [0, 2]],
        facet_tags=[7, 8, 9],
        region_names={"steel": 5, "air": 6, "void": 11},
        facet_names={"in flow": 7, "wall": 8, "middle": 9, "nothing": 12},
    )
    problem = Problem(mesh, ByRegion({"steel": 0, "air": 1}), Uniform((1.0, 1.0), (2.0, 2.0)), dirichlet={"wall": 0.0})
    return replace(problem, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(dirichlet={"inflow": 0.0}), r"dirichlet\['inflow'\]: no boundary .* has 'in flow', 'wall'; did you mean"),
        (dict(neumann={"Wal": 0.0}), r"neumann\['Wal'\]: .*; did you mean 'wall'\?"),
        (dict(neumann={"zzz": 0.0}), r"is called 'zzz'; the mesh has 'in flow', 'wall'$"),
        (dict(neumann={"middle": 1.0}), "all 1 facets of the group 'middle' lie between cells, inside the domain"),
        (dict(neumann={9: 1.0}), "all 1 facets of the group 9 lie between cells"),
        (dict(neumann={"nothing": 1.0}), "no boundary facet is called 'nothing': the group is empty"),
        (dict(neumann={"steel": 1.0}), "'steel' is a region, a group of cells; conditions hold on groups of boundary"),
        (dict(neumann={44: 1.0}), r"carries the tag 44; the mesh has 'in flow' \(7\), 'wall' \(8\)"),
        (dict(neumann={8: 1.0}), r"dirichlet\['wall'\] and neumann\[8\] both hold on the boundary facet"),
        (dict(coefficient=ByRegion({"stel": 0, "air": 1})), "no region is called 'stel' .*did you mean 'steel'"),
        (dict(coefficient=ByRegion({"steel": 0, 6: 1, "air": 1})), "6 and 'air' in ByRegion are the same region"),
        (dict(coefficient=ByRegion({"steel": 0})), r"cells carry the region tags \[6\]"),
    ],
)
def test_mistakes_in_names_are_answered_with_what_there_is(changes, message):
    problem = square(**changes)
    with pytest.raises(ValueError, match=message):
        export_frame(MeshHierarchy.from_problem(problem, 1), problem)
    with pytest.raises(ValueError, match=message):
        solve_reference(problem, [1.0, 1.0], 1)


def test_a_group_partly_inside_is_refused():
    mesh = replace(square().mesh, facet_tags=[7, 8, 8])
    problem = square(mesh=mesh)
    with pytest.raises(
        ValueError, match="1 of 2 facets of the group 'wall' lie between cells, inside the domain; make"
    ):
        MeshHierarchy.from_problem(problem, 1).condition_facets(problem)


def test_names_in_a_mesh_without_names():
    problem = flow(strips(facet_names=NAMED["facet_names"]))
    with pytest.raises(ValueError, match="the mesh has no names of regions: give tags, or name the physical groups"):
        solve_reference(problem, [1.0], 1)
    problem = flow(Grid((1, 1)))
    with pytest.raises(ValueError, match="no boundary facet is called 'inflow'; the mesh has no groups of boundary"):
        MeshHierarchy.from_problem(problem, 1).condition_facets(problem)


def test_coefficients_by_name_need_the_mesh():
    named = ByRegion({"steel": 0}, fixed={"air": 1.0})
    with pytest.raises(ValueError, match="the region 'steel' has a name whose tag only the mesh knows"):
        named.tabulate(np.zeros((1, 1, 2)), np.zeros(1, int))
    with pytest.raises(ValueError, match="region steel has both a parameter and a fixed value"):
        ByRegion({"steel": 0}, fixed={"steel": 1.0})
    with pytest.raises(ValueError, match=r"the tag of a region in ByRegion is 1\.5"):
        ByRegion({1.5: 0})
    tags = ByRegion.each(2)
    assert tags.with_tags({"steel": 1}) is tags


# ---- the place of a mesh file


def write_problem(folder, mesh="square.msh"):
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(
        "from fem_frames import ByRegion, Problem, Uniform\n"
        f"problem = Problem({mesh!r}, ByRegion({{'steel': 0, 'air': 1}}), Uniform((1, 1), (2, 2)),\n"
        "    dirichlet={'in flow': 0.0})\n"
        "def made(**options):\n    return problem\n"
    )
    return folder / "mine.py"


@pytest.mark.serial
@pytest.mark.parametrize("mesh", ["square.msh", "meshes/square.msh"])
@pytest.mark.parametrize("attribute", ["problem", "made"])
def test_a_mesh_file_is_looked_for_beside_the_problem_first(tmp_path, monkeypatch, attribute, mesh):
    path = write_problem(tmp_path / "folder", mesh)
    here, beside = tmp_path / mesh, path.parent / mesh
    monkeypatch.chdir(tmp_path)
    absent = make_problem(f"{path}:{attribute}")
    with pytest.raises(ValueError, match=f"there is no mesh file {beside}, nor {here}"):
        MeshHierarchy.from_problem(absent, 1)
    for place, name in ((here, "here"), (beside, "beside")):  # the second one is preferred
        place.parent.mkdir(exist_ok=True)
        place.write_text(square_41(GROUPS, [*NAMES, (2, 20, name)]))
        for problem in (make_problem(f"{path}:{attribute}"), absent):
            assert name in MeshHierarchy.from_problem(problem, 1).region_names
