"""Bad input for every command, with what must be said of it; `%` stands for what `make_folder` puts into the folder."""

import json
import os

import numpy as np
import torch
from strangers import array_bytes, header, members, with_record, write_members

from fem_frames.commands import main

LEVELS = ["--levels", "3"]
QUARTERS = ["--problem", "quarters", "--formulation", "least-squares", *LEVELS]
SMALL = [*QUARTERS, "--epochs", "2", "--rank", "2", "--test-samples", "4", "--quiet"]
TRAIN, NEW = ["train", *SMALL], ["--out", "x"]
SQUARE = ["--problem", "checkerboard", *LEVELS]
EXPORT, REFERENCE = ["export", *SQUARE, *NEW], ["reference", *SQUARE, "--samples", "2", *NEW]
CONDITION, QUERY = ["condition", *QUARTERS], ["query", "run", "--y", "1,1,1,1"]
LONG = "n" * 300
MINE = ["--levels", "3", "--epochs", "2", "--test-samples", "2", "--quiet", *NEW]

PROBLEM_FILES = {
    "three.py": "problem = 3\n",
    "syntax.py": "def broken(:\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "fails.py": "def deep():\n    raise OSError('line one\\nline two')\ndeep()\n",
    "maker.py": "def problem(size=1):\n    return [1][size]\n",
    "other.py": "def problem(size=1):\n    return size\n",
    "coefficient.py": "coefficient = Pointwise(lambda x, y: y[..., 0] / missing)\n",
    "shape.py": "coefficient = Pointwise(lambda x, y: x[:, 0])\n",
    "alone.py": "coefficient = Pointwise(lambda x: x[..., 0])\n",
    "negative.py": "coefficient = Pointwise(lambda x, y: 0 * x[..., 0] - y[..., 0])\n",
    "source.py": "def source(x, y):\n    return x[..., 0].nonsense\n",
    "nan.py": "source = lambda x, y: x[..., 0] * float('nan')\n",
    "regions.py": "def regions(x):\n    raise RuntimeError('no map')\n",
    "half.py": "regions = lambda x: x[:, 0]\n",
    "dirichlet.py": "dirichlet = lambda x: x[:, 7] > 0\n",
    "nowhere.py": "dirichlet = lambda x: x[:, 0] > 7\n",
    "value.py": "dirichlet_value = lambda x: np.ones(3)\n",
    "box.py": "parameters = Uniform((2.0,), (1.0,))\n",
}
"""Problem files; those that define a part of a problem get the others from `whole`."""


def whole(name, text):
    if name in ("three.py", "syntax.py", "exits.py", "fails.py", "maker.py", "other.py"):
        return text
    return (
        "import numpy as np\nfrom fem_frames import ByRegion, Grid, Pointwise, Problem, Uniform\n"
        "coefficient, parameters, source = ByRegion.each(1), Uniform((1.0,), (2.0,)), 1.0\n"
        "regions, dirichlet, dirichlet_value = None, 'all', 0.0\n"
        f"{text}"
        "problem = Problem(Grid((1, 1)), coefficient, parameters, source, dirichlet, dirichlet_value, regions=regions)\n"
    )


def make_folder(made):
    """A small run, an experiment, and damaged, crafted and foreign files of every kind."""
    assert main([*TRAIN, "--out", str(made / "run")]) == 0
    for name, text in PROBLEM_FILES.items():
        (made / name).write_text(whole(name, text))
    texts = {
        "slip.toml": 'problem = "quarters"\nlevel = 3\n',
        "broken.toml": "problem = \n",
        "date.toml": 'problem = "quarters"\nlevels = 2\n[options]\nlow = 1979-05-27\n',
        "deep.toml": "problem = " + "[" * 5000 + "]" * 5000 + "\n",
        "number.toml": "problem = 7\nlevels = 2\n",
        "code.toml": 'problem = "three.py"\nlevels = 2\n',
        "file": "precious",
        "net.pt2": "precious",
        "there.png": "precious",
        "there.vtu": "precious",
        "deep.json": "[" * 100_000,
        "list.json": "[1, 2]",
        "nan.json": '{"preset": NaN}',
        "empty.json": "{}",
        "mesh.msh": "no mesh",
    }
    for name, text in texts.items():
        (made / name).write_text(text)
    for name in ("empty", "notes"):
        (made / name).mkdir()
    (made / "notes/thesis.tex").write_text("x")
    os.mkfifo(made / "pipe")
    make_frames(made)
    make_runs(made)
    return made


