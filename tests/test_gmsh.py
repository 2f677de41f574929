"""gmsh files: names and tags of physical groups by both readers, and everything that can be wrong with them."""

import numpy as np
import pytest
from gmsh_files import (
    FORMATS,
    GROUPS,
    NAMES,
    PLATE,
    POINTS,
    READERS,
    SQUARE,
    has_gmsh,
    make_plate,
    square_22,
    square_41,
    square_41_binary,
)

from fem_frames import MeshArrays, read_gmsh
from fem_frames.fenicsx.refinement import coarse_mesh
from fem_frames.mesh import gmsh_readers
from fem_frames.mesh.geometry import signed_volumes
from fem_frames.mesh.gmsh import arrays_of_content
from fem_frames.mesh.quality import facet_measures

ARRAYS = ("points", "cells", "regions", "facets", "facet_tags")


@pytest.fixture(params=READERS)
def read(request):
    """Reads a text, or a file, by one of the two readers."""
    reader = {"meshio": gmsh_readers.read_by_meshio, "gmsh": gmsh_readers.read_by_gmsh}[request.param]

    def read(path):
        gmsh_readers.file_version(path)
        return arrays_of_content(reader(path), path)

    return read


def written(tmp_path, text):
    path = tmp_path / "square.msh"
    path.write_text(text)
    return path


def assert_same(one, other):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.region_names == other.region_names
    assert one.facet_names == other.facet_names


@pytest.mark.parametrize("version", FORMATS)
def test_names_and_tags_of_groups_come_along(tmp_path, read, version):
    """Names may have spaces, a surface and a curve may share one, and an empty group may have one."""
    mesh = read(written(tmp_path, FORMATS[version]()))
    assert mesh.region_names == {"steel": 5, "air": 6}
    assert mesh.facet_names == {"in flow": 7, "steel": 8, "middle": 9, "nothing": 12}
    assert mesh.regions.tolist() == [5, 6]
    tags = dict(zip(map(tuple, np.sort(mesh.facets).tolist()), mesh.facet_tags.tolist(), strict=True))
    assert tags == {(0, 1): 7, (2, 3): 8, (0, 2): 9}


def test_the_plate_has_the_measures_of_its_groups(read):
    """Lengths and areas as drawn; the holes are polygons, so their circumference is a little shorter."""
    mesh = read(PLATE)
    volumes, lengths = signed_volumes(mesh.points, mesh.cells), facet_measures(mesh.points[mesh.facets])
    of_region = {name: volumes[mesh.regions == tag].sum() for name, tag in mesh.region_names.items()}
    of_group = {name: lengths[mesh.facet_tags == tag].sum() for name, tag in mesh.facet_names.items()}
    assert of_region["glue"] == pytest.approx(0.1)
    assert of_region["steel"] == pytest.approx(0.95 - np.pi * 0.2**2, rel=5e-3)
    assert of_region["air"] == pytest.approx(0.95 - np.pi * 0.25**2, rel=5e-3)
    assert of_group["inflow"] == pytest.approx(1)
    assert of_group["outflow"] == pytest.approx(1)
    assert of_group["wall"] == pytest.approx(4)
    assert of_group["holes"] == pytest.approx(2 * np.pi * 0.45, rel=0.01)
    assert of_group["holes"] < 2 * np.pi * 0.45


@pytest.mark.parametrize("binary", [False, True])
def test_format_two_holds_the_same_plate(tmp_path, read, binary):
    import meshio

    meshio.write(tmp_path / "plate.msh", meshio.read(PLATE), file_format="gmsh22", binary=binary)
    assert_same(read(tmp_path / "plate.msh"), read(PLATE))


def test_binary_files_of_format_four_hold_the_same_square(tmp_path, read):
    text = written(tmp_path, square_41({**GROUPS, (1, 3): [9, 12]}))
    path = tmp_path / "binary.msh"
    path.write_bytes(square_41_binary({**GROUPS, (1, 3): [9, 12]}))
    assert_same(read(path), read(text))


@pytest.mark.skipif(not has_gmsh(), reason="needs the package gmsh")
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("version", [2.2, 4.1])
def test_both_readers_give_the_same_mesh(tmp_path, version, binary):
    path = make_plate(tmp_path / "plate.msh", size=0.3, version=version, binary=binary)
    readers = (gmsh_readers.read_by_gmsh, gmsh_readers.read_by_meshio)
    one, other = (arrays_of_content(reader(path), path) for reader in readers)
    assert_same(one, other)
    assert_same(read_gmsh(path), one)
    assert len(one.facet_names) == 4


