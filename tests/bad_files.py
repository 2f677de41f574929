"""A folder of damaged, crafted and foreign files of every kind, for `bad_inputs.py`."""

import io
import json
import os
from pathlib import Path

import numpy as np
import torch
from bad_inputs import TRAIN
from strangers import array_bytes, header, members, with_record, write_members

from fem_frames.commands import main

RESULTS = Path(__file__).parent.parent / "docs/results"
COMPARISON, REPORT = RESULTS / "comparison-quick/comparison.json", RESULTS / "quick/report.json"

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
    "complex.py": "coefficient = Pointwise(lambda x, y: (y[..., 0] + 0 * x[..., 0]) * 1j)\n",
    "none.py": "source = lambda x, y: None\n",
    "quits.py": "import sys\nsource = lambda x, y: sys.exit()\n",
    "changes.py": "def source(x, y):\n    y *= 2\n    return y[..., 0]\n",
    "floats.py": "dirichlet = lambda x: x[:, 0]\n",
    "text.py": "source = '1'\n",
    "named.py": "regions = 'left'\n",
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
        "parts = coefficient, parameters, source, dirichlet, dirichlet_value\n"
        "problem = Problem(Grid((1, 1)), *parts, regions=regions)\n"
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
        "comparison.json": COMPARISON.read_text().replace('"threads"', '"thrfads"'),
        "earlier.json": '{"problems": []}',
        "figures.json": REPORT.read_text().replace('"steps_per_epoch": 2', '"steps_per_epoch": 0'),
    }
    for name, text in texts.items():
        (made / name).write_text(text)
    for name in ("empty", "notes"):
        (made / name).mkdir()
    (made / "notes/thesis.tex").write_text("x")
    os.mkfifo(made / "pipe")
    make_frames(made)
    make_runs(made)
    make_nets(made)
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
    ends = np.load(io.BytesIO(parts["level2.ends.npy"]))
    write_members(made / "ends.npz", {**parts, "level2.ends.npy": array_bytes(ends[:-1])})
    zeros = np.zeros(len(np.load(io.BytesIO(parts["family.u.weights1.npy"]))))
    write_members(made / "zeros.npz", {**parts, "family.u.weights1.npy": array_bytes(zeros)})
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
    result = json.loads((made / "run/result.json").read_text())
    (copy("missing") / "result.json").write_text(json.dumps({k: v for k, v in result.items() if k != "floor"}))
    os.mkfifo(copy("piped") / "pipe")
    (copy("linked") / "log.jsonl").unlink()
    (made / "linked/log.jsonl").symlink_to(made / "file")
    stranger = copy("strange", "result.json", "surrogate.pt")
    settings = (stranger / "configuration.toml").read_text().replace('"quarters"', '"three.py"')
    (stranger / "configuration.toml").write_text(settings)
    late = copy("late", "result.json", "surrogate.pt")
    (late / "checkpoints").mkdir()
    short = dict(step=torch.tensor(1.0), exp_avg=torch.ones(1), exp_avg_sq=torch.ones(1))
    newest = torch.load(made / "run/checkpoints/step-000000002.pt", weights_only=True)
    torch.save({**newest, "step": 10**12}, late / "checkpoints" / f"step-{10**12}.pt")
    for name, change in {
        "stepless": {"step": "two"},
        "netless": {"net": 3},
        "foreign": {"net": {"a": torch.zeros(2)}},
        "fingers": {"fingerprint": ["x"]},
        "optimizer": {"optimizer": {**newest["optimizer"], "state": {0: short}}},
        "groups": {"optimizer": {"state": {}, "param_groups": [{"params": [0], "betas": "x", "lr": 1.0}]}},
    }.items():
        made_here = copy(name, "result.json", "surrogate.pt")
        (made_here / "checkpoints").mkdir()
        torch.save({**newest, **change}, made_here / "checkpoints/step-000000002.pt")


def make_nets(made):
    """A net for outputs, one cut short, and one whose few bytes claim a million million weights."""
    small = ["--samples", "4", "--validation", "2", "--width", "2", "--steps", "1"]
    main(["learn-outputs", str(made / "run"), "--mean", "all", *small, "--out", str(made / "sensors.pt")])
    (made / "cut.pt").write_bytes((made / "sensors.pt").read_bytes()[:-100])
    content = torch.load(made / "sensors.pt", weights_only=True)
    content["weights"]["0.weight"] = torch.zeros(1).expand(10**6, 10**6)
    torch.save(content, made / "claims.pt")