def make_frames(made):
    frame = made / "run/frame.npz"
    np.save(made / "bare.npy", np.zeros(3))
    (made / "cut.npz").write_bytes(frame.read_bytes()[:-500])
    parts = members(frame)
    write_members(made / "huge.npz", {**parts, "points.npy": header((10**12, 1))})
    write_members(made / "words.npz", {**parts, "points.npy": header(None, text="{'descr': (((, 'shape'")})
    write_members(made / "objects.npz", {**parts, "points.npy": header((3,), "|O")})
    write_members(made / "headless.npz", {k: v for k, v in parts.items() if k != "head.npy"})
    write_members(made / "nested.npz", {**parts, "head.npy": array_bytes(np.array("[" * 100_000))})
    write_members(made / "infinite.npz", {**parts, "volumes.npy": array_bytes(np.full(8, np.inf))})
    data = bytearray(frame.read_bytes())
    for mark, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):  # the flag that says: encrypted
        at = data.find(mark)
        data[at + place] |= 1
    (made / "encrypted.npz").write_bytes(data)
    changes = {
        "relabelled": lambda r: r.update(formulation="energy"),
        "unknown": lambda r: r.update(formulation="mixed"),
        "levels": lambda r: r.update(levels="three"),
        "many": lambda r: r.update(levels=10**9),
        "first": lambda r: r.update(first_level=-1),
        "fields": lambda r: r.update(fields=[["u", 0, 3]]),
        "families": lambda r: r.update(families=7),
        "options": lambda r: r.update(record={"problem": "quarters", "options": [1]}),
        "stranger": lambda r: r["record"].update(problem="three.py"),
        "absurd": lambda r: r["record"].update(problem="checkerboard", options={"blocks": 10**6}),
    }
    for name, change in changes.items():
        with_record(frame, made / f"{name}.npz", lambda head, change=change: change(head["record"]))
    with_record(frame, made / "later.npz", lambda head: head.update(version=99))
    with_record(frame, made / "reference.npz", lambda head: head.update(format="reference solutions"))


def make_runs(made):
    """Copies of the run with one thing changed in each."""

    def copy(name, *left_out):
        (made / name).mkdir()
        for path in (made / "run").iterdir():
            if path.is_file() and path.name not in left_out:
                (made / name / path.name).write_bytes(path.read_bytes())
        return made / name

    content = torch.load(made / "run/surrogate.pt", weights_only=True)
    for name, change in {
        "blocks": {"blocks": 10**6},
        "wide": {"parameters": 10**12},
        "typed": {"rank": "eight"},
        "named": {"name": "deep"},
        "boxed": {"box": 3},
    }.items():
        torch.save({**content, "net": {**content["net"], **change}}, copy(name) / "surrogate.pt")
    torch.save({**content, "record": 7}, copy("record") / "surrogate.pt")
    torch.save({**content, "weights": {"w": torch.zeros(3)}}, copy("weights") / "surrogate.pt")
    (copy("cut") / "surrogate.pt").write_bytes((made / "run/surrogate.pt").read_bytes()[:-100])
    (copy("result") / "result.json").write_text(json.dumps({"loss": "low", "steps": 2}))
    (copy("listed") / "result.json").write_text("[]")
    (copy("linked") / "log.jsonl").unlink()
    (made / "linked/log.jsonl").symlink_to(made / "file")
    stranger = copy("strange", "result.json", "surrogate.pt")
    settings = (stranger / "configuration.toml").read_text().replace('"quarters"', '"three.py"')
    (stranger / "configuration.toml").write_text(settings)
    late = copy("late", "result.json", "surrogate.pt")
    (late / "checkpoints").mkdir()
    newest = torch.load(made / "run/checkpoints/step-000000002.pt", weights_only=True)
    torch.save({**newest, "step": 10**12}, late / "checkpoints" / f"step-{10**12}.pt")
    for name, change in {
        "stepless": {"step": "two"},
        "netless": {"net": 3},
        "foreign": {"net": {"a": torch.zeros(2)}},
        "fingers": {"fingerprint": ["x"]},
    }.items():
        made_here = copy(name, "result.json", "surrogate.pt")
        (made_here / "checkpoints").mkdir()
        torch.save({**newest, **change}, made_here / "checkpoints/step-000000002.pt")


