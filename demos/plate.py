"""A plate of 2 × 1 with two round holes, made of steel, glue and air, as a gmsh file: demos/plate.msh.

    python demos/plate.py [--size 0.1] [--out FILE]

It needs gmsh (pip install gmsh). The file demos/plate.msh, made by default, is what docs/meshes.md starts from.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

HOLES = ((0.5, 0.5, 0.2), (1.5, 0.5, 0.25))  # x, y, radius
STRIPS = {"steel": (0.0, 0.95), "glue": (0.95, 1.05), "air": (1.05, 2.0)}  # from x to x


def make_plate(path: str | Path, size: float = 0.13, version: float = 4.1, binary: bool = False) -> Path:
    """Writes the mesh: cells of this size, half as large around the holes; surfaces and curves have names."""
    import gmsh

    gmsh.initialize(interruptible=False)
    try:
        gmsh.option.setNumber("General.Terminal", 0)
        gmsh.model.add("plate")
        _geometry(gmsh, size)
        gmsh.model.mesh.generate(2)
        gmsh.option.setNumber("Mesh.MshFileVersion", version)
        gmsh.option.setNumber("Mesh.Binary", int(binary))
        gmsh.write(str(path))
    finally:
        gmsh.finalize()
    return Path(path)


def _geometry(gmsh: Any, size: float) -> None:
    shapes = gmsh.model.occ
    strips = [(2, shapes.addRectangle(low, 0, 0, high - low, 1)) for low, high in STRIPS.values()]
    disks = [(2, shapes.addDisk(x, y, 0, radius, radius)) for x, y, radius in HOLES]
    cut, _ = shapes.cut(strips, disks)
    shapes.fragment(cut, [])  # strips that touch share their points
    shapes.synchronize()
    surfaces: dict[str, list[int]] = {name: [] for name in STRIPS}
    for _, tag in gmsh.model.getEntities(2):
        middle = gmsh.model.occ.getCenterOfMass(2, tag)[0]
        surfaces[next(name for name, (low, high) in STRIPS.items() if low < middle < high)].append(tag)
    curves: dict[str, list[int]] = {"inflow": [], "outflow": [], "holes": [], "wall": []}
    for _, tag in gmsh.model.getBoundary(gmsh.model.getEntities(2), oriented=False):
        low, high = (gmsh.model.getBoundingBox(1, tag)[k : k + 2] for k in (0, 3))
        on_side = {"inflow": high[0] < 1e-3, "outflow": low[0] > 2 - 1e-3, "wall": high[1] < 1e-3 or low[1] > 1 - 1e-3}
        curves[next((name for name, on in on_side.items() if on), "holes")].append(tag)
    for dimension, groups in ((2, surfaces), (1, curves)):
        for tag, (name, entities) in enumerate(groups.items(), start=1):
            gmsh.model.addPhysicalGroup(dimension, entities, tag, name)
    corners = gmsh.model.getBoundary([(1, tag) for tag in curves["holes"]], combined=False, oriented=False)
    gmsh.model.mesh.setSize(gmsh.model.getEntities(0), size)
    gmsh.model.mesh.setSize(corners, size / 2)
    for tag in curves["holes"]:  # a closed curve has one corner, which would decide its size alone
        gmsh.model.mesh.setTransfiniteCurve(tag, max(8, round(gmsh.model.occ.getMass(1, tag) / size * 2)) + 1)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=float, default=0.13, help="largest size of cells; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("plate.msh"), help="default: %(default)s")
    parsed = parser.parse_args()
    print(make_plate(parsed.out, parsed.size))
