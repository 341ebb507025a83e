"""What the existing backend takes and refuses before and beside a cluster: commands, addresses, tokens, notes of jobs."""

from __future__ import annotations

import base64
import json

import pytest

from orchlab import environment
from orchlab.errors import BadInput, EngineUnavailable, EnvironmentBroken
from orchlab.slurm import existing


def jwt(**claims) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJIUzI1NiJ9.{body}.c2ln"


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A folder with stand-ins for Slurm's commands, first on PATH: they say which release they are and nothing else."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("sbatch", "squeue", "sinfo", "scontrol", "scancel", "sacct", "sacctmgr", "srun"):
        text = "echo slurm 24.05.3" if name == "sinfo" else "echo '{\"nodes\": []}'"
        (folder / name).write_text(f"#!/bin/sh\n[ -z \"$SLURM_CONF\" ] || echo \"$SLURM_CONF\" >>{tmp_path}/conf\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return folder


@pytest.fixture
def made(home, commands):
    """An environment upon those commands; nothing of it runs but an empty supervisor."""
    yield environment.up("far", kubernetes="none", slurm="existing")
    environment.down("far")


def test_the_commands_on_path_are_taken_with_their_configuration(home, commands, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    env = environment.up("far", kubernetes="none", slurm="existing")
    try:
        choice = existing.chosen(env)
        assert (choice.version, choice.conf, choice.commands["sbatch"]) == ("24.05.3", "/etc/other/slurm.conf", str(commands / "sbatch"))
        monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
        (tmp_path / "conf").unlink()
        assert [state.name for state in env.health()] == ["slurm (existing)"]
        assert set((tmp_path / "conf").read_text().split()) == {"/etc/other/slurm.conf"}
        monkeypatch.setenv("PATH", f"{env.variables()['PATH']}:{commands}:/usr/bin:/bin")
        environment.up("far", slurm_url="none")
        assert existing.chosen(env).commands["sbatch"] == str(commands / "sbatch"), "not the wrapper of ours"
        assert existing.chosen(env).conf == "/etc/slurm/slurm.conf"
    finally:
        environment.down("far")


def test_without_commands_it_says_what_to_do(home, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="no sbatch, squeue.*on PATH"):
        environment.up("far", kubernetes="none", slurm="existing")


def test_commands_that_reach_no_cluster(home, commands):
    silent = "#!/bin/sh\necho 'scontrol: error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    (commands / "scontrol").write_text(silent)
    with pytest.raises(EnvironmentBroken, match="(?s)reach no Slurm: Unable to contact.*SLURM_CONF") as refused:
        environment.up("far", kubernetes="none", slurm="existing")
    assert str(commands) in str(refused.value)


@pytest.mark.parametrize(
    "url, token, error, words",
    [
        ("https://slurm.example:6820", "", EnvironmentBroken, "wants a token"),
        ("http://slurm.example:6820", jwt(sun="ann"), BadInput, "would send the token unprotected"),
        ("https://ann:geheim@slurm.example", jwt(sun="ann"), BadInput, "has a name or a password in it"),
        ("slurm.example", jwt(sun="ann"), BadInput, "is not an address of slurmrestd"),
        ("https://slurm.example", "two words", BadInput, "is no JSON web token"),
        ("https://slurm.example", jwt(sun="ann", exp=1_700_000_000), EnvironmentBroken, "expired at"),
        ("unix:/nowhere/slurmrestd.socket", jwt(sun="ann"), EnvironmentBroken, "cannot be reached"),
    ],
)
def test_addresses_and_tokens_that_cannot_be_used(home, url, token, error, words):
    with pytest.raises(error, match=words) as refused:
        environment.up("far", kubernetes="none", slurm="existing", slurm_url=url, slurm_token=token)
    assert "geheim" not in str(refused.value) and (not token or token not in str(refused.value))
    assert not (home / "far" / existing.FOLDER / "token").exists() and not (home / "far" / "environment.json").exists()


def test_an_address_needs_the_backend(home):
    with pytest.raises(BadInput, match="--slurm-url.*is for an existing Slurm"):
        environment.up("far", kubernetes="none", slurm="local", slurm_url="https://slurm.example")


def test_only_jobs_of_this_cluster_are_noted(made):
    notes = made.folder / existing.FOLDER / "submitted"
    notes.write_text("Submitted batch job 7\n8\n9;elsewhere\nSubmitted batch job 10 on cluster elsewhere\nsbatch: noise\n")
    existing.note(made)(11)
    assert existing.submitted(made.folder) == {7, 8, 11}


def test_another_cluster_takes_no_notes_of_the_first(made, monkeypatch):
    existing.note(made)(7)
    environment.up("far")
    assert existing.submitted(made.folder) == {7}
    monkeypatch.setenv("SLURM_CONF", "/etc/second/slurm.conf")
    environment.up("far", slurm_url="none")
    assert existing.submitted(made.folder) == set(), "job 7 there is somebody else's"


def test_in_a_notebook_one_may_look_and_do_what_is_for_ones_own_jobs(made):
    for line in ("scontrol show job 7", "scontrol hold 7", "scontrol update JobId=7 TimeLimit=5", "scontrol -o show nodes",
                 "sacctmgr -nP show qos", "squeue", "scancel 7", "sbatch --wrap true"):
        existing.refuse_change(made, line.split())
    for line in ("scontrol update node=a state=drain", "scontrol reconfigure", "scontrol", "scontrol -o", "scontrol shutdown",
                 "scontrol create reservation=x", "sacctmgr", "sacctmgr -i delete account x", "sacctmgr modify qos x set priority=1"):
        with pytest.raises(BadInput, match="never changes"):
            existing.refuse_change(made, line.split())


def test_a_cluster_that_is_gone_does_not_hinder_its_removal_but_jobs_are_named(home, commands, caplog):
    env = environment.up("far", kubernetes="none", slurm="existing")
    existing.note(env)(7)
    (commands / "squeue").write_text("#!/bin/sh\necho 'squeue: error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n")
    assert environment.down("far", purge=True)
    assert not env.folder.exists() and "may still be in Slurm: 7 (Unable to contact" in caplog.text


@pytest.mark.parametrize("text", ["", "x", "a.b.c", "a.e30", "a.W10.c"])
def test_claims_of_what_is_no_token(text):
    assert existing.claims(text) == {}
