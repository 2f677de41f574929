"""Programs of torch.export in operations that ONNX has.

ONNX has no factorisation, and torch's converter makes of a product with a sparse matrix a loop over its rows. Here a
product becomes gathers and sums over rows of similar length, without scattered additions, and the inverses of small
positive definite matrices are found by an elimination that is written out.

R rows, n columns, B samples; L entries of the longest row of a group.
"""

from __future__ import annotations

import logging
import re
import warnings
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import embedding

from fem_frames.files import one_line, quiet_libraries

BAG = torch.ops.aten.embedding_bag.padding_idx
FACTOR, INVERSE = torch.ops.aten.linalg_cholesky_ex.default, torch.ops.aten.cholesky_inverse.default
LARGEST = 2**31 - 2**24  # bytes: a file may have 2 GiB, with its operations


class RowSums(nn.Module):
    """A sparse matrix times (n, B), by gathers and sums.

    Rows are padded with zeros to the longest row of their group. In a group no row is longer than twice another, so the
    padded tables have less than twice as many entries.
    """

    def __init__(self, columns: Tensor, starts: Tensor, weights: Tensor) -> None:
        """The rows one after another: `columns` and `weights` of their entries, `starts` (R + 1) of the rows."""
        super().__init__()
        lengths = starts.diff().long()
        kinds = lengths.clamp(min=1).double().log2().ceil().long()  # 1, 2, 3 to 4, 5 to 8, … entries
        groups = [torch.nonzero(kinds == kind)[:, 0] for kind in kinds.unique()]
        self.sums = nn.ModuleList()
        for rows in groups:
            own = lengths[rows, None]  # (R, 1)
            slots = torch.arange(max(int(own.max()), 1), device=starts.device).expand(len(rows), -1)  # (R, L)
            # A padded entry repeats the row's first one with weight zero; an empty row may take any.
            entries = (starts[rows, None] + slots * (slots < own)).clamp(max=len(columns) - 1)
            self.sums.append(_PaddedSums(columns[entries], (weights[entries] * (slots < own))[..., None]))
        self.places = nn.Buffer(torch.cat(groups).argsort())

    def forward(self, x: Tensor) -> Tensor:
        """(n, B) to (R, B)."""
        sums = [part(x) for part in self.sums]
        return sums[0] if len(sums) == 1 else embedding(self.places, torch.cat(sums))


class _PaddedSums(nn.Module):
    """The rows of a group, all of one length."""

    def __init__(self, columns: Tensor, weights: Tensor) -> None:
        """`columns` (R, L), `weights` (R, L, 1)."""
        super().__init__()
        self.columns, self.weights = nn.Buffer(columns), nn.Buffer(weights)

    def forward(self, x: Tensor) -> Tensor:
        return (embedding(self.columns, x) * self.weights).sum(1)


def inverse(matrices: Tensor) -> Tensor:
    """The inverses of positive definite matrices (…, n, n), by Gauss and Jordan's elimination without pivots.

    Each step exchanges the first unknown for its right-hand side, and moves it to the end: after n steps all are in
    order again.
    """
    A = matrices
    for _ in range(A.shape[-1]):
        pivot, column, rest = A[..., :1, :1], A[..., 1:, :1], A[..., 1:, 1:]
        scaled = column / pivot
        upper = torch.cat([rest - scaled * column.mT, scaled], -1)
        A = torch.cat([upper, torch.cat([scaled.mT, -pivot.reciprocal()], -1)], -2)
    return -A


def check_onnx() -> None:
    """Raises a ValueError unless there is what converts to ONNX."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("ONNX needs two more packages: pip install onnx onnxscript; or write a .pt2 file") from error


def as_onnx(program: torch.export.ExportedProgram, example: tuple[Tensor, ...], shapes: Any) -> bytes:
    """The content of an .onnx file, from y to w."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.6 about tables that are no buffers
        module = in_onnx_operations(program).eval()
    logged = logging.root.manager.disable
    try:
        logging.disable(logging.ERROR)  # such as that torchvision is missing
        with quiet_libraries(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = torch.onnx.export(
                module,
                example,
                dynamic_shapes=shapes,
                dynamo=True,
                verbose=False,
                input_names=["y"],
                output_names=["w"],
            )
    except Exception as error:  # with explanations of many lines, for those who work on the converter
        named = re.search(r"No ONNX function found for <OpOverload\(op='(.*?)'", str(error))
        why = f"it has no operation for {named[1]}" if named else one_line(error).split(". ")[0]
        raise ValueError(f"the net cannot be converted to ONNX: {why}; write a .pt2 file") from error
    finally:
        logging.disable(logged)
    assert converted is not None
    tables = (value.const_value for value in converted.model.graph.initializers.values())
    size = sum(int(table.nbytes) for table in tables if table is not None)
    if size >= LARGEST:
        raise ValueError(
            f"the net has {size} bytes of weights and tables, more than an ONNX file may: write a .pt2 file"
        )
    model = converted.model_proto
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes:
            del node.metadata_props[:]  # lines of code, which take more space than tables
    return bytes(model.SerializeToString())


def in_onnx_operations(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """The same program by gathers, sums and eliminations instead of sparse products and inverses."""
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    graph, made = module.graph, dict[tuple[str, ...], str]()
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            if node.target is BAG and _is_product(node):
                tables = [node.args[1], node.args[2], node.args[6]]
                key = tuple(str(table.target) for table in tables)
                if key not in made:
                    made[key] = f"product{len(made)}"
                    module.add_submodule(made[key], RowSums(*(_constant(module, name) for name in key)))
                first = graph.call_module(made[key], (node.args[0],))
                for user in list(node.users):
                    user.replace_all_uses_with(first)
            elif node.target is INVERSE and _is_first(node.args[0], FACTOR):
                factors = node.args[0].args[0]
                if len(node.args) == len(factors.args) == 1:
                    node.replace_all_uses_with(graph.call_function(inverse, factors.args))
    graph.eliminate_dead_code()
    return fx.GraphModule(module, graph)  # unlike that of the program, it knows eval()


def _is_product(node: fx.Node) -> bool:
    """Whether sums of rows are taken, with weights, tables are constant, and nothing but the sums is used."""
    if len(node.args) < 8 or node.args[4] != 0 or not node.args[7] or node.args[8:] not in ((), (None,)):
        return False
    tables = (node.args[1], node.args[2], node.args[6])
    constant = all(isinstance(table, fx.Node) and table.op == "get_attr" for table in tables)
    return constant and all(_is_first(user, BAG) or not user.users for user in node.users)


def _is_first(node: Any, operation: Any) -> bool:
    """Whether the node is the first result of an operation."""
    if not isinstance(node, fx.Node) or node.target is not getitem or node.args[1:] != (0,):
        return False
    return isinstance(node.args[0], fx.Node) and node.args[0].target is operation


def _constant(module: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    return getattr(module.get_submodule(path), last)
