"""What Jupyter and its kernels run with: this Python, folders of their own, and the environment's kubectl.

The user's ~/.jupyter, ~/.ipython and ~/.local/share/jupyter are neither read nor written: a kernel or a setting of theirs must not
decide with which Python a lab runs or on which address a server listens.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from orchlab.course import kubectl, working
from orchlab.environment import Environment
from orchlab.paths import private_folder, write_private

KERNEL = "python3"


def jupyter_folder() -> Path:
    return private_folder(working.home() / "jupyter")


def variables(env: Environment, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The whole environment of a Jupyter server or kernel: `base` with what a lab in `env` needs, terminals included."""
    folder = jupyter_folder()
    spec = private_folder(private_folder(private_folder(folder / "share") / "kernels") / KERNEL)
    write_private(spec / "kernel.json", json.dumps({
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "Python 3 (orchlab)",
        "language": "python", "metadata": {"debugger": True, "supported_encryption": ["curve"]}, "kernel_protocol_version": "5.5"}))
    own = {
        "JUPYTER_PATH": str(folder / "share"),
        "JUPYTER_CONFIG_DIR": str(private_folder(folder / "config")),
        "JUPYTER_DATA_DIR": str(private_folder(folder / "data")),
        "JUPYTER_RUNTIME_DIR": str(private_folder(folder / "runtime")),
        "IPYTHONDIR": str(private_folder(folder / "ipython")),
        # A lab's code needs no debugger; without it a kernel starts without a warning about frozen modules.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "ORCHLAB_ENVIRONMENT": env.name,
    }
    shell = env.variables()
    shell["PATH"] = f"{shell['PATH']}{os.pathsep}{base.get('PATH', '/usr/bin:/bin')}"
    terminal = kubectl.variables(env, "default") if env.record.kubernetes != "none" else {}
    return {**base, **terminal, **shell, **own}


def terminal(env: Environment, shell: str | None = None) -> list[str]:
    """The command of a terminal in which the environment's kubectl and orchlab come first. A login shell, which Jupyter would start, sets
    PATH anew; bash gets a start-up file that reads the user's own first, other shells are started as they are."""
    program = shell or os.environ.get("SHELL") or "/bin/sh"
    if Path(program).name != "bash":
        return [program]
    exports = [f"export {name}={shlex.quote(value)}" + (':"$PATH"' if name == "PATH" else "") for name, value in env.variables().items()]
    path = write_private(jupyter_folder() / f"{env.name}.bashrc", "\n".join(["[ -r ~/.bashrc ] && . ~/.bashrc", *exports]) + "\n")
    return [program, "--rcfile", str(path)]
