"""The small programs in an environment's slurm/bin: Slurm's commands, starters for daemons, orchlab-sleep, the task prolog."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from orchlab.paths import write_private
from orchlab.slurm.layout import Layout
from orchlab.slurm.packages import MORE_COMMANDS, NEEDED_COMMANDS, Programs, mariadb_tables
from orchlab.supervisor import MARK

# These open ports of their own for their tasks to call back.
LISTENING = ("srun", "salloc", "sattach")
# Its own check refuses SlurmUser, who could do anything anyway; here every user is that one. Unsharing needs rights that containers lack.
REST_ENVIRONMENT = {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_user_check,disable_unshare_sysv,disable_unshare_files"}

SLEEP = """\
#!/bin/sh
# A job's simulated run time: sleeps SECONDS (or 90s, 15m, 2h30m, 1d) divided by the environment's clock factor.
factor={factor}
case "${{1-}}" in
-h|--help|"")
    echo "usage: orchlab-sleep TIME   simulated run time: 90, 90s, 15m, 2h30m; here $factor simulated seconds pass in a real one"
    [ "${{1-}}" ]
    exit;;
esac
if [ $# -ne 1 ]; then echo "orchlab-sleep: give one time, for example 90 or 2h30m; not: $*" >&2; exit 2; fi
real=$(awk -v text="$1" -v factor="$factor" 'BEGIN {{
    if (text ~ /^[0-9]+(\\.[0-9]+)?$/) {{ printf "%.3f %s", text / factor, text; exit }}
    unit["s"] = 1; unit["m"] = 60; unit["h"] = 3600; unit["d"] = 86400
    while (match(text, /^[0-9]+(\\.[0-9]+)?[smhd]/)) {{
        total += substr(text, 1, RLENGTH - 1) * unit[substr(text, RLENGTH, 1)]; text = substr(text, RLENGTH + 1); some = 1
    }}
    if (text != "" || !some) exit 1
    printf "%.3f %s", total / factor, total }}') || {{ echo "orchlab-sleep: $1 is not a time; write 90, 90s, 15m or 2h30m" >&2; exit 2; }}
echo "orchlab-sleep: ${{real#* }} s of simulated run time, ${{real% *}} s real"
exec sleep "${{real% *}}"
"""

# slurmstepd reads "export NAME=VALUE" lines. The mark is how `orchlab down` finds what jobs have started.
PROLOG = """\
#!/bin/sh
echo export {mark}={environment}
[ "$SLURM_CONF" ] || echo export SLURM_CONF={conf}
case ":$PATH:" in *:{bin}:*) ;; *) echo "export PATH={bin}:${{PATH:-/usr/local/bin:/usr/bin:/bin}}";; esac
"""

MARIADBD = """\
#!/bin/sh
# Makes the database's folder at the first start: beside its place, then into it, so that a start which was cut short leaves no half of one.
# Only the tables that the server itself needs: mariadb-install-db would fill in its help texts as well, which takes six times as long.
set -e
if [ ! -d {data} ]; then
    rm -rf {data}.new
    mkdir -p {data}.new/mysql
    {{ echo "use mysql;"; echo "set @auth_root_socket={user};"; cat {tables}; }} |
        {mariadbd} --datadir={data}.new --bootstrap --enforce-storage-engine= --log-warnings=0
    mv {data}.new {data}
