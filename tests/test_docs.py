"""The README and the pages under docs/ are right: their examples run, their options exist, their links lead somewhere.

Started as a program with the name of a page, this file runs that page in the working directory: its blocks of Python in
one namespace and, between them, its command lines; services run until the end of the page.
"""

import contextlib
import importlib
import inspect
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_imports import ROOT, declared

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Command lines of these pages train or measure for minutes: they are parsed, those of all other pages are run.
LONG = {"README.md", "training.md", "measurements.md", "flux.md"}
# What examples print that is the same on every machine.
PRINTED = {
    "README.md": ["trained ", "energy norm, against the discrete solution"],
    "problems.md": ["1056 nodal values, 1428 frame coefficients\n(4, 1089)"],
    "formulations.md": ["iterations, 2 refinements"],
    "meshes.md": ["278 points, 465 triangles", "holes     3    43     2.817   a ∂u/∂n = 5 (u_outside(x) - u)"],
    "tutorial.md": ["(energy norm, against the exact solution)", "written      plate.xdmf"],
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTERS = ("mpirun", "torchrun")


def blocks(page):
    """Language, text and first line of every fenced block."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield found[1], found[2], text[: found.start()].count("\n") + 2


def commands(text):
    """The words of every command line of a block; a backslash continues a line, a hash starts a comment."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            yield words[:end]
            words = words[end + 1 :]


def own_words(words):
    """What follows `fem-frames` if that is what is run, by itself or by a launcher; otherwise None."""
    if words[0] == "fem-frames":
        return words[1:]
    if words[0] in STARTERS:
        return words[words.index("fem-frames") + 1 :]
    return None


# ---- running a page, in a process of its own


def has_examples(page):
    """Whether running the page runs anything."""
    for language, text, _ in blocks(page):
        if language == "python":
            return True
        if language == "sh" and page.name not in LONG and any(own_words(words) is not None for words in commands(text)):
            return True
    return False


def run_page(page):
    clean = dict(os.environ)  # before MPI starts here: an mpirun that inherits what it adds refuses to start
    namespace = {"__name__": "page"}
    with contextlib.ExitStack() as services:
        run_blocks(page, clean, namespace, services)


def run_blocks(page, clean, namespace, services):
    url = "http://127.0.0.1:4242"  # of a service on the page, whose port may be in use here
    for language, text, line in blocks(page):
        if language == "python":
            text = text.replace("http://127.0.0.1:4242", url)
            file = re.match(r"# (\w+\.py)\n", text)
            if file:  # the content of a file, which the page goes on to use
                Path(file[1]).write_text(text)
            else:
                exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)
        elif language == "sh" and page.name not in LONG:
            for words in commands(text):
                if words[:2] == ["fem-frames", "serve"]:
                    from services import Service

                    url = services.enter_context(Service(*words[2:])).url
                elif own_words(words) is not None:
                    run_command(words, clean)


def run_command(words, clean):
    from fem_frames.commands import main

    print("$", *words, flush=True)
    if words[0] == "mpirun":
        start = words[: words.index("fem-frames")]
        subprocess.run([*start, sys.executable, "-m", "fem_frames.commands", *own_words(words)], env=clean, check=True)
    elif words[0] == "fem-frames":
        main(words[1:])


