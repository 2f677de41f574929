"""Draws the layers of the packages, from the imports in the code, as docs/layers.png.

    python docs/draw_layers.py [--out FILE]

A row imports a column. Layers stand in the order of LAYERS, and a module that loads imports only from its own layer and
from layers before it; tests/test_imports.py checks that. Imports inside functions may go elsewhere, and are drawn in
another colour. The numbers count modules that import.
"""

import ast
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("fem_frames", "nets", "training")
# From what everything builds on to what builds on everything. A module belongs to the layer with the longest name that
# its own begins with. Two packages stand in two layers: DOLFINx's door is below the frame and PETSc's reference
# solutions above it, and the hierarchy of meshes knows the problem that it is made for.
LAYERS: dict[str, tuple[str, ...]] = {
    "files, memory, messages, …": ("fem_frames",),
    "mesh": ("fem_frames.mesh",),
    "problem": ("fem_frames.problem",),
    "mesh.hierarchy": ("fem_frames.mesh.hierarchy",),
    "formulations.registry": ("fem_frames.formulations.registry",),
    "fenicsx: door, refinement": tuple(
        f"fem_frames.fenicsx.{name}"
        for name in ("absence", "door", "petsc", "parallel", "refinement", "form_scalars", "weak_forms")
    ),
    "frame": ("fem_frames.frame",),
    "fenicsx: reference, sweep": ("fem_frames.fenicsx",),
    "operators": ("fem_frames.operators",),
    "formulations": ("fem_frames.formulations",),
    "outputs": (
        "fem_frames.outputs",
        "fem_frames.output_groups",
        "fem_frames.output_records",
        "fem_frames.functionals",
    ),
    "solvers": ("fem_frames.solvers",),
    "studies": ("fem_frames.studies",),
    "nets": ("nets",),
    "training.run: processes, devices": ("training.run.distributed", "training.run.devices"),
    "training": ("training",),
    "training.optimizers": ("training.optimizers",),
    "training.run": ("training.run",),
    "training.rivals, benchmarks": (
        "training.rivals",
        *(f"training.{name}benchmark" for name in ("", "query_", "rival_")),
    ),
    "training.experiments": ("training.experiments",),
    "training.comparison": ("training.comparison",),
    "training.service": ("training.service",),
    "training.scaling": ("training.scaling",),
    "commands": ("fem_frames.commands",),
}


def modules() -> dict[str, ast.Module]:
    """All modules of the three packages, by name; the `__init__` of packages only list names or explain."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "__init__.py":
                found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = ast.parse(path.read_text())
    return found


def loading(tree: ast.Module) -> ast.Module:
    """The imports that are done while a module loads: outside of functions, and not for type checkers alone."""
    found: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.Try | ast.With):
            found += loading(ast.Module(node.body, [])).body
    return ast.Module(found, [])


def imported(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """The modules of the three packages that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            continue
        yield from (name for name in names if name in known)


def layer_of(module: str) -> str:
    """The layer that a module is in."""
    begin = {prefix: layer for layer, prefixes in LAYERS.items() for prefix in prefixes}
    return begin[max((prefix for prefix in begin if f"{module}.".startswith(f"{prefix}.")), key=len)]


def going_back() -> list[str]:
    """Imports, at load time, of modules in later layers."""
    known, order = modules(), list(LAYERS)
    return sorted(
        f"{name} imports {other}"
        for name, tree in known.items()
        for other in imported(loading(tree), known)
        if order.index(layer_of(other)) > order.index(layer_of(name))
    )


def counts() -> Counter[tuple[str, str]]:
    """How many modules of one layer import from another one."""
    known = modules()
    return Counter(
        pair
        for name, tree in known.items()
        for pair in {(layer_of(name), layer_of(other)) for other in imported(tree, known)}
        if pair[0] != pair[1]
    )


def draw(path: Path) -> None:
    """The matrix of layers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    found, labels = counts(), list(LAYERS)
    figure = Figure(figsize=(11.0, 8.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, importer in enumerate(labels):
        axes.add_patch(Rectangle((i - 0.5, i - 0.5), 1, 1, color="0.85"))
        for k, other in enumerate(labels):
            count = found[importer, other]
            if count:
                colour = "tab:blue" if k < i else "tab:orange"
                axes.add_patch(Rectangle((k - 0.45, i - 0.45), 0.9, 0.9, color=colour, alpha=0.35))
                axes.text(k, i, str(count), ha="center", va="center", fontsize=9)
    axes.set_yticks(range(len(labels)), labels)
    short = [label.split(",")[0] for label in labels]
    axes.set_xticks(range(len(labels)), short, rotation=50, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set(xlim=(-0.5, len(labels) - 0.5), ylim=(len(labels) - 0.5, -0.5), aspect="equal")
    axes.set_xlabel(
        "A row imports a column; the number counts importing modules.\n"
        "Blue: from layers before. Orange: inside functions, when they are called."
    )
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/layers.png", help="default: docs/layers.png")
    draw(parser.parse_args().out)
