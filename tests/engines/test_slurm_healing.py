"""What happens to a Slurm cluster when its daemons are killed, when it is stopped with jobs running, when it is large, and when it
cannot be had."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from slurm_support import cluster, until, work  # noqa: F401 - fixtures

from orchlab import environment
from orchlab.errors import EngineUnavailable
from orchlab.slurm import notebook, packages
from orchlab.slurm.client import Client
from orchlab.supervisor import leftovers

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = {"pools": [{"name": "gpu", "count": 1, "gpus": {"model": "T4", "count": 2}, "cpu": 8, "memory": "32Gi"}]}


def state_of(env, name: str):
    return next(state for state in env.health() if state.name == name)


# Every task runs until it may end, so that nothing starts or ends while daemons die.
TASK = "#!/bin/bash\nwhile [ ! -e go ]; do sleep 0.2; done\necho done >> done.$SLURM_ARRAY_TASK_ID\n"


def await_saved(env) -> None:
    """slurmctld writes changes down within five seconds, not at once. A crash forgets what it started after that: production's daemon
    too."""
    seen = time.time()
    until(lambda: time.time() > seen + 12 or (env.folder / "slurm" / "state" / "job_state").stat().st_mtime > seen)


def test_every_daemon_is_killed_during_an_array_and_nothing_is_lost(cluster, work):
    with Client.of(cluster, "commands", seconds=40) as client:
        array = client.submit(TASK, array="0-23", gres="gpu:h100:4", chdir=str(work), output="/dev/null")
        until(lambda: sum(job.state == "RUNNING" for job in client.jobs(array)) == 8)
        await_saved(cluster)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged", "slurmrestd", "slurmd.h100-0"):
            before = state_of(cluster, name)
            assert before.pid > 1
            os.kill(before.pid, signal.SIGKILL)
            until(lambda name=name, before=before: (now := state_of(cluster, name)).healthy and now.pid != before.pid, 60)
            assert sum(job.state == "RUNNING" for job in client.jobs(array)) == 8, f"after {name} was killed"
        (work / "go").touch()
        client.wait(array, condition=lambda jobs: all(job.ended_for_good and not job.array_tasks for job in jobs), seconds=150)
        past = until(lambda: found if len(found := client.accounting([array])) == 24 and all(job.ended for job in found) else None, 60)
        assert {job.state for job in past} == {"COMPLETED"}, [(job.id, job.state) for job in past if job.state != "COMPLETED"]
        assert sorted(job.array_task for job in past) == list(range(24))
        assert all(job.tres["gres/gpu:h100"] == 4 for job in past)
        assert {path.name: path.read_text() for path in work.glob("done.*")} == {
            f"done.{task}": "done\n" for task in range(24)
        }, "each ran to its end, once"


def test_down_with_jobs_running_leaves_nothing_and_up_runs_them_again(home):
    env = environment.up("stop", kubernetes="none", slurm="local", fleet=SMALL)
    try:
        with Client.of(env, "commands") as client:
            escaping = "#!/bin/bash\nsetsid sleep 1000 &\necho started >> starts\norchlab-sleep 10h\n"
            job = client.submit(escaping, gres="gpu:t4:1", chdir=str(home), output="/dev/null", environment={"MARKED": str(home)})
            until(lambda: (home / "starts").exists())
        assert environment.down("stop")
        assert leftovers(str(env.folder)) == []
        assert not [
            process for process in psutil.process_iter() if marked(process, str(home))
        ], "not even what a job has put into the background"
        assert list((env.folder / "slurm" / "run").iterdir()) == []
        assert not [path for path in (env.folder / "slurm" / "spool").glob("*/*") if path.is_socket()], "no slurmstepd either"
        environment.up("stop")
        with Client.of(env, "commands") as client:
            until(lambda: client.job(job).state == "RUNNING" and (home / "starts").read_text().count("started") == 2, 90)
            assert client.job(job).restarts == 1
            assert client.accounting([job])
        await_saved(env)
        # The same when supervisord is killed: the daemons go with it, what they had started does not.
        os.kill(int((env.folder / "supervisor" / "pid").read_text()), signal.SIGKILL)
        until(lambda: not env.supervisor.running())
        environment.up("stop")
        with Client.of(env, "commands") as client:
            until(lambda: client.job(job).state == "RUNNING" and client.job(job).restarts == 2, 90)
            until(lambda: (home / "starts").read_text().count("started") == 3)
            assert (
                sum(marked(process, str(home)) and process.name() == "slurm_script" for process in psutil.process_iter()) == 1
            ), "not the old one beside it"
    finally:
        environment.down("stop", purge=True)
    assert leftovers(str(env.folder)) == [] and not env.folder.exists()


def marked(process: psutil.Process, value: str) -> bool:
    try:
        return process.environ().get("MARKED") == value
    except psutil.Error:
        return False


def test_sixty_four_nodes(home):
    pool = {"name": "n", "count": 64, "gpus": {"model": "A100-40", "count": 8}, "cpu": 16, "memory": "64Gi"}
    env = environment.up("large", kubernetes="none", slurm="local", fleet={"zones": {"z": ["r1", "r2", "r3", "r4"]}, "pools": [pool]})
    try:
        with Client.of(env, "commands") as client:
            assert [node.state for node in client.nodes()] == ["IDLE"] * 64
            job = client.submit(
                "#!/bin/bash\nsrun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'\n",
                nodes=64,
                ntasks=64,
                gres="gpu:8",
                chdir=str(home),
                output=str(home / "out"),
            )
            client.wait(job, seconds=120)
            lines = (home / "out").read_text().splitlines()
            assert len({line.split()[0] for line in lines}) == 64 and {line.split()[1] for line in lines} == {"0,1,2,3,4,5,6,7"}
    finally:
        environment.down("large", purge=True)
    assert leftovers(str(env.folder)) == []


def test_mig_and_two_models_of_one_family(home):
    pools = [
        {"name": "whole", "count": 1, "gpus": {"model": "A100-40", "count": 2}, "cpu": 8, "memory": "32Gi"},
        {
            "name": "split",
            "count": 1,
            "gpus": {"model": "A100-80", "count": 1},
            "cpu": 8,
            "memory": "32Gi",
            "labels": {"nvidia.com/mig.config": "all-balanced"},
        },
    ]
    env = environment.up("mig", kubernetes="none", slurm="local", fleet={"pools": pools})
    try:
        with Client.of(env, "commands") as client:
            assert {node.name: dict(node.gres) for node in client.nodes()} == {
                "whole-0": {"gpu:a100_40": 2},
                "split-0": {"gpu:a100_80_1g.10gb": 2, "gpu:a100_80_2g.20gb": 1, "gpu:a100_80_3g.40gb": 1},
            }
            job = client.submit(
                "#!/bin/bash\necho $SLURMD_NODENAME:$CUDA_VISIBLE_DEVICES\n",
                gres="gpu:a100_80_3g.40gb:1",
                chdir=str(home),
                output=str(home / "out"),
            )
            client.wait(job, seconds=60)
            assert (home / "out").read_text() == "split-0:3\n", "an index into the node's GPU files"
            past = until(lambda: next((found for found in client.accounting([job]) if found.ended), None))
            assert past.tres["gres/gpu:a100_80_3g.40gb"] == past.tres["gres/gpu"] == 1
    finally:
        environment.down("mig", purge=True)


def test_where_slurm_cannot_be_had_it_says_why(home, monkeypatch):
    def refuse(say):
        raise EngineUnavailable("this machine has no slurmctld, and no apt to get it with", "install Slurm")

    monkeypatch.setattr(packages, "ensure", refuse)
    with pytest.raises(EngineUnavailable, match="no apt to get it with"):
        environment.up("alone", kubernetes="none", slurm="local", fleet=SMALL)
    env = environment.up("beside", kubernetes="local", slurm="local", fleet=SMALL)
    try:
        assert "no apt to get it with" in env.record.left_out["slurm"]
        assert all(state.healthy for state in env.health()), "Kubernetes is up all the same"
        assert "kube-apiserver" in {state.name for state in env.health()} and "slurmctld" not in {state.name for state in env.health()}
        monkeypatch.undo()
        monkeypatch.setenv("ORCHLAB_HOME", str(home))
        env = environment.up("beside")
        assert env.record.left_out == {} and "slurmctld" in {state.name for state in env.health()}, "the next up tries again"
        assert "| idle" not in notebook.slurm(env, "sinfo") and "idle" in notebook.slurm(env, "sinfo")
    finally:
        environment.down("beside", purge=True)


SESSION = """
import json, os, sys
from orchlab import environment
from orchlab.slurm.client import Client
from orchlab.supervisor import leftovers

