"""Files of tensors: written completely or not at all, and read without executing their content."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fem_frames.files import check_file, one_line, written_whole


def save_tensors(path: str | Path, kind: str, version: int, content: Mapping[str, Any]) -> None:
    """Writes tensors, numbers and texts in lists and dictionaries."""
    with written_whole(path) as file:
        torch.save({"format": kind, "version": version, **content}, file)


def load_tensors(path: str | Path, kind: str, version: int) -> dict[str, Any]:
    """Reads a file of `save_tensors`; refuses any other or damaged file. Nothing in the file is executed."""
    path = check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not check the checksums
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling may raise anything
        why = str(error).strip().split("\n")[0] or one_line(error)
        raise ValueError(f"{path} is no {kind}, or it is cut short or damaged: {why}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ValueError(f"{path} is no {kind}")
    if type(content.get("version")) is not int or content["version"] != version:
        raise ValueError(
            f"{path} has version {content.get('version')!r:.40} of the format {kind}, this fem-frames reads {version}; "
            "use the release that wrote it"
        )
    return content


def are_weights(value: Any) -> bool:
    """Whether the value is an ordinary tensor of finite numbers."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.is_floating_point():
        return False
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return False  # strides of zero: few bytes that claim any number of entries
    return bool(torch.isfinite(value).all())


def are_plain_tensors(values: Iterable[Any]) -> bool:
    """Whether all are ordinary tensors: users' modules may keep counts, masks and infinities beside their weights."""
    return all(isinstance(value, torch.Tensor) and value.layout == torch.strided for value in values)


def is_plain(value: Any) -> bool:
    """Whether the value consists of tensors, numbers and texts in lists and dictionaries that `load_tensors` reads."""
    if isinstance(value, dict):
        return all(map(is_plain, value.keys())) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, torch.Tensor) or type(value) in (int, float, bool, complex, str, type(None))
