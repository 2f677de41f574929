"""Records of experiments as JSON files, and the mark that says whose folder it is."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fem_frames.files import check_file, is_there, one_line, refuse_links, written_whole

FORMS = {
    "experiment.json": '{"comparison": "full"} for `compare`, or {"preset": "cpu", "scaling": "printed"} for `tables`',
    "scale.json": '{"scale": "full"}',
}
"""What the marks of folders look like, for messages."""


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


def read_mark(path: Path) -> dict[str, Any]:
    """The record of a folder's mark, empty if there is none; a ValueError says how to repair a damaged one."""
    if not is_there(path):
        return {}
    try:
        found = json.loads(check_file(path).read_text())
        if not isinstance(found, dict) or not found:
            raise ValueError("it says nothing")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged ({one_line(error)}): write into it what the folder was started with, such as "
            f"{FORMS[path.name]}"
        ) from error
    return found


def strict_json(text: str) -> Any:
    """The value of JSON without NaN and infinity, which Python's reader takes."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    return json.loads(text, parse_constant=refuse)


def check_pages(records: Mapping[Path, Any], make: Callable[[Mapping[Path, Any]], object], command: str) -> None:
    """Makes a page of records read from files; a ValueError names the file that no page can be made of."""
    try:
        make(records)
    except Exception as error:  # values of wrong types can raise anything
        for path, record in records.items():
            try:
                make({path: record})
            except Exception as reason:
                raise ValueError(
                    f"{path} is damaged ({one_line(reason)}): remove it, and `{command}` measures it again"
                ) from error
        raise ValueError(
            f"the cells make no page together ({one_line(error)}): measure them again, by `{command} --again`"
        ) from error


def kept_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Arrays of a .npz file that cells of an experiment share; a ValueError names a damaged one."""
    try:
        with np.load(check_file(path), allow_pickle=False) as found:
            return [found[name] for name in names]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({one_line(error)}): remove it, and it is made again") from error


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
