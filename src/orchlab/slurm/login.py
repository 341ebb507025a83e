"""Slurm's commands for a cluster in containers: small programs on this machine that run the real ones on the login node by `docker exec`.

What a command reads from its environment goes along, and the working folder where the login node has it too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchlab.paths import write_private
from orchlab.slurm.packages import MORE_COMMANDS, NEEDED_COMMANDS

AS = "ORCHLAB_SLURM_AS"  # whom a command runs as instead of the environment's user
# These take the caller's environment along into the job; the others only read settings of their own.
CARRYING = ("sbatch", "srun", "salloc")
# These run as long as what they started, and are to end with it.
LASTING = ("srun", "salloc", "sattach")
# What the login node's own container was given is nothing for a job.
PLAIN = "env -u ORCHLAB_ROLE -u ORCHLAB_USER -u ORCHLAB_CONFIGURATION"
OWN_SETTINGS = "^(SLURM|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SACCT|SCANCEL|SPRIO|SSHARE|SREPORT|SCONTROL|SSTAT|TZ$|COLUMNS$)"
# This machine's places and sessions, which mean nothing on another.
LEFT_OUT = ("^(PATH|HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|SHLVL|TMPDIR|TEMP|TMP|HOSTNAME|HOST|MAIL|DISPLAY|_|SLURM_CONF|KUBECONFIG)$|"
            "^(LD_|DOCKER_|ORCHLAB_|XDG_|DBUS_|SSH_|PYTHON|VIRTUAL_ENV|CONDA|JPY_|JUPYTER|IPY|PYTEST|SUDO_|BASH_FUNC)|_proxy$|_PROXY$")

SCRIPT = """\
#!/bin/sh
# Runs {command} on the login node of this environment.
{settings}for name in $(awk 'BEGIN {{ for (name in ENVIRON) if (name ~ /^[A-Za-z_][A-Za-z0-9_]*$/ && {wanted}) print name }}'); do
    options="$options --env $name"
done
folder={home}
case "$(pwd -P)" in {shared}) folder=$(pwd -P);; esac
[ -t 0 ] && [ -t 1 ] && options="$options --tty"
{call}
"""
QUICK = """exec {docker} exec --interactive $options --user "${{{variable}:-{user}}}" --workdir "$folder" {container} {command} "$@\""""
# `docker exec` ends on a signal and leaves what it started: another call finds that by its mark.
SLOW = """\
mark=LOGIN_CALL=$$.$(date +%s%N)
stop() {{
    {docker} exec --user "${{{variable}:-{user}}}" {container} sh -c 'for process in /proc/[0-9]*; do
        tr "\\0" "\\n" <$process/environ | grep -qx "$1" && kill "${{process#/proc/}}"
    done' sh "$mark" 2>/dev/null
}}
trap stop TERM INT HUP
exec 3<&0
{docker} exec --interactive $options --env "$mark" --user "${{{variable}:-{user}}}" --workdir "$folder" {container} {command} "$@" <&3 &
child=$!
while :; do wait $child; status=$?; kill -0 $child 2>/dev/null || exit $status; done"""


def write(folder: Path, docker: str, settings: Mapping[str, str], container: str, user: str, home: str, shared: Iterable[Path]) -> None:
    """Writes one program for each command into `folder`."""
    quote = shlex.quote
    lines = "".join(f"export {name}={quote(value)}\n" for name, value in settings.items()) + 'options=""\n'
    places = "|".join(f"{quote(str(path))}|{quote(str(path))}/*" for path in shared)
    for command in (*NEEDED_COMMANDS, *MORE_COMMANDS, "orchlab-sleep"):
        wanted = f"(name ~ /{OWN_SETTINGS}/ || name !~ /{LEFT_OUT}/) && name !~ /^SLURM_CONF$/" if command in CARRYING else f"name ~ /{OWN_SETTINGS}/ && name !~ /^SLURM_CONF$/"
        call = (SLOW if command in LASTING else QUICK).format(docker=quote(docker), variable=AS, user=quote(user), container=container, command=f"{PLAIN} {command}")
        path = write_private(folder / command, SCRIPT.format(command=command, settings=lines, wanted=wanted, home=quote(home), shared=places, call=call))
        path.chmod(0o700)