@pytest.mark.skipif(not has_gmsh(), reason="needs the package gmsh")
def test_dolfinx_reads_the_same_plate(comm):
    """DOLFINx's reader, which returns names from release 0.10 on, and ours."""
    import gmsh

    try:
        from dolfinx.io.gmsh import model_to_mesh
    except ImportError:  # before 0.10
        from dolfinx.io.gmshio import model_to_mesh

    gmsh.initialize(interruptible=False)
    try:
        gmsh.option.setNumber("General.Terminal", 0)
        gmsh.merge(str(PLATE))  # release 0.5 fails to read files itself
        given = model_to_mesh(gmsh.model, comm, 0, gdim=2)
    finally:
        gmsh.finalize()
    ours = read_gmsh(PLATE)
    if not hasattr(given, "physical_groups"):
        given = (*given, {**{n: (2, t) for n, t in ours.region_names.items()}, "holes": (1, 3)})
    theirs = coarse_mesh(given)
    assert theirs.region_names == ours.region_names
    assert theirs.facet_names["holes"] == 3
    for tag in (1, 2, 3, 4):
        area = [signed_volumes(m.points, m.cells)[m.regions == tag].sum() for m in (ours, theirs)]
        length = [facet_measures(m.points[m.facets])[m.facet_tags == tag].sum() for m in (ours, theirs)]
        assert (area[0], length[0]) == pytest.approx((area[1], length[1]))


@pytest.mark.skipif(not has_gmsh(), reason="needs the package gmsh")
def test_the_session_of_the_user_stays_as_it_was():
    import gmsh

    gmsh.initialize(interruptible=False)
    try:
        gmsh.option.setNumber("General.Terminal", 0)
        gmsh.model.add("mine")
        gmsh.model.occ.addRectangle(0, 0, 0, 1, 1)
        gmsh.model.occ.synchronize()
        before = gmsh.model.list(), gmsh.model.getEntities()
        read_gmsh(PLATE)
        assert gmsh.isInitialized()
        assert gmsh.model.getCurrent() == "mine"
        assert (gmsh.model.list(), gmsh.model.getEntities()) == before
    finally:
        gmsh.finalize()
    read_gmsh(PLATE)
    assert not gmsh.isInitialized()


def test_a_gmsh_that_lacks_libraries_is_as_good_as_none(tmp_path, monkeypatch):
    (tmp_path / "gmsh.py").write_text("raise OSError('libGL.so.1: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "gmsh", raising=False)
    with pytest.raises(ImportError, match="libGL"):
        gmsh_readers.gmsh_package()
    assert read_gmsh(PLATE).facet_names["holes"] == 3  # by meshio


def test_without_readers_the_remedy_is_named(monkeypatch):
    def absent(path):
        raise ImportError

    monkeypatch.setattr(gmsh_readers, "read_by_gmsh", absent)
    monkeypatch.setattr(gmsh_readers, "read_by_meshio", absent)
    with pytest.raises(ValueError, match="pip install gmsh, or pip install meshio"):
        read_gmsh(PLATE)


# ---- groups that overlap


@pytest.mark.parametrize("version", FORMATS)
def test_a_cell_in_two_groups_is_refused_with_both(tmp_path, read, version):
    text = FORMATS[version]({**GROUPS, (2, 2): [6, 5]})
    with pytest.raises(ValueError, match=r"'(steel|air)' \([56]\) and '(steel|air)' \([56]\) share the cell at"):
        read(written(tmp_path, text))


@pytest.mark.parametrize("version", FORMATS)
def test_a_boundary_facet_in_two_groups_is_refused_with_both(tmp_path, read, version):
    text = FORMATS[version]({**GROUPS, (1, 1): [7, 8]})
    with pytest.raises(ValueError, match="is in the groups 'in flow' and 'steel'; a facet belongs to one group"):
        read(written(tmp_path, text))


@pytest.mark.parametrize("version", FORMATS)
def test_a_facet_between_cells_may_be_in_two_groups(tmp_path, read, version):
    mesh = read(written(tmp_path, FORMATS[version]({**GROUPS, (1, 3): [9, 12]})))
    assert sorted(mesh.facet_tags.tolist()) == [7, 8, 9, 12]


@pytest.mark.parametrize("version", FORMATS)
def test_cells_in_no_group_are_region_0_and_facets_have_no_tag(tmp_path, read, version):
    mesh = read(written(tmp_path, FORMATS[version]({(1, 1): [7], (2, 1): [5]})))
    assert mesh.regions.tolist() == [5, 0]
    assert mesh.facet_tags.tolist() == [7]


@pytest.mark.parametrize("version", FORMATS)
def test_a_file_without_groups_is_a_mesh_without_tags(tmp_path, read, version):
    mesh = read(written(tmp_path, FORMATS[version]({}, ())))
    assert mesh.regions.tolist() == [0, 0]
    assert len(mesh.facets) == 0
    assert not mesh.region_names
    assert not mesh.facet_names


def test_format_two_keeps_the_groups_of_elements_that_share_an_entity(tmp_path):
    """As other programs write them: one entity, two groups."""
    lines = square_22().replace("2 2 5 1 1 2 3", "2 2 5 1 1 2 3").replace("2 2 6 2 1 3 4", "2 2 6 1 1 3 4")
    assert read_gmsh(written(tmp_path, lines)).regions.tolist() == [5, 6]


def test_curves_beside_the_domain_are_left_out(tmp_path, read):
    entities = {**SQUARE, (1, 4): [(1, "5 6")]}
    text = square_41({**GROUPS, (1, 4): [12]}, NAMES, entities, [*POINTS, "3 0 0", "4 0 0"])
    mesh = read(written(tmp_path, text))
    assert mesh.points.shape == (4, 2)
    assert 12 not in mesh.facet_tags


# ---- files that are refused


QUADRILATERAL = {(2, 1): [(3, "1 2 3 4")]}
SECOND_ORDER = {(2, 1): [(9, "1 2 3 5 6 7")]}
LINES = {(1, 1): [(1, "1 2")], (1, 2): [(1, "2 3")]}
MIDDLES = [*POINTS, "0.5 0 0", "1 0.5 0", "0.5 0.5 0"]
TWICE = [*NAMES, (1, 13, "middle")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not a mesh", r"does not begin with \$MeshFormat; save it with gmsh"),
        ("", r"does not begin with \$MeshFormat"),
        (square_41()[:260], "cannot be read as a gmsh mesh|holds cells of kind none"),
        (square_41(entities=QUADRILATERAL), "holds cells of kind [Qq]uad.* first-order simplices"),
        (square_41(entities=SECOND_ORDER, points=MIDDLES), "holds cells of kind .*ElementOrder = 1"),
        (square_22(entities=SECOND_ORDER, points=MIDDLES), "holds cells of kind .*ElementOrder = 1"),
        (square_41(entities=LINES), "holds lines .* put the surfaces into a physical group too"),
        (square_41(points=[*POINTS[:3], "0 1 0.5"]), "holds triangles and is a surface or curve in space"),
        (square_41(names=TWICE), "physical groups 9 and 13 have the same name 'middle'; rename one"),
        (square_41(names=[(1, 7, "rest")]), "called 'rest', which stands for all that no other .* rename the group"),
        (square_41(names=[(1, 7, "all")]), "called 'all', which stands for all of the boundary: rename the group"),
    ],
)
def test_bad_files_are_refused(tmp_path, read, text, message):
    with pytest.raises(ValueError, match=message):
        read(written(tmp_path, text))


