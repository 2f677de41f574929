"""Carries pip's configuration into an image build: turns `pip config list` into a pip.conf and mounts.

Reads the options from standard input, writes FOLDER/pip.conf, and prints one buildah argument per line
to mount it and every local file and folder that it names.
"""

import ast
import re
import sys
from pathlib import Path

folder = Path(sys.argv[1])
options: dict[str, str] = {}
mounts = {folder / "pip.conf": "/etc/pip.conf"}
for line in sys.stdin:
    name, value = line.rstrip("\n").split("=", 1)
    option = name.rsplit(".", 1)[1]
    if option != "constraint":  # an active .venv pins the NumPy of the DOLFINx here, not of the image's
        options[option] = str(ast.literal_eval(value))
if "cert" in options:
    # Mounted elsewhere, because the image installs its own certificates in the usual place.
    mounts[Path(options["cert"])] = "/etc/pip-cert.pem"
    options["cert"] = "/etc/pip-cert.pem"
for value in options.values():
    for scheme, local in re.findall(r"(?:^|\s)(file://)?(/\S+)", value):
        place = Path(local).parent if scheme else Path(local)  # an index refers to files next to it
        if place.is_dir():
            mounts[place] = str(place)
(folder / "pip.conf").write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in options.items()))
for source, target in mounts.items():
    print(f"--volume={source}:{target}:ro")
