"""Python programs in processes of their own, forked from one that has imported torch already.

Such a process has its own modules, streams, signals and exit code, and can be killed, like one that is started anew;
what it saves is the import of torch, a second each time. Of what `fem_frames` imports it has NumPy and torch only,
before a program begins. Programs that are about the start itself are started anew, by `subprocess`.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = "import sys\nfrom fem_frames.commands import main\nsys.exit(main())\n"
"""`fem-frames`, as its script has it."""


class Child:
    """A process that was forked; like subprocess.Popen."""

    def __init__(self, program, arguments, cwd, environment):
        self._answers, requests = _server()
        self._folder = tempfile.TemporaryDirectory()
        self.returncode = None
        request = {
            "program": program,
            "arguments": [str(a) for a in arguments],
            "cwd": str(cwd or os.getcwd()),
            "environment": dict(os.environ if environment is None else environment),
            "folder": self._folder.name,
        }
        requests.write(json.dumps(request).encode() + b"\n")
        self.pid = int(self._answers.readline())

    def poll(self):
        """The exit code, once there is one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a program", timeout)
            self.returncode = int(self._answers.readline())
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=120):
        """(stdout, stderr), when it has ended."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
            raise
        said = tuple((Path(self._folder.name) / name).read_text() for name in ("stdout", "stderr"))
        self._folder.cleanup()
        return said


def start_program(program, *arguments, cwd=None, env=None):
    """`python -P -c program arguments`; one at a time."""
    return Child(program, arguments, cwd, env)


def run_program(program, *arguments, cwd=None, env=None, timeout=300):
    """The same, to its end."""
    child = Child(program, arguments, cwd, env)
    stdout, stderr = child.communicate(timeout)
    return subprocess.CompletedProcess(["python", *map(str, arguments)], child.returncode, stdout, stderr)


@functools.cache
def _server():
    """(answers, requests) of the process that forks."""
    # Without buffers: `select` sees what they hold as nothing.
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    # os.environ is as it was before this process initialised MPI: what that added would mislead MPI elsewhere.
    server = subprocess.Popen([sys.executable, "-P", __file__], env=dict(os.environ), **pipes)
    atexit.register(_end, server)
    return server.stdout, server.stdin


def _end(server):
    server.stdin.close()
    server.wait()


def _serve():
    """Forks for every request and tells pid and exit code; in the child returns the program."""
    import torch._dynamo  # noqa: F401  which optimizers import

    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    for line in requests:
        pid = os.fork()
        if pid == 0:
            request = json.loads(line)
            requests.close()
            answers.close()
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["cwd"])
            for number, name in enumerate((os.devnull, "stdout", "stderr")):
                opened = os.open(Path(request["folder"]) / name, os.O_RDWR | os.O_CREAT)
                os.dup2(opened, number)
                os.close(opened)
            sys.argv = ["-c", *request["arguments"]]
            return request["program"]
        answers.write(f"{pid}\n")
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
    sys.exit()


if __name__ == "__main__":
    exec(compile(_serve(), "<string>", "exec"), {"__name__": "__main__"})
