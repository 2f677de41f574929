"""Checkpoints are written completely or not at all and read without executing them; the last two and the best stay."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fem_frames.files import written_whole
from fem_frames.messages import option
from training.configuration import OWN
from training.tensor_files import are_plain_tensors, are_weights, load_tensors, save_tensors

KIND, VERSION = "training checkpoint", 1
KEPT = 2
CONTENT: dict[str, Any] = {
    **dict.fromkeys(("step", "skipped"), int),
    **dict.fromkeys(("seconds", "best"), float),
    **dict.fromkeys(("net", "weights", "optimizer", "configuration", "versions"), dict),
    "stopped": (str, type(None)),
    "random": torch.Tensor,
    "fingerprint": list,
}
"""The names and types of a checkpoint's entries."""


def link_whole(source: Path, target: Path) -> None:
    """Gives a file, which must never change, a second name, and replaces the previous file with that name."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:  # a file system without links
        with written_whole(target) as file:
            file.write(source.read_bytes())
        return
    part.replace(target)


def check_content(content: Mapping[str, Any], last_step: int) -> None:
    """Raises a ValueError unless the content is a checkpoint of a run of `last_step` steps."""
    for name, kind in CONTENT.items():
        if name not in content:
            raise ValueError(f"the checkpoint lacks {name}")
        if not isinstance(content[name], kind):
            raise ValueError(f"{name} of the checkpoint is a {type(content[name]).__name__}")
    if not 0 <= content["step"] <= last_step:
        raise ValueError(f"the checkpoint is of step {content['step']}, but the run has {last_step}")
    if not all(isinstance(value, float) for value in content["fingerprint"]):
        raise ValueError("the fingerprint of the checkpoint has no numbers")
    own = content["configuration"].get("net") == OWN
    if not (are_plain_tensors if own else _are_weights)(content["net"].values()):
        raise ValueError("weights of the checkpoint are not finite numbers")
    if not isinstance(content.get("own", {}), dict):
        raise ValueError("the checkpoint has no valid names of your own parts")
    try:
        json.dumps(content["configuration"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"the configuration of the checkpoint is not valid: {error}") from error


def _are_weights(values: Iterable[Any]) -> bool:
    return all(map(are_weights, values))


class Checkpoints:
    """The checkpoints of one run, in their own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def best(self) -> Path:
        return self.folder / "best.pt"

    def steps(self) -> list[int]:
        """The steps of the existing checkpoints, from old to new."""
        names = [re.fullmatch(r"step-(\d+)\.pt", p.name) for p in self.folder.glob("step-*.pt")]
        return sorted(int(match[1]) for match in names if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.pt"

    def save(self, step: int, content: Mapping[str, Any], best: bool = False) -> None:
        """Writes a checkpoint, then removes old ones: a full disk loses nothing that was saved before."""
        self.folder.mkdir(exist_ok=True)
        save_tensors(self.path(step), KIND, VERSION, content)
        if best:
            link_whole(self.path(step), self.best)
        for old in self.steps()[:-KEPT]:
            self.path(old).unlink(missing_ok=True)

    def own_names(self) -> dict[str, str]:
        """The names of the user's own parts in the newest readable checkpoint."""
        for step in reversed(self.steps()):
            with contextlib.suppress(ValueError):
                names = load_tensors(self.path(step), KIND, VERSION).get("own")
                return {str(k): str(v) for k, v in names.items()} if isinstance(names, dict) else {}
        return {}

    def refuse_after(self, step: int) -> None:
        """Renames unusable checkpoints of later steps, so that they do not count as kept."""
        for later in self.steps():
            if later > step:
                self.path(later).replace(self.path(later).with_suffix(".refused"))

    def newest(self, fits: Callable[[dict[str, Any]], None], say: Callable[[str], None]) -> dict[str, Any] | None:
        """The newest readable checkpoint for which `fits` raises no ValueError; None if there are no checkpoints."""
        refused = []
        for step in reversed(self.steps()):
            try:
                content = load_tensors(self.path(step), KIND, VERSION)
                if type(content.get("step")) is not int or content["step"] != step:
                    raise ValueError(f"{self.path(step)} is of step {content.get('step')!r:.40}, unlike its name")
                fits(content)
            except ValueError as error:
                refused.append(str(error))
                say(f"{error}; the checkpoint before it is used, if there is one")
                continue
            return content
        if refused:
            raise ValueError(f"no checkpoint can be used: {refused[-1]}; start anew with {option('force')}")
        return None
