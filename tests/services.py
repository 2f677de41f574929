"""`fem-frames serve` in a process of its own, on a free port of the loopback, and small runs for it."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from training import Configuration, train

ROOT = Path(__file__).parent.parent
RUNS = {
    "multigrid": dict(problem="disks", levels=3, net="multigrid", epochs=20),
    "net": dict(problem="lshape", levels=2, epochs=5, rank=3, precision="float64"),
    "least squares": dict(problem="quarters", formulation="least-squares", levels=3, epochs=5, rank=3),
}
NAMED = ("--point", "0.5,0.5", "--point", "0.3,0.6", "--mean", "all", "--through", "all")
START, END, LIFE = 120, 30, 300  # seconds


class Service:
    """A service that runs; ends with the context, and after LIFE seconds so that no client waits for ever."""

    def __init__(self, folder, *options, batch=256, cwd=None):
        command = ["serve", folder, "--port", 0, "--json", "--verbose", "--batch", batch, *options]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fem_frames.commands", *map(str, command)],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self._watchdog = threading.Timer(LIFE, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        ready = select.select([self.process.stdout], [], [], START)[0]
        line = self.process.stdout.readline() if ready else b""
        if not line.strip():
            self.end(signal.SIGKILL)
            raise AssertionError(f"the service did not start: {self.log}")
        self.record = json.loads(line)
        self.url = self.record["url"]

    @property
    def log(self):
        """What it has written to stderr so far."""
        self._log.seek(0)
        return self._log.read()

    def end(self, number=signal.SIGTERM):
        """The exit code after a signal."""
        self._watchdog.cancel()
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(END)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()


def trained(folder, name):
    """The folder of a run, which is trained if it is not there."""
    if not (folder / name).exists():
        train(Configuration(**RUNS[name], test_samples=0), folder / name, quiet=True)
    return folder / name


def post(service, path, body):
    """Status, and the reply or its error."""
    requests = pytest.importorskip("requests")
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = requests.post(f"{service.url}/{path}", data=data, timeout=60)
    found = json.loads(reply.text, parse_constant=pytest.fail)  # NaN and infinities are no JSON
    return reply.status_code, found.get("error", found)
