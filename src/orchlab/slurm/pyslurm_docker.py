"""pyslurm of the `docker` backend: the worker runs on the login node, where the image was built with one (build argument PYSLURM)."""

from __future__ import annotations

import subprocess

from orchlab.environment import Environment
from orchlab.slurm import compose, docker
from orchlab.slurm.errors import NotOffered
from orchlab.slurm.pyslurm_transport import PySlurm


class PySlurmInLogin(PySlurm):
    """Raises NotOffered when the image has no pyslurm."""

    def __init__(self, env: Environment, seconds: float = 20) -> None:
        super().__init__({}, seconds)
        self._chosen = docker.chosen_for(env.folder)
        self._login = compose.container(env.name, "login")

    def _start(self, deadline: float) -> None:
        if not self._chosen.pyslurm:
            raise NotOffered("the image has no pyslurm", "ORCHLAB_SLURM_PYSLURM=… orchlab up builds one with it; its major.minor has to be Slurm's")
        self._worker = subprocess.Popen(
            [self._chosen.docker.program, "exec", "--interactive", "--user", docker.user().pw_name, self._login, "/opt/pyslurm/bin/python", "/opt/orchlab/pyslurm_worker.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, env=self._environment | dict(self._chosen.docker.settings))
        # When it is killed here, its other half reads the end of its input, and ends.
        self._line(deadline, "import pyslurm")
