"""Solutions for ParaView and DOLFINx, and the net alone for other programs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fem_frames.absence import FEniCSxError
from fem_frames.arrays import FrameArrays
from fem_frames.files import check_writable
from fem_frames.mesh import Floats
from nets import CoefficientNet

FORMATS = (".xdmf", ".vtu", ".vtk")
_CELLS = {1: "line", 2: "triangle", 3: "tetra"}


def nodal_function(arrays: FrameArrays, values: Floats, name: str, comm: Any = None) -> Any:
    """A DOLFINx function with the values (N,) at the points of the finest mesh."""
    from fem_frames import dolfinx_door as door

    mesh = door.create(arrays.points, arrays.levels[-1].cells, door.MPI.COMM_SELF if comm is None else comm)
    return door.nodal_function(mesh, values, name)


def check_format(path: Path) -> None:
    """A ValueError if fields cannot be written to the path."""
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot write {path}: the name must end in {', '.join(FORMATS)}")
    check_writable(path)


def write_fields(arrays: FrameArrays, fields: Mapping[str, Floats], path: Path) -> None:
    """Fields on the finest mesh, at points (N,) or on cells (K, d): .xdmf, with an .h5 file beside it, by DOLFINx,
    otherwise by meshio."""
    check_format(path)
    if path.suffix == ".xdmf":
        try:
            from fem_frames import dolfinx_door as door
        except FEniCSxError as error:
            raise ValueError(f"cannot write {path}: {error.fact}; write a .vtu file instead") from error
        with tempfile.TemporaryDirectory(dir=path.resolve().parent, prefix=".") as place:
            door.write_xdmf(Path(place) / path.name, arrays.points, arrays.levels[-1].cells, **fields)
            for made in sorted(Path(place).iterdir()):  # the .h5 file first
                made.replace(path.resolve().parent / made.name)
        return
    try:
        import meshio
    except ImportError as error:
        raise ValueError("writing for ParaView needs meshio: pip install meshio") from error
    points = np.zeros((len(arrays.points), 3))
    points[:, : arrays.dimension] = arrays.points
    at_points = {name: np.array(v) for name, v in fields.items() if v.ndim == 1}
    on_cells = {name: [np.pad(v, ((0, 0), (0, 3 - v.shape[1])))] for name, v in fields.items() if v.ndim == 2}
    mesh = meshio.Mesh(points, [(_CELLS[arrays.dimension], arrays.levels[-1].cells)], at_points, on_cells)
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        meshio.write(part, mesh, file_format=path.suffix[1:])
        part.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}; is there room?") from error
    finally:
        part.unlink(missing_ok=True)


def export_net(net: CoefficientNet, parameters: int, path: Path) -> None:
    """The net as a program of torch.export, or of ONNX, for any number of samples y in float32, or float64."""
    if path.suffix not in (".pt2", ".onnx"):
        raise ValueError(f"cannot write {path}: the name must end in .pt2 (torch.export) or .onnx")
    check_writable(path)
    dtype = torch.float64 if net.decay.dtype == torch.float64 else torch.float32
    example = (torch.zeros(3, parameters, dtype=dtype, device=net.decay.device),)
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    net.eval()
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        if path.suffix == ".pt2":
            torch.export.save(torch.export.export(net, example, dynamic_shapes=shapes, strict=False), part)
        else:
            try:
                import onnx  # noqa: F401
                import onnxscript  # noqa: F401
            except ImportError as error:
                advice = "pip install onnx onnxscript; or write a .pt2 file"
                raise ValueError(f"ONNX needs two packages more: {advice}") from error
            program = torch.onnx.export(net, example, dynamic_shapes=shapes, dynamo=True, verbose=False)
            assert program is not None
            program.save(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        net.train()
