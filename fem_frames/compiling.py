"""Compiles C code for this processor when it is first needed, and keeps it in the user's cache.

DOLFINx compiles its forms in the same way, so a machine that makes frames has a C compiler. Where there is none, the
same algorithms run in torch. FEM_FRAMES_KERNELS=torch turns compilation off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-Wno-psabi")
NATIVE = ("-march=native", "-mcpu=native", "")  # the first that the compiler knows
VARIABLE = "FEM_FRAMES_KERNELS"
CHOICES = ("auto", "torch")
SECONDS = 120  # for the compiler
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Source:
    """C code and what the compiler needs for it."""

    name: str
    """Begins the names of its libraries."""
    code: str
    flags: tuple[str, ...] = ()
    """Come before the code, on top of FLAGS: macros, such as -DREAL=float."""
    libraries: tuple[str, ...] = ()
    """Come after the code, such as -lm."""
    else_: str = ""
    """What happens where it cannot be compiled, for a warning; no warning if empty."""


def compiled(source: Source) -> ctypes.CDLL | None:
    """The library of C code; None where it cannot be had or is not wanted."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in CHOICES:
        raise ValueError(f"{VARIABLE} is {wanted!r}; choose from {', '.join(CHOICES)}")
    return None if wanted == "torch" else _library(source)


def in_threads(threads: int, run: Callable[[int], T]) -> list[T]:
    """[run(0), …, run(threads - 1)], each in a thread of its own; compiled functions run at the same time."""
    return [run(0)] if threads == 1 else list(_pool(threads, os.getpid()).map(run, range(threads)))


@functools.lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of this process: those of the process that it was forked from do not exist in it."""
    return ThreadPoolExecutor(threads, "compiled")


@functools.cache
def _library(source: Source) -> ctypes.CDLL | None:
    compiler = _compiler()
    try:
        return None if compiler is None else _built(source, compiler)
    except (OSError, subprocess.SubprocessError):
        return None


def _compiler() -> str | None:
    named = os.environ.get("CC", "").split()[:1]
    return next((found for name in named or ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def _built(source: Source, compiler: str) -> ctypes.CDLL | None:
    version = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True).stdout
    known = [source.code, *FLAGS, *NATIVE, *source.flags, *source.libraries, _processor()]
    key = hashlib.sha256(b"\0".join([version, *(text.encode() for text in known)])).hexdigest()[:24]
    with tempfile.TemporaryDirectory() as scratch:
        folder = _cache() or Path(scratch)
        library = folder / f"{source.name}-{key}.so"
        if not _is_whole(library) and not _compile(source, compiler, library):
            return None
        return ctypes.CDLL(str(library))  # stays loaded when its file is removed


def _is_whole(library: Path) -> bool:
    """Whether the file ends with the digest of what comes before: loading a damaged library would end the process."""
    try:
        content = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def _compile(source: Source, compiler: str, library: Path) -> bool:
    """Whether the library could be made; it appears whole, also where several processes make it at once."""
    handle, part = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        for native in NATIVE:
            flags = [flag for flag in (*FLAGS, native, *source.flags) if flag]
            command = [compiler, *flags, "-o", part, "-x", "c", "-", *source.libraries]
            done = subprocess.run(
                command, input=source.code.encode(), capture_output=True, timeout=SECONDS, check=False
            )
            if done.returncode == 0:
                content = Path(part).read_bytes()
                with Path(part).open("ab") as file:  # loaders ignore what follows the library
                    file.write(hashlib.sha256(content).digest())
                Path(part).replace(library)
                return True
        if source.else_:
            warnings.warn(
                f"{compiler} cannot compile {source.name}.c, so {source.else_}; set CC to another compiler, or "
                f"{VARIABLE}=torch to silence this",
                stacklevel=2,
            )
        return False
    finally:
        Path(part).unlink(missing_ok=True)


def _processor() -> str:
    """Names the instructions of the processor: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    named = {line.partition(":")[0].strip(): line for line in reversed(lines)}
    return "\n".join([platform.machine(), *(named.get(key, "") for key in ("model name", "flags", "Features"))])


def _cache() -> Path | None:
    """The user's folder for libraries, which nobody else may write to; None if there cannot be one."""
    if not hasattr(os, "getuid"):  # no owners of files
        return None
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (given if given.is_absolute() else Path.home() / ".cache") / "fem-frames"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):
        return None
    safe = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if safe and os.access(folder, os.W_OK | os.X_OK) else None