CASES = [
    # ---- arguments
    ([], "required"),
    (["nonsense"], "invalid choice"),
    (["export", "--problem", "cake", *LEVELS, *NEW], "no problem 'cake'"),
    (["export", "--problem", "checkerboard", "--levels", "0", *NEW], "levels = 0"),
    (["export", "--problem", "checkerboard", "--levels", "-3", *NEW], "levels = -3"),
    (["export", "--problem", "checkerboard", "--levels", "two", *NEW], "invalid int value"),
    (["export", "--problem", "checkerboard", "--levels", "40", *NEW], "use fewer levels"),
    (["export", *SQUARE, "--out", "file"], "is there already.*--force"),
    (["export", *SQUARE, "--out", "absent/x"], "cannot write absent/x.*make the folder absent first"),
    (["export", *SQUARE, "--out", "pipe", "--force"], "cannot write pipe: it is a device"),
    (["export", *SQUARE, "--out", LONG], "n+: File name too long"),
    ([*EXPORT, "--set", "blocks"], "not of the form OPTION=VALUE"),
    ([*EXPORT, "--set", "block=2"], "no option 'block'"),
    ([*EXPORT, "--set", "blocks=0"], "blocks is 0; a whole number of at least 1"),
    ([*EXPORT, "--set", "blocks=1000000"], r"blocks = 1000000, which makes 1e\+12 parameters, would need 500 TB"),
    ([*EXPORT, "--set", "blocks=[1]"], r"option blocks of checkerboard is \[1\]"),
    ([*EXPORT, "--set", "low=2"], "the box from .* is empty"),
    ([*EXPORT, "--set", "low=1e999"], "option low of checkerboard is inf"),
    ([*EXPORT, "--first-level", "7"], "first_level is 7"),
    ([*EXPORT, "--wrong"], "unknown argument --wrong"),
    ([*EXPORT, "-ksp_monitor"], "unknown argument -ksp_monitor"),
    ([*EXPORT, "--sparse", "x"], "--out and --sparse are both x"),
    ([*EXPORT, "--sparse", "file", "--force"], "--sparse needs a folder"),
    ([*EXPORT, "--sparse", "s", "--degree", "0"], "--degree is 0"),
    ([*EXPORT, "--degree", "3"], "give --sparse too"),
    (
        ["export", "--problem", "lognormal", "--set", "terms=1000000000000", *LEVELS, *NEW],
        "would need 500 TB of memory",
    ),
    (["export", "--problem", "cookies", "--set", "rows=1000000", *LEVELS, *NEW], "use fewer rows"),
    # ---- problem files
    (["export", "--problem", "absent.py:p", *LEVELS, *NEW], "no file absent.py, to take a problem from"),
    (["export", "--problem", "pipe.py", *LEVELS, *NEW], "no file pipe.py"),
    (["export", "--problem", "three.py", *LEVELS, *NEW], "three.py is neither a Problem nor a function"),
    (["export", "--problem", "three.py:four", *LEVELS, *NEW], "three.py does not define 'four'"),
    (["export", "--problem", "syntax.py", *LEVELS, *NEW], r"loading syntax.py fails: SyntaxError.*syntax.py, line 1"),
    (["export", "--problem", "exits.py", *LEVELS, *NEW], "loading exits.py ends the program: 3"),
    (["export", "--problem", "fails.py", *LEVELS, *NEW], "fails.py, line 2, in deep: OSError: line one line two"),
    (["export", "--problem", "maker.py", *LEVELS, *NEW], "maker.py, line 2, in problem: IndexError"),
    (["export", "--problem", "maker.py", "--set", "width=2", *LEVELS, *NEW], "no option 'width'; it has size"),
    (["export", "--problem", "other.py", *LEVELS, *NEW], "other.py made a int, not a fem_frames.Problem"),
    (["train", "--problem", "coefficient.py", *MINE], "coefficient.py, line 5, in <lambda>: NameError"),
    (["train", "--problem", "shape.py", *MINE], r"the coefficient a has values of shape .*write x\[..., i\]"),
    (["train", "--problem", "alone.py", *MINE], "coefficient fails in .*alone.py, line 5, in <lambda>: TypeError"),
    (["train", "--problem", "negative.py", *MINE], r"a_y must be positive and finite, but it is -1.* y = \(1"),
    (["train", "--problem", "source.py", *MINE], "the source fails in .*source.py, line 6, in source: AttributeError"),
    (["train", "--problem", "nan.py", *MINE], r"f is nan for y = \(1.*\) at x = \(.*fix the source"),
    (
        ["export", "--problem", "regions.py", *LEVELS, *NEW],
        "regions fails in .*regions.py, line 6, in regions: Runtime",
    ),
    (["export", "--problem", "half.py", *LEVELS, *NEW], "regions gave tags that are not whole numbers"),
    (
        ["export", "--problem", "dirichlet.py", *LEVELS, *NEW],
        "dirichlet fails in .*dirichlet.py, line 5, in <lambda>: In",
    ),
    (["export", "--problem", "nowhere.py", *LEVELS, *NEW], "u is given on no facet"),
    (["export", "--problem", "value.py", *LEVELS, *NEW], r"dirichlet_value has values of shape \(3,\)"),
    (
        ["export", "--problem", "box.py", *LEVELS, *NEW],
        "box.py, line 5, in <module>: ValueError: the box from .* is empty",
    ),
    (
        ["reference", "--problem", "coefficient.py", *LEVELS, "--samples", "2", *NEW],
        "coefficient.py, line 5, in <lambda>",
    ),
    (["reference", "--problem", "negative.py", *LEVELS, "--samples", "2", *NEW], r"it is -1.* for y = \(1"),
    # ---- reference
    (["reference", *SQUARE, "--samples", "0", *NEW], "samples is 0"),
    ([*REFERENCE, "--seed", "-1"], "seed is -1"),
    (["reference", *SQUARE, "--samples", "2", "--out", "file"], "left as it is"),
    (["reference", *SQUARE, "--samples", "2", "--out", "run/frame.npz"], "holds frame arrays, but reference solutions"),
    (["reference", *SQUARE, "--samples", "2", "--out", "."], "it is a folder"),
    (["reference", *SQUARE, "--samples", "2", "--out", LONG], "File name too long"),
    ([*REFERENCE, "--wrong", "1"], "unknown argument --wrong"),
    ([*REFERENCE, "-ksp_monitor", "--sampels", "1"], "argument --sampels"),
    ([*REFERENCE, "-pc_type", "nonsense"], "PETSc refuses the options"),
    (["reference", *SQUARE, "--samples", "99999999999", *NEW], "at most 10000000"),
    (
        ["reference", "--problem", "inclusion", "--set", "conductivity=-3", "--levels", "5", "--samples", "2", *NEW],
        r"a_y must be positive and finite, but it is -3 for y = \(0.* in cell",
    ),
    (
        ["reference", "--problem", "inclusion", "--set", "conductivity=abc", *LEVELS, "--samples", "2", *NEW],
        "option cond",
    ),
    (
        [
            "reference",
            "--problem",
            "cube",
            "--formulation",
            "least-squares",
            "--solver",
            "cg",
            *LEVELS,
            "--samples",
            "1",
            *NEW,
        ],
        "--solver lu",
    ),
    # ---- studies
    (["condition", "--problem", "quarters"], "give --problem and --levels, or --frame"),
    (["condition", "--frame", "run/frame.npz", *LEVELS], "--levels is decided by the file"),
    (
        ["condition", "--frame", "run/frame.npz", "--formulation", "energy"],
        "is a frame for least-squares, not for energy",
    ),
    (["condition", "--frame", "run/frame.npz", "--set", "low=1"], "--set goes with --problem"),
    ([*CONDITION, "--samples", "-1"], "not negative"),
    ([*CONDITION, "--samples", "1000000000000"], "1000000000000 samples of 4 parameters would need 32 TB of memory"),
    ([*CONDITION, "--plot", "picture.txt"], r"must end in \.png"),
    ([*CONDITION, "--plot", "absent/picture.png"], "cannot write absent/picture.png"),
    ([*CONDITION, "--plot", "there.png"], "there.png is there already: .*--force"),
    ([*CONDITION, "--without", "curl"], "no family 'curl'; the frame has u, sigma"),
    ([*CONDITION, "--without", "sigma"], "without the family 'sigma' the frame does not span sigma"),
    (["iterations", *QUARTERS, "--tol", "3"], "--tol is 3.0"),
    (["iterations", *QUARTERS, "--tol", "nan"], "--tol is nan"),
    (["rounding", *QUARTERS, "--dtypes", "float8"], "invalid choice: 'float8'"),
    (["rounding", *QUARTERS, "--plot", "there.png"], "there.png is there already"),
    (["bench", *QUARTERS, "--dims", "2"], "--dims chooses among the standard cases"),
    (["bench", *LEVELS], "--levels goes with --problem"),
    (["bench", "--dims", "1", "--formulation", "least-squares"], "--formulation goes with --problem"),
    (["bench", *QUARTERS, "--seconds", "-1"], "--seconds is -1.0"),
    (["bench", *QUARTERS, "--device", "meta"], "device 'meta' cannot be used"),
    (["bench", *QUARTERS, "--device", "nowhere"], "device 'nowhere' cannot be used"),
    (["bench", *QUARTERS, "--routes", "fast"], "no route 'fast'"),
    (["bench", *QUARTERS, "--batch", "0"], "batch is 0"),
    (["bench", *QUARTERS, "--batch", "1000000000000"], "a batch of 1000000000000 samples would need .*B of memory"),
    (["bench", "--training", "--net", "deep", *QUARTERS], "net is 'deep'"),
    (["bench", "--training", "--routes", "csr"], "are for the benchmark of D"),
    (
        ["bench", "--frame", "stranger.npz", "--routes", "bpx"],
        "files do not choose code to run: give --problem three.py",
    ),
    # ---- frames
    (["condition", "--frame", "absent.npz"], "there is no file absent.npz"),
    (["condition", "--frame", "pipe"], "cannot read pipe: it is a folder, a pipe"),
    (["condition", "--frame", "empty"], "cannot read empty: it is a folder"),
    (["condition", "--frame", LONG], "cannot use n+: File name too long"),
    (["condition", "--frame", "file"], "file is not a file of fem-frames"),
    (["condition", "--frame", "bare.npy"], "bare.npy is not a file of fem-frames"),
    (["condition", "--frame", "cut.npz"], "cut short or damaged: File is not a zip file"),
    (["condition", "--frame", "huge.npz"], r"points.npy declares float64 of shape \(1000000000000, 1\), which is not"),
    (["condition", "--frame", "words.npz"], "cut short or damaged"),
    (["condition", "--frame", "objects.npz"], "cut short or damaged: points.npy declares object"),
    (["condition", "--frame", "encrypted.npz"], "cut short or damaged: .*encrypted"),
    (["condition", "--frame", "headless.npz"], "it has no head"),
    (["condition", "--frame", "nested.npz"], "it has no head"),
    (["condition", "--frame", "infinite.npz"], "volumes has values that are not finite"),
    (["condition", "--frame", "relabelled.npz"], "fields are u of degree 0, sigma of degree 0 in dimension 1"),
    (["condition", "--frame", "unknown.npz"], "formulation is 'mixed'"),
    (["condition", "--frame", "levels.npz"], "levels is 'three'"),
    (["condition", "--frame", "many.npz"], "levels is 1000000000; a whole number from 1 to 64"),
    (["condition", "--frame", "first.npz"], "first_level is -1"),
    (["condition", "--frame", "fields.npz"], "fields.npz does not hold a frame"),
    (["condition", "--frame", "families.npz"], "families.npz does not hold a frame"),
    (["condition", "--frame", "options.npz"], "options.npz does not hold a frame"),
    (["condition", "--frame", "later.npz"], "has version 99 of the format"),
    (["condition", "--frame", "reference.npz"], "holds reference solutions, but frame arrays"),
    (["condition", "--frame", "stranger.npz"], "files do not choose code to run: give --problem three.py"),
    (["iterations", "--frame", "stranger.npz"], "give --problem three.py"),
    (["rounding", "--frame", "stranger.npz"], "give --problem three.py"),
    (["bench", "--training", "--frame", "stranger.npz"], "give --problem three.py"),
    (["train", "--frame", "stranger.npz", *NEW], "give --problem three.py"),
    (["condition", "--frame", "absurd.npz"], "which cannot be made: blocks = 1000000"),
    # ---- train
    ([*TRAIN, "--out", "run"], "run holds a run: --resume continues it, --force replaces it"),
    ([*TRAIN, "--out", "notes"], "notes holds thesis.tex, which is not of a run"),
    ([*TRAIN, "--out", "notes", "--force"], "notes holds thesis.tex, which is not of a run"),
    ([*TRAIN, "--out", "file"], "file is a file: give a folder as --out"),
    ([*TRAIN, "--out", "file/run"], "Not a directory"),
    ([*TRAIN, "--out", LONG], "cannot use n+: File name too long"),
    ([*TRAIN, "--out", "run", "--resume", "--force"], "give one of them"),
    ([*TRAIN, "--out", "linked", "--force"], "linked/log.jsonl is a symbolic link"),
    (["train", "--out", "linked", "--resume"], "linked/log.jsonl is a symbolic link"),
    (["train", "--out", "empty", "--resume"], "empty holds no run that could be resumed: leave out --resume"),
    (["train", "--out", "run", "--resume", "--epochs", "5"], "epochs 5 instead of 2"),
    (["train", "--out", "result", "--resume"], "result.json is damaged or cannot be read"),
    (["train", "--out", "listed", "--resume"], "result.json is damaged or cannot be read .it is no JSON object"),
    (["train", "--out", "strange", "--resume"], "strange names the problem .*three.py, and files do not choose code"),
    (["train", "--out", "late", "--resume", "--quiet"], "step 1000000000000, but the run has 2"),
    (["train", "--out", "stepless", "--resume", "--quiet"], "is of step two, unlike its name"),
    (["train", "--out", "netless", "--resume", "--quiet"], "net of the checkpoint is a int"),
    (
        ["train", "--out", "foreign", "--resume", "--quiet"],
        "does not fit the run: .*remove it, or start anew with --force",
    ),
    (["train", "--out", "fingers", "--resume", "--quiet"], "fingerprint of the checkpoint has no numbers"),
    (["train", *NEW], "give problem and levels, or frame"),
    (["train", "--problem", "quarters", *NEW], "levels is missing"),
    (["train", "--problem", "quarters", "--levels", "-1", *NEW], "levels is -1; at least 1 refinement"),
    (["train", "--problem", "quarter", *LEVELS, *NEW], "there is no problem 'quarter'"),
    (["train", "--problem", "three.py", *LEVELS, *NEW], "is neither a Problem nor a function"),
    (["train", "--problem", "quarters", "--set", "blocks", *LEVELS, *NEW], "not of the form"),
    (["train", "--problem", "cube", "--formulation", "mixed", *LEVELS, *NEW], "invalid choice: 'mixed'"),
    (["train", "slip.toml", *NEW], "unknown setting 'level'; do you mean levels?"),
    (["train", "broken.toml", *NEW], "broken.toml is no TOML file"),
    (["train", "date.toml", *NEW], "options must be numbers, texts and lists"),
    (["train", "deep.toml", *NEW], "deep.toml is no TOML file that can be read"),
    (["train", "number.toml", *NEW], "problem is 7; a text is expected"),
    (["train", "code.toml", *NEW], "code.toml names the problem .*three.py, and files do not choose code to run"),
    (["train", "pipe", *NEW], "cannot read pipe"),
    (["train", "absent.toml", *NEW], "there is no file absent.toml"),
    (["train", "--frame", "bare.npy", *NEW], "bare.npy is not a file of fem-frames"),
    (["train", "--frame", "run/frame.npz", *LEVELS, *NEW], "levels is decided by the frame"),
    ([*TRAIN, *NEW, "--optimizer", "adamw"], "invalid choice: 'adamw'"),
    ([*TRAIN, *NEW, "--epochs", "many"], "invalid int value: 'many'"),
    ([*TRAIN, *NEW, "--epochs", "-1"], "epochs is -1"),
    ([*TRAIN, *NEW, "--batch", "0"], "batch is 0"),
    ([*TRAIN, *NEW, "--batch", "2147483647"], "batch = 2147483647 would need .* of memory"),
    ([*TRAIN, *NEW, "--batch", "99999999999"], r"batch is 99999999999; less than 2\^31"),
    ([*TRAIN, *NEW, "--test-samples", "2147483647"], "test_samples = 2147483647 would need .* of memory"),
    ([*TRAIN, *NEW, "--blocks", "100000000"], "a net of .* parameters would need .* of memory"),
    ([*TRAIN, *NEW, "--rate", "nan"], "rate is nan"),
    ([*TRAIN, *NEW, "--device", "tpu"], "device 'tpu' cannot be used"),
    ([*TRAIN, *NEW, "--mixed"], "mixed goes with float16 or bfloat16"),
    ([*TRAIN, *NEW, "--loss", "nodal", "--level-decay", "1"], "no levels that could decay"),
    ([*TRAIN, *NEW, "--start-level", "2"], "start_level is for the net separate-frame"),
    ([*TRAIN, *NEW, "--learning-rate", "1"], "unknown argument --learning-rate"),
    ([*TRAIN, *NEW, "--start-from", "empty"], "empty holds no surrogate"),
    (TRAIN, "the following arguments are required: --out"),
    # ---- surrogates
    (["evaluate", "empty"], "empty holds no surrogate; `fem-frames train --out empty …` makes one"),
    (["evaluate", "absent"], "absent holds no surrogate"),
    (["evaluate", "late"], "late holds no surrogate yet: `fem-frames train --out late --resume` ends the run"),
    (["evaluate", "run", "--samples", "0"], "give at least one sample"),
    (["evaluate", "run", "--samples", "1000000000000"], "1000000000000 samples of 4 parameters would need 32 TB"),
    (["evaluate", "run", "--problem", "checkerboard"], "does not fit the frame"),
    (["evaluate", "run", "--set", "blocks=2"], "--set goes with --problem"),
    (["evaluate", "blocks"], "it describes a net of .* parameters, but has"),
    (["evaluate", "wide"], "it describes a net of .* parameters, but has"),
    (["evaluate", "typed"], "rank is 'eight'"),
    (["evaluate", "named"], "there is no net 'deep'"),
    (["evaluate", "boxed"], "does not fit .*frame.npz"),
    (["evaluate", "record"], "its record has other types"),
    (["evaluate", "weights"], "it describes a net of"),
    (["evaluate", "cut"], "cut/surrogate.pt is no surrogate, or it is cut short or damaged"),
    (["query", "run", "--y", "1,0.8"], "has p = 4 parameters"),
    (["query", "run", "--y", "1,0.8,x,1"], "numbers with commas"),
    (["query", "run", "--y", "1,0.8,nan,1"], "is not finite"),
    (["query", "run", "--y", "1,0.8,7,1"], r"= \(1, 0.8, 7, 1\) is outside the parameters"),
    ([*QUERY, "--tol", "1e-9"], "the mesh allows no smaller one"),
    ([*QUERY, "--tol", "-1"], "a positive bound"),
    ([*QUERY, "--out", "u.csv"], "must end in .xdmf, .vtu, .vtk"),
    ([*QUERY, "--out", "no/u.vtu"], "make the folder no first"),
    ([*QUERY, "--out", "there.vtu"], "there.vtu is there already: .*--force"),
    ([*QUERY, "--plot", "u.doc"], "must end in .png"),
    ([*QUERY, "--plot", "there.png"], "there.png is there already: .*--force"),
    (["plot", "empty"], "empty holds no run"),
    (["plot", "run", "--samples", "99"], "draw 0 to 6 solutions"),
    (["plot", "run", "--out", "there.png"], "there.png is there already: .*--force"),
    (["plot", "run", "--out", "u.doc"], "must end in .png"),
    (["export-net", "run", "--out", "net.txt"], "must end in .pt2"),
    (["export-net", "run", "--out", "net.pt2"], "net.pt2 is there already"),
    (["export-net", "run", "--out", "absent/net.pt2"], "make the folder absent first"),
    # ---- experiments and reports
    (["tables", "--preset", "fast", *NEW], "invalid choice: 'fast'"),
    (["tables", "--preset", "cpu", "--table", "best", *NEW], "has no table best; choose from 1"),
    (["tables", "--preset", "cpu", "--workers", "0", *NEW], "--workers is 0: at least one"),
    (["tables", "--preset", "cpu", "--cells", "adam", *NEW], "there is none like that; `fem-"),
    (["tables", "--preset", "cpu", "--out", "file"], "file is a file: give a folder"),
    (["tables", "--preset", "cpu", "--out", "notes"], "holds no experiment of `fem-frames tables`"),
    (["tables", "--preset", "cpu", "--out", "linked"], "linked/log.jsonl is a symbolic link"),
    (["tables", "--preset", "cpu", "--out", LONG], "File name too long"),
    (["report", "x"], "there is no folder x: give the one that was --out"),
    (["report", "notes"], "holds no experiment of `fem-frames tables`"),
    (["report", "pipe"], "there is no folder pipe"),
    (["report", "file"], "file cannot be read as a report"),
    (["report", "deep.json"], "deep.json cannot be read as a report"),
    (["report", "list.json"], "it is no JSON object"),
    (["report", "nan.json"], "NaN is no number of a report"),
    (["report", "empty.json"], "empty.json cannot be read as a report: it has no"),
    (["report", "notes", "--add", "x.json"], "x.json cannot be read as a report"),
    (["report", "notes", "--add", "pipe"], "pipe cannot be read as a report"),
    (["report", "empty.json", "--fresh-seed", "3"], "goes with the folder of an experiment"),
]