SCRIPT = "#!/bin/bash\\nid -un; echo gpus=$CUDA_VISIBLE_DEVICES\\n"
env = environment.up("user", kubernetes="none", slurm="local", fleet=json.loads(sys.argv[1]))
try:
    with Client.of(env, "commands") as client:
        job = client.submit(SCRIPT, gres="gpu:t4:2", account="team-a", chdir=sys.argv[2], output=sys.argv[2] + "/out")
        client.wait(job, seconds=60)
    with Client.of(env, "rest") as rest:
        told = rest.job(job).user
    files = [os.path.join(folder, name) for folder, _, names in os.walk(env.folder) for name in names]
    owners = {os.stat(path, follow_symlinks=False).st_uid for path in files if os.path.lexists(path)}
    modes = {oct(os.stat(env.folder / "slurm" / "keys" / name).st_mode & 0o777) for name in ("munge.key", "jwt.key")}
finally:
    environment.down("user", purge=True)
out = open(sys.argv[2] + "/out").read()
left = len(leftovers(str(env.folder)))
print(json.dumps({"uid": os.geteuid(), "out": out, "told": told, "owners": sorted(owners), "modes": sorted(modes), "left": left}))
"""


def test_an_ordinary_user_runs_it_all():
    import json

    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    folder = Path(tempfile.mkdtemp(prefix="ol", dir="/tmp"))
    try:
        python = interpreter_for(user, folder)
        os.chown(folder, user.pw_uid, user.pw_gid)
        command = [str(python), "-c", SESSION, json.dumps(SMALL), str(folder)]
        if os.geteuid() == 0:
            command = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            cwd=folder,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "ORCHLAB_HOME": str(folder / "state"),
                "ORCHLAB_CACHE": str(folder / "cache"),
            },
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout.splitlines()[-1])
        assert told == {
            "uid": user.pw_uid,
            "out": f"{user.pw_name}\ngpus=0,1\n",
            "told": user.pw_name,
            "owners": [user.pw_uid],
            "modes": ["0o600"],
            "left": 0,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def interpreter_for(user, folder: Path) -> Path:
    """A Python of the version that runs the tests and with the same packages, which that user can execute (ours may be in root's home)."""
    if os.geteuid() == user.pw_uid:
        return Path(sys.executable)
    for base in (sys._base_executable, f"/usr/bin/python3.{sys.version_info.minor}", f"/usr/local/bin/python3.{sys.version_info.minor}"):
        # setpriv itself still has root's rights when it executes its command: see whether that command can do it again.
        again = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
        usable = subprocess.run(
            ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", base, "-c", again],
            capture_output=True,
            timeout=30,
            check=False,
        )
        if usable.returncode == 0:
            subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", folder / "venv"], check=True, timeout=60)
            site = next((folder / "venv" / "lib").glob("python3*/site-packages"))
            (site / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n{REPOSITORY / 'src'}\n")
            return folder / "venv" / "bin" / "python"
    raise AssertionError(f"{user.pw_name} can execute no Python 3.{sys.version_info.minor}; install one outside of root's home")
