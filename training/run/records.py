"""Records of experiments as JSON files, and the mark that says whose folder it is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fem_frames.files import is_there, refuse_links, written_whole


def new_folder(out: Path, mark: str, record: Mapping[str, Any]) -> bool:
    """Makes the folder of an experiment, with the record in the file `mark`; False if there are files in it already."""
    there = is_there(out)
    if there and not out.is_dir():
        raise ValueError(f"{out} is a file: give a folder as --out")
    refuse_links(out, deep=False)
    if there and any(not entry.name.endswith(".part") for entry in out.iterdir()):
        return False
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {out}: {error.strerror or error}") from error
    write_record(out / mark, record)
    return True


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes the record as a whole, with null for numbers that JSON does not have."""
    with written_whole(path) as file:
        file.write(json.dumps(_finite(record), indent=1, allow_nan=False).encode() + b"\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
