"""Optional engines: what the record and the declarations say, without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from cryptography import x509

from orchlab import engines, pki
from orchlab.engines import running
from orchlab.environment import Environment, Record
from orchlab.errors import BadInput, EngineUnavailable
from orchlab.fleet import from_data
from orchlab.kube import addons, coscheduling, kueue, kueue_webhooks, local
from orchlab.paths import private_folder

FLEET = {"pools": [{"name": "gpu", "count": 1, "gpus": {"model": "H100-80", "count": 8}, "cpu": 96, "memory": "1Ti"}]}


@pytest.fixture
def env(home):
    """Recorded, never started."""
    made = Environment(Record(id="x", name="paper", created=0, slurm="none", fleet=from_data(FLEET).model_dump(mode="json"), engines={name: f"/bin/{name}" for name in local.ENGINES}))
    private_folder(made.folder)
    ports = [*local.PORTS, *kueue.PORTS, *coscheduling.PORTS]
    made.record.ports = {name: 20000 + number for number, name in enumerate(ports)}
    made.save()
    return made


def test_the_record_keeps_the_engines_and_an_older_record_has_none(env):
    env.record.addons.append("kueue")
    env.save()
    assert addons.present(Environment.load("paper")) == ["kueue"]
    path = env.folder / "environment.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "addons"}))
    assert addons.present(Environment.load("paper")) == []


def test_forgetting_empties_the_record_and_says_what_was_there(env):
    env.record.addons += ["kueue", "coscheduling"]
    env.save()
    assert addons.forget("paper") == ["kueue", "coscheduling"]
    assert addons.forget("paper") == [] == addons.present(Environment.load("paper"))
    assert addons.forget("no-such") == []


def test_an_environment_without_engines_declares_and_imports_nothing_of_them(env):
    assert not {"kueue", "kueue-webhooks", "coscheduling"} & {spec.name for spec in env.specs()}
    assert local.added_ports(env) == [] == local.added_engines(env)
    code = ("import sys; from orchlab.environment import Environment; env = Environment.load('paper'); env.specs();"
            "print([name for name in sys.modules if name.startswith(('orchlab.kube.addons', 'orchlab.kube.kueue', 'orchlab.kube.crds'))])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_cannot_be_added_is_refused(env):
    with pytest.raises(BadInput, match="(?s)volcano.*kueue, coscheduling"):
        addons.add(env, "volcano")
    env.record.kubernetes = "kind"
    with pytest.raises(BadInput, match="runs on the backend local only"):
        addons.add(env, "kueue")


def test_an_added_engine_brings_its_processes_ports_and_certificates(env):
    env.record.addons.append("coscheduling")
    env.record.engines["coscheduling"] = "/bin/coscheduling"
    local.prepare(env)
    spec = next(spec for spec in env.specs() if spec.name == "coscheduling")
    assert f"--secure-port={env.port('coscheduling')}" in spec.argv and "--bind-address=127.0.0.1" in spec.argv
    assert spec.needs == ("kube-apiserver",) and all(path.exists() for path in spec.files)
    assert local.added_ports(env) == ["coscheduling"] and local.added_engines(env) == ["coscheduling"]
    config = yaml.safe_load((env.folder / "coscheduling.yaml").read_text())
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["cosched"]
    client = x509.load_pem_x509_certificate((env.folder / "pki" / "coscheduling-client.crt").read_bytes())
    assert client.subject.rfc4514_string() == "CN=orchlab:coscheduling"
    assert all(path.stat().st_mode & 0o077 == 0 for path in (env.folder / "pki").iterdir())


def test_kueues_authority_bears_its_name_as_its_rotation_wants_and_is_no_other(tmp_path):
    pki.ensure(tmp_path, [*local.SERVERS, *kueue.SERVERS], rotated=kueue.AUTHORITIES)
    names = {name: x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes()) for name in ("kueue-ca", "ca", "kueue")}
    assert names["kueue-ca"].extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName) == ["kueue-ca"]
    assert (tmp_path / "kueue-ca.key").read_text().startswith("-----BEGIN RSA PRIVATE KEY-----")  # PKCS#1
    with pytest.raises(x509.ExtensionNotFound):
        names["ca"].extensions.get_extension_for_class(x509.SubjectAlternativeName)
    names["kueue"].verify_directly_issued_by(names["kueue-ca"])
    assert (pki.expires(tmp_path / "kueue.crt") - names["kueue"].not_valid_before_utc).days > 90


def test_kueue_listens_on_loopback_only(env):
    text = kueue.CONFIG.format(namespace="kueue-system", folder="/f", health=1, webhook=2)
    config = yaml.safe_load(text)
    assert config["health"]["healthProbeBindAddress"] == "127.0.0.1:1" and config["metrics"]["bindAddress"] == "0"
    assert config["webhook"] == {"host": "127.0.0.1", "port": 2, "certDir": "/f"}
    assert config["resources"]["excludeResourcePrefixes"] == ["cpu", "memory", "ephemeral-storage"]


class Recorder:
    """Keeps requests; answers 404 to deletions of what is not there."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    def request(self, method: str, path: str, *_: object, **__: object) -> dict:
        from orchlab.errors import ApiError

        if method == "PATCH":
            self.there.add(path)
        elif path not in self.there:
            raise ApiError(404, "NotFound", path)
        else:
            self.there.remove(path)
        return {}