@pytest.mark.serial
@pytest.mark.parametrize("page", [page for page in PAGES if has_examples(page)], ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, tmp_path):
    shutil.copy(ROOT / "demos/plate.msh", tmp_path)  # the file that docs/meshes.md is about
    done = subprocess.run(
        [sys.executable, __file__, str(page)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in PRINTED.get(page.name, ()):
        assert text in done.stdout


# ---- command lines


@pytest.mark.serial
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_on_pages_can_be_parsed(page):
    from fem_frames.commands.parser import parse

    for language, text, line in blocks(page):
        for words in commands(text) if language == "sh" else ():
            own = own_words(words)
            if own is not None:
                try:
                    parse(own)
                except SystemExit as error:
                    pytest.fail(f"{page.name}, block at line {line}: {' '.join(words)}: {error}")


INLINE = re.compile(r"`(?:mpirun -n \d |torchrun [^`]*?)?fem-frames\s+([a-z][a-z-]*)([^`]*)`")
PROSE = [*PAGES, ROOT / "docs/results/README.md", ROOT / "docker/welcome.txt", ROOT / "CHANGELOG.md"]


@pytest.mark.serial
@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_options_that_sentences_name_exist(page):
    """Commands inside sentences may leave things out; the subcommand and all options in them exist."""
    from fem_frames.commands.parser import make_parser

    (subcommands,) = (a.choices for a in make_parser()._actions if isinstance(a.choices, dict))
    for name, rest in INLINE.findall(page.read_text()):
        assert name in subcommands, name
        known = subcommands[name]._option_string_actions
        unknown = [option for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest) if option not in known]
        assert not unknown, f"fem-frames {name} has no option {unknown[0]}"


@pytest.mark.serial
def test_the_page_of_commands_shows_all_of_them():
    from fem_frames.commands.parser import COMMANDS

    shown = [own_words(words) for _, text, _ in blocks(ROOT / "docs/commands.md") for words in commands(text)]
    missing = {c.__name__.rpartition(".")[2].replace("_", "-") for c in COMMANDS} - {
        words[0] for words in shown if words
    }
    assert not missing


@pytest.mark.serial
def test_scripts_on_pages_exist():
    for page in PROSE:
        for script in re.findall(r"(?:demos|docs|docker)/\w+(?:\.py)?(?=[\s`])", page.read_text()):
            assert (ROOT / script).exists(), f"{page.name}: {script}"


# ---- links and names


def anchors(page):
    """The names that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.serial
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if link.startswith("https://"):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


@pytest.mark.serial
def test_the_readme_is_short_and_links_to_every_page():
    text = (ROOT / "README.md").read_text()
    assert text.count("\n") <= 150
    for page in PAGES[1:]:
        assert f"docs/{page.name}" in text, page.name


# ---- public names


def public(package):
    """The public names of a package and what they stand for."""
    module = importlib.import_module(package)
    return [(name, getattr(module, name)) for name in dir(module) if name in declared(package)[1]]


PACKAGES = ("fem_frames", "nets", "training")


@pytest.mark.serial
@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_on_a_page(package):
    text = "\n".join(page.read_text() for page in PAGES)
    missing = [name for name, _ in public(package) if not re.search(rf"\b{name}\b", text)]
    assert not missing


@pytest.mark.serial
@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_of_public_names_have_an_example_or_link_to_a_page(package):
    for name, value in public(package):
        if inspect.isclass(value) or inspect.isfunction(value):
            text = value.__doc__ or ""
            links = re.findall(r"docs/\w+\.md", text)
            assert links or f"{name}(" in text, f"{package}.{name} has no line like: See docs/problems.md."
            assert all((ROOT / link).exists() for link in links), f"{package}.{name}: {links}"


# ---- the picture of the layers


def layers():
    return runpy.run_path(str(ROOT / "docs/draw_layers.py"))


@pytest.mark.serial
def test_every_package_is_in_the_picture_and_in_the_table():
    shown, table = layers()["LAYERS"].values(), (ROOT / "docs/architecture.md").read_text()
    inits = [path for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    rooms = {".".join(path.parent.relative_to(ROOT).parts) for path in inits}
    assert rooms <= {prefix for prefixes in shown for prefix in prefixes}
    assert not [room for room in rooms - {"fem_frames"} if f"| `{room}` |" not in table]


@pytest.mark.serial
def test_the_picture_of_the_layers_is_drawn_from_the_imports(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["draw_layers.py", "--out", str(tmp_path / "layers.png")])
    runpy.run_path(str(ROOT / "docs/draw_layers.py"), run_name="__main__")
    assert (tmp_path / "layers.png").read_bytes().startswith(b"\x89PNG")


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))


def test_no_page_has_a_place_to_fill_in():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        assert not re.search(r"@[A-Z_]+@", page.read_text()), page


# ---- quotes


def quoted():
    return runpy.run_path(str(ROOT / "docs/quoted.py"))


def test_pages_quote_what_their_files_say():
    assert quoted()["outdated"]() == [], "python docs/quoted.py writes them"


def test_every_quote_is_on_a_page_and_a_changed_number_is_found():
    names = quoted()
    text = "\n".join((ROOT / page).read_text() for page in names["PAGES"])
    found = dict(names["MARKED"].findall(text))
    assert set(found) == set(names["QUOTES"])
    for name, body in found.items():
        mark = f"<!-- quoted: {name} -->{{}}<!-- end of {name} -->"
        wrong = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), body)
        assert names["renewed"](mark.format(wrong)).split() == mark.format(body).split()
        assert wrong != body