fi
exec {mariadbd} --datadir={data} {serving}
"""

RESTD = """\
#!/bin/sh
# After a kill its socket is still there, and it would not bind to it again.
rm -f {socket}
exec {slurmrestd} -a rest_auth/jwt unix:{socket}
"""


def write(layout: Layout, programs: Programs, clock: float, user: str) -> None:
    """Writes all of them; `clock` in simulated seconds per real second."""
    for name in (*NEEDED_COMMANDS, *MORE_COMMANDS):
        if name in programs.paths:
            _command(layout, programs, name)
    for name in ("slurmctld", "slurmd", "slurmstepd"):
        _command(layout, programs, name)
    q = _quoted
    _script(layout.bin / "orchlab-sleep", SLEEP.format(factor=f"{clock:g}"))
    _script(layout.bin / "task-prolog", PROLOG.format(mark=MARK, environment=q(layout.environment), conf=q(layout.conf), bin=q(layout.bin)))
    _script(
        layout.bin / "start-mariadbd",
        MARIADBD.format(
            data=q(layout.mysql),
            user=f"'{user}'",
            tables=shlex.join(map(str, mariadb_tables(programs.root))),
            mariadbd=shlex.join(_mariadbd(programs, user)),
            serving=shlex.join(
                [
                    f"--socket={layout.mysql_socket}",
                    f"--pid-file={layout.run / 'mariadbd.pid'}",
                    f"--init-file={layout.etc / 'database.sql'}",
                ]
            ),
        ),
    )
    _script(layout.bin / "start-slurmrestd", RESTD.format(socket=q(layout.rest_socket), slurmrestd=q(programs.paths["slurmrestd"])))
    # One statement per line: that is how --init-file is read.
    write_private(
        layout.etc / "database.sql",
        f"CREATE DATABASE IF NOT EXISTS slurm_acct;\nCREATE USER IF NOT EXISTS `{user}`@localhost IDENTIFIED VIA unix_socket;\n"
        f"GRANT ALL ON slurm_acct.* TO `{user}`@localhost;\n",
    )


def munged(layout: Layout, programs: Programs) -> tuple[str, ...]:
    """--force: the socket's folder is closed to other users on purpose, which munged would refuse."""
    return (
        str(programs.paths["munged"]),
        "--foreground",
        "--force",
        f"--socket={layout.munge_socket}",
        f"--key-file={layout.keys / 'munge.key'}",
        f"--pid-file={layout.run / 'munged.pid'}",
        f"--log-file={layout.folder / 'munged.log'}",
        f"--seed-file={layout.keys / 'munge.seed'}",
        "--num-threads=2",
    )


def _mariadbd(programs: Programs, user: str) -> list[str]:
    # A small buffer, no redo log of its default 96 MiB; --user is what lets root run it.
    return [
        str(programs.paths["mariadbd"]),
        "--no-defaults",
        *_mariadb_places(programs),
        f"--user={user}",
        "--skip-networking",
        "--skip-log-bin",
        "--skip-name-resolve",
        "--log-warnings=1",
        "--innodb-buffer-pool-size=64M",
        "--innodb-log-file-size=16M",
        "--innodb-lock-wait-timeout=900",
    ]


def _mariadb_places(programs: Programs) -> list[str]:
    if programs.root is None or programs.root not in programs.paths["mariadbd"].parents:
        return []
    base = programs.root / "usr"
    return [f"--basedir={base}", f"--lc-messages-dir={base / 'share/mysql'}", f"--character-sets-dir={base / 'share/mysql/charsets'}"]


def _command(layout: Layout, programs: Programs, name: str) -> None:
    """A link where that is enough, else a wrapper that sets what the program needs."""
    path, target = layout.bin / name, programs.paths[name]
    settings = dict(programs.environment)
    if name in LISTENING and layout.preload.exists():
        settings["LD_PRELOAD"] = str(layout.preload)
    # The daemons get their settings from supervisord (slurmstepd from slurmd), and have to be called by these names.
    if name in ("slurmctld", "slurmd", "slurmstepd") or not settings:
        temporary = path.with_name(f".{name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.replace(path)
        return
    exports = " ".join(f"{key}={_quoted(value)}" for key, value in settings.items())
    _script(path, f'#!/bin/sh\n{exports} exec {_quoted(target)} "$@"\n')


def _script(path: Path, text: str) -> None:
    if path.is_symlink():
        path.unlink()
    write_private(path, text)
    path.chmod(0o700)


def _quoted(value: object) -> str:
    return shlex.quote(str(value))
