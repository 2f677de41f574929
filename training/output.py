"""Writes solutions for ParaView and DOLFINx, and the net for other programs."""

from __future__ import annotations

import errno
import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np
import torch

from fem_frames.fenicsx.absence import FEniCSxError
from fem_frames.files import check_writable, one_line, quiet_libraries, staging, written_whole
from fem_frames.frame.arrays import FrameArrays
from fem_frames.mesh.geometry import Floats
from nets.frame_net import FrameNet
from training.onnx_programs import as_onnx, check_onnx

FORMATS = (".xdmf", ".vtu", ".vtk", ".pvd")
SERIES = (".xdmf", ".pvd")
_CELLS = {1: "line", 2: "triangle", 3: "tetra"}


def make_function(arrays: FrameArrays, values: Floats, name: str, comm: Any = None) -> Any:
    """A DOLFINx function with values (N,) or (N, d) at the points of the finest mesh, or (K, d) on its cells."""
    from fem_frames.fenicsx import door

    mesh = door.create(arrays.points, arrays.levels[-1].cells, door.MPI.COMM_SELF if comm is None else comm)
    return (door.nodal_function if len(values) == len(arrays.points) else door.cell_function)(mesh, values, name)


def check_format(path: Path, count: int = 1) -> None:
    """Raises a ValueError if `count` solutions cannot be written to the path."""
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot write {path}: the name must end in {', '.join(FORMATS)}")
    if count > 1 and path.suffix not in SERIES:
        raise ValueError(
            f"cannot write {count} solutions to {path}, which holds one: for a series the name must end in "
            + " or ".join(SERIES)
        )
    for file in written_files(path, count):
        check_writable(file)


def written_files(path: Path, count: int = 1) -> list[Path]:
    """The files that `write_series` makes for `count` solutions; the file that refers to the others comes last."""
    beside = [path.with_suffix(".h5")] if path.suffix == ".xdmf" else []
    if path.suffix == ".pvd":
        beside += [path.with_name(f"{path.stem}_{step:04d}.vtu") for step in range(count)]
    if count > 1:
        beside.append(path.with_suffix(".json"))
    return [*beside, path]


def write_series(arrays: FrameArrays, steps: Sequence[Mapping[str, Floats]], y: Floats | None, path: Path) -> None:
    """Writes several solutions for y (B, p) on the finest mesh; ParaView shows them as the times 0, 1, ….

    DOLFINx writes .xdmf with an .h5 file; meshio writes .pvd with one .vtu file per solution, or a single .vtu or .vtk
    file. For several solutions a .json file lists the y of each time. The files are moved into place when all are
    complete; if one cannot be moved, the new ones are removed.
    """
    check_format(path, len(steps))
    write = {".xdmf": _write_xdmf, ".pvd": _write_pvd}.get(path.suffix, _write_by_meshio)
    with staging() as place:
        write(arrays, steps, place / path.name)
        if len(steps) > 1:
            record = {"times": list(range(len(steps))), "y": None if y is None else np.asarray(y).tolist()}
            (place / path.name).with_suffix(".json").write_text(json.dumps(record))
        new: list[Path] = []
        try:
            for file in written_files(path, len(steps)):
                new += [] if file.exists() else [file]
                with written_whole(file) as taken:
                    taken.write((place / file.name).read_bytes())
        except BaseException:
            for file in new:
                file.unlink(missing_ok=True)
            raise


def _write_xdmf(arrays: FrameArrays, steps: Sequence[Mapping[str, Floats]], path: Path) -> None:
    try:
        from fem_frames.fenicsx import door
    except FEniCSxError as error:
        raise ValueError(f"cannot write {path.name}: {error.fact}; write a .vtu file instead") from error
    cells = arrays.levels[-1].cells
    least = arrays.points.nbytes + cells.nbytes + sum(values.nbytes for fields in steps for values in fields.values())
    # On a full disk HDF5 prints forty lines and later ends the process, so the space is checked first.
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 * least + 2**16)
    path.unlink()
    with quiet_libraries():
        door.write_xdmf_series(path, arrays.points, cells, steps)
    if path.with_suffix(".h5").stat().st_size < least:  # DOLFINx does not report it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write_pvd(arrays: FrameArrays, steps: Sequence[Mapping[str, Floats]], path: Path) -> None:
    files = written_files(path, len(steps))[: len(steps)]
    lines = []
    for time, (fields, file) in enumerate(zip(steps, files, strict=True)):
        _write_by_meshio(arrays, [fields], file)
        lines.append(f'    <DataSet timestep="{time}" part="0" file={quoteattr(file.name)}/>')
    body = "\n".join(["  <Collection>", *lines, "  </Collection>"])
    path.write_text(f'<?xml version="1.0"?>\n<VTKFile type="Collection" version="0.1">\n{body}\n</VTKFile>\n')


def _write_by_meshio(arrays: FrameArrays, steps: Sequence[Mapping[str, Floats]], path: Path) -> None:
    try:
        import meshio
    except ImportError as error:
        raise ValueError("writing for ParaView needs meshio: pip install meshio") from error
    (fields,) = steps
    points = np.zeros((len(arrays.points), 3))
    points[:, : arrays.dimension] = arrays.points
    whole = {name: v if v.ndim == 1 else np.pad(v, ((0, 0), (0, 3 - v.shape[1]))) for name, v in fields.items()}
    at_points = {name: np.array(v) for name, v in whole.items() if len(v) == len(points)}
    on_cells = {name: [v] for name, v in whole.items() if len(v) != len(points)}
    mesh = meshio.Mesh(points, [(_CELLS[arrays.dimension], arrays.levels[-1].cells)], at_points, on_cells)
    meshio.write(path, mesh, file_format=path.suffix[1:])


def export_net(net: FrameNet, parameters: int, path: Path) -> None:
    """Writes the net as a program of torch.export or ONNX for any number of samples y in float32 or float64.

    The program has no checks: a net multigrid does not fall back to the Chebyshev cycle there.
    """
    if path.suffix not in (".pt2", ".onnx"):
        raise ValueError(f"cannot write {path}: the name must end in .pt2 (torch.export) or .onnx")
    check_writable(path)
    if path.suffix == ".onnx":
        check_onnx()
    dtype = torch.float64 if net.decay.dtype == torch.float64 else torch.float32
    example = (torch.zeros(3, parameters, dtype=dtype, device=net.decay.device),)
    shapes = ({0: torch.export.Dim("batch", min=1, max=2**31)},)  # torch 2.6 wants a largest number
    trained = net.training
    net.eval()
    try:
        program = _traced(net, example, shapes)
    finally:
        net.train(trained)
    content = _saved(program) if path.suffix == ".pt2" else as_onnx(program, example, shapes)
    with written_whole(path) as file:
        file.write(content)


def _traced(net: FrameNet, example: tuple[torch.Tensor, ...], shapes: Any) -> torch.export.ExportedProgram:
    try:
        return torch.export.export(net, example, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # many kinds, with long explanations
        why = one_line(error).split(". ")[0]
        raise ValueError(
            f"torch.export cannot trace the net: {why}; functions of yours must consist of torch operations, without "
            "conditions on values and without Python numbers made of them or of the number of samples, as by len(y)"
        ) from error


def _saved(program: torch.export.ExportedProgram) -> bytes:
    """The content of a .pt2 file."""
    made = io.BytesIO()  # torch ends the process if it cannot write a file
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No complete tensor found")  # about views of tables; copies are saved
        torch.export.save(program, made)
    return made.getvalue()
