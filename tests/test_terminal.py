"""What the command does with Ctrl-C while it starts, with terminals that lack letters, and with full disks."""

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial
ENTRIES = {
    "module": [sys.executable, "-m", "fem_frames.commands"],
    "script": [sys.executable, "-c", "import sys; from fem_frames.commands import main; sys.exit(main())"],
}
LIBRARIES = {"numpy": "_multiarray_umath", "torch": "libtorch_cpu", "DOLFINx": "libdolfinx"}


def environment(**more):
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONUNBUFFERED", "PYTHONIOENCODING")} | more


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system does not tell what a process has loaded")
@pytest.mark.parametrize(
    ("entry", "library", "delay"),
    [*product(["module"], LIBRARIES, [0.0, 0.05, 0.2]), *product(["script"], LIBRARIES, [0.05])],
)
def test_ctrl_c_while_modules_load_is_one_line(entry, library, delay):
    """Sent when the process has just loaded a library, so amid its import, and a little later."""
    command = [*ENTRIES[entry], "condition", "--problem", "checkerboard", "--levels", "8"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        maps = Path(f"/proc/{process.pid}/maps")
        until = time.monotonic() + 60
        while LIBRARIES[library] not in maps.read_text() and time.monotonic() < until:
            time.sleep(0.002)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert stderr in ("fem-frames: interrupted\n", "fem-frames: interrupted; what was finished is kept\n")


def test_ctrl_c_is_left_to_those_who_call_main():
    """Called from Python, the command leaves the handler as it was."""
    program = """
import signal
from fem_frames.commands import main
main(["problems"])
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
main(["problems"])
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["condition", "--help"], ["rounding", "--help"], ["--help"]])
def test_a_terminal_that_lacks_letters_gets_question_marks(arguments):
    """The texts have ᵀ, which ASCII does not."""
    done = subprocess.run(
        [*ENTRIES["module"], *arguments],
        env=environment(LC_ALL="C", PYTHONIOENCODING="ascii"),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"H?A_yH" in done.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["--version"], ["problems"], ["problems", "--json"]]
)
def test_output_that_cannot_be_written_is_no_success(arguments, unbuffered):
    """train --help is longer than Python's buffer, the others are shorter."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("the system has no file that is always full")
    command, more = [*ENTRIES["module"], *arguments], environment(PYTHONUNBUFFERED=unbuffered)
    with full.open("w") as file:
        done = subprocess.run(
            command, env=more, stdout=file, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        assert done.stderr == "fem-frames: OSError: [Errno 28] No space left on device\n"
        nowhere = subprocess.run(command, env=more, stdout=file, stderr=file, check=False, timeout=60)
        assert nowhere.returncode != 0
