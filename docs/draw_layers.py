"""Draws which package imports which, from the imports in the code, as docs/layers.png.

    python docs/draw_layers.py [--out FILE]

A row imports a column. Packages stand in the order of ORDER, so imports of what comes before are left of the diagonal;
the others, which go back up the order, are drawn in another colour. The numbers count modules that import.
"""

import ast
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# From what everything builds on to what builds on everything, as docs/architecture.md explains.
ORDER = (
    "fem_frames",
    *(f"fem_frames.{room}" for room in ("mesh", "problem", "fenicsx", "frame", "operators", "formulations", "solvers")),
    *("fem_frames.studies", "nets", "training", "training.optimizers", "training.run"),
    *("training.rivals", "training.experiments", "fem_frames.commands"),
)
PACKAGES = ("fem_frames", "nets", "training")
SHARED = "files, memory, messages"


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def modules() -> dict[str, ast.Module]:
    """All modules of the three packages, by name; the packages' own lists of public names are no modules of a room."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.parent != ROOT / package or path.name != "__init__.py":
                found[module_of(path)] = ast.parse(path.read_text())
    return found


def imported(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """The modules of the three packages that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        else:
            continue
        yield from (name for name in names if name in known or name in PACKAGES)


def room_of(module: str) -> str:
    """The package that a module is in: the longest name of ORDER that its name begins with."""
    return max((room for room in ORDER if f"{module}.".startswith(f"{room}.")), key=len)


def counts() -> Counter[tuple[str, str]]:
    """How many modules of one package import from another one."""
    known = modules()
    return Counter(
        pair
        for name, tree in known.items()
        for pair in {(room_of(name), room_of(other)) for other in imported(tree, known)}
        if pair[0] != pair[1]
    )


def draw(path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    found, size = counts(), len(ORDER)
    figure = Figure(figsize=(9.5, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for i, importer in enumerate(ORDER):
        axes.add_patch(Rectangle((i - 0.5, i - 0.5), 1, 1, color="0.85"))
        for k, other in enumerate(ORDER):
            count = found[importer, other]
            if count:
                colour = "tab:blue" if k < i else "tab:orange"
                axes.add_patch(Rectangle((k - 0.45, i - 0.45), 0.9, 0.9, color=colour, alpha=0.35))
                axes.text(k, i, str(count), ha="center", va="center", fontsize=9)
    labels = [SHARED if room == "fem_frames" else room for room in ORDER]
    short = [label.split(",")[0].rpartition(".")[2] for label in labels]
    axes.set_yticks(range(size), labels)
    axes.set_xticks(range(size), short, rotation=50, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal")
    axes.set_xlabel(
        "A row imports a column; the number counts importing modules.\n"
        "Blue: down the order. Orange: back up, between modules of packages that work together."
    )
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/layers.png", help="default: docs/layers.png")
    draw(parser.parse_args().out)
