"""A net of your own: any torch module from y to frame coefficients is trained, saved, queried and certified.

python demos/demo_own_net.py [--out FOLDER]
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from fem_frames import Frame, make_problem
from training import Configuration, Surrogate, train

parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the run; default: results")
run = parser.parse_args().out / "own_net"


def make_net(frame: Frame) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, frame.frame_size))


settings = Configuration(problem="checkerboard", levels=4, level_decay=1.0, epochs=1500, test_samples=64)
result = train(settings, run, net=make_net, optimizer=lambda p: torch.optim.AdamW(p, lr=3e-3), force=True)
surrogate = Surrogate.load(run, net=make_net)  # a file never chooses code to run: the net is given again
bound = surrogate.certify(make_problem("checkerboard").parameters.sample(100, seed=7))
print(f"MRE {result['test']['mre']:.1e}, energy error at most {bound.relative.max():.1e} of the solution's norm")
assert result["test"]["mre"] < 0.02
assert bound.relative.max() < 0.2