@pytest.mark.parametrize("head", ["", "\n$MeshFormat\n4.1 0 8\n$EndMeshFormat\n"])
def test_a_script_that_is_called_a_mesh_is_not_run(tmp_path, head):
    """gmsh runs files without the head of a mesh as scripts."""
    mark = tmp_path / "mark"
    path = written(tmp_path, f'{head}SystemCall "touch {mark}";\n')
    with pytest.raises(ValueError, match=r"does not begin with \$MeshFormat"):
        read_gmsh(path)
    assert not mark.exists()


def test_a_script_beside_a_mesh_is_not_run(tmp_path, read):
    """gmsh runs NAME.msh.opt when it reads NAME.msh."""
    mark, path = tmp_path / "mark", written(tmp_path, square_41())
    for name in ("square.msh.opt", "square.opt"):
        (tmp_path / name).write_text(f'SystemCall "touch {mark}";\n')
    assert read(path).region_names == {"steel": 5, "air": 6}
    assert not mark.exists()


# ---- names of arrays

TWO = dict(points=[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], cells=[[0, 1, 2], [0, 2, 3]])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (dict(facet_names={7: "inflow"}), "facet_names has the name 7; a text is expected"),
        (dict(facet_names={"": 7}), "facet_names has the name ''"),
        (dict(facet_names=["inflow"]), "facet_names is a list; a dictionary is expected"),
        (dict(region_names={"steel": "1"}), r"region_names\['steel'\] is '1'; a tag is expected"),
        (dict(region_names={"steel": 1.0}), r"region_names\['steel'\] is 1.0; a tag is expected"),
        (dict(region_names={"steel": True}), r"region_names\['steel'\] is True; a tag is expected"),
        (dict(facet_names={"rest": 7}), "'rest', which stands for all that no other condition names"),
        (dict(facets=[[0, 1], [1, 0]], facet_tags=[1, 2]), "is in the groups 1 and 2; a facet belongs to one group"),
    ],
)
def test_bad_names_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        MeshArrays(**TWO, **names)


def test_names_are_copied_and_may_be_of_tags_that_nothing_carries():
    names = {"inflow": np.int64(7)}
    mesh = MeshArrays(**TWO, facet_names=names, region_names={"all": 0})
    names["other"] = 1
    assert mesh.facet_names == {"inflow": 7}
    assert mesh.region_names == {"all": 0}
    assert type(mesh.facet_names["inflow"]) is int