def test_the_guard_places_webhooks_while_somebody_listens_and_removes_them_otherwise(tmp_path, monkeypatch):
    both = [{"kind": kind, "metadata": {"name": "kueue"}} for kind in kueue_webhooks.KINDS]
    client, state = Recorder(), tmp_path / "webhooks"
    seen: list[tuple[int, str]] = []
    looks = iter([False, True, True, False, True])

    def listens(port: int) -> bool:
        return next(looks)

    def sleep(seconds: float) -> None:
        seen.append((len(client.there), state.read_text()))
        if len(seen) == 5:
            raise SystemExit(0)

    monkeypatch.setattr(kueue_webhooks.launch, "listens", listens)
    monkeypatch.setattr(kueue_webhooks.time, "sleep", sleep)
    with pytest.raises(SystemExit):
        kueue_webhooks.guard(client, both, 1, state)
    assert seen == [(0, "removed"), (2, "placed"), (2, "placed"), (0, "removed"), (2, "placed")]
    assert client.there == set() and not state.exists()  # stopped: they go


def test_a_version_is_read_from_gos_build_information(tmp_path):
    engine = engines.load("kueue")
    binary = tmp_path / "kueue"
    for line, problem in ((b"\ndep\tsigs.k8s.io/kueue\tv0.17.0\th1:x=\n", ""), (b"\nmod\tsigs.k8s.io/kueue\tv0.17.0\n", ""),
                          (b"\ndep\tsigs.k8s.io/kueue\tv0.17.1\th1:x=\n", "it was built from sigs.k8s.io/kueue v0.17.1"), (b"nothing", "no build information")):
        binary.write_bytes(b"\x7fELF" + line)
        assert problem in running.reported_version(binary, engine) if problem else running.reported_version(binary, engine) == ""


def test_the_engines_are_optional_and_bring_manifests():
    for name in addons.MODULES:
        engine = engines.load(name)
        assert engine.optional and engine.manifests and engine.no_download
    assert not set(addons.MODULES) & set(engines.standard())


def test_who_adds_an_engine_that_is_not_built_yet_is_told_how_long_it_takes(monkeypatch):
    said: list[str] = []

    def ensure(names, progress=None, allow=()):
        if allow == ("cache",):
            raise EngineUnavailable("not in the cache")
        return {names[0]: f"/made/{names[0]}"}

    monkeypatch.setattr(engines, "ensure", ensure)
    assert addons._binary(kueue, lambda event: said.append(event.text)) == "/made/kueue"
    assert said == ["is made once, in about 4 min on two idle cores"]
