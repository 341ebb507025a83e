"""engine.toml: what is read from it, and how a mistake in it is told."""

from __future__ import annotations

import pytest
from engines_support import engine

from orchlab import engines
from orchlab.errors import BadInput

DOWNLOAD = 'url = "https://example.invalid/{version}/{os}-{arch}/tiny"\nchecksum = "https://example.invalid/{version}/SHA256SUMS"'


def change(file, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "field", "problem"),
    [
        ('version = "1.2.3"', "", "version", "missing"),
        ('version = "1.2.3"', "version = 1", "version", "must be a text"),
        ('name = "tiny"', 'name = "other"', "name", "folder's name, 'tiny'"),
        ('summary = "A test."', 'summary = ""', "summary", "must not be empty"),
        ('summary = "A test."', 'summary = "A test."\nsumary = "x"', "sumary", "unknown field"),
        ("[download]", "[dowload]", "dowload", "unknown field"),
        ("url = ", "uri = ", "download.url", "missing"),
        ("https://example.invalid/{version}/{os}", "http://example.invalid/{os}", "download.url", "must begin with https://"),
        ("{os}-{arch}", "{os}-{cpu}", "download.url", "unknown placeholder {cpu}"),
        ('checksum = "https://example.invalid/{version}/SHA256SUMS"', "", "download.checksum", "either checksum"),
        (
            'checksum = "https://example.invalid/{version}/SHA256SUMS"',
            'sha256 = {linux-amd64 = "ab"}',
            "download.sha256.linux-amd64",
            "64 lower-case hexadecimal digits",
        ),
        ('arguments = ["--port={port}"', 'arguments = ["--port={port:>3}"', "run.arguments", "plain name in braces"),
        ('arguments = ["--port={port}"', "arguments = [80", "run.arguments", "must be a text"),
        ('kind = "tcp"', 'kind = "udp"', "run.probe.kind", "https, http or tcp"),
        ('kind = "tcp"', 'kind = "https"', "run.probe.path", "begins with /"),
        ('port = "port"', "", "run.probe.port", "missing"),
        ("[run.probe]", "[run.probe", "", "not TOML"),
        ('summary = "A test."', 'summary = "A test."\noptional = "no"', "optional", "true or false"),
    ],
)
def test_a_mistake_names_the_file_and_the_field(tmp_path, old, new, field, problem):
    change(engine(tmp_path, download=DOWNLOAD), old, new)
    with pytest.raises(BadInput) as caught:
        engines.load("tiny", tmp_path)
    assert caught.value.field == f"engines/tiny/engine.toml{': ' if field else ''}{field}"
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('module = "source"', 'module = "nowhere"', "build.module"),
        ('module = "source"', 'module = "../source"', "build.module"),
        ("disk_mib = 100", "disk_mib = 0", "build.disk_mib"),
        ("disk_mib = 100", "disk_mib = true", "build.disk_mib"),
        ("disk_mib = 100", 'disk_mib = 100\nflags = ""', "build.flags"),
    ],
)
def test_a_mistake_in_the_build_section(tmp_path, old, new, field):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "go.mod").write_text("module x\n")
    file = engine(tmp_path, build='module = "source"\npackage = "x"\nldflags = "-s"\ndisk_mib = 100')
    assert engines.load("tiny", tmp_path).build.output == "tiny"
    change(file, old, new)
    with pytest.raises(BadInput) as caught:
        engines.load("tiny", tmp_path)
    assert caught.value.field == f"engines/tiny/engine.toml: {field}"


def test_an_engine_needs_a_source(tmp_path):
    engine(tmp_path)
    with pytest.raises(BadInput, match="neither a"):
        engines.load("tiny", tmp_path)


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path):
    engine(tmp_path, download=DOWNLOAD)
    with pytest.raises(BadInput, match="known are: tiny"):
        engines.load("huge", tmp_path)


def test_arguments_are_filled_in_and_a_missing_value_is_named(tmp_path):
    engine(tmp_path, download=DOWNLOAD)
    tiny = engines.load("tiny", tmp_path)
    assert tiny.arguments(port=8080, folder=tmp_path, unused=1) == ["--port=8080", f"{tmp_path}/x"]
    with pytest.raises(BadInput, match=r"run\.arguments.*no value for \{port\}"):
        tiny.arguments(folder=tmp_path)


def test_the_engines_of_the_clone():
    assert engines.standard() == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
    assert set(engines.names()) - set(engines.standard()) == {"coredns", "coscheduling", "crictl", "kind", "kube-proxy", "kubeadm", "kubectl",
                                                               "kubelet", "kueue"}
    for name in engines.names():
        found = engines.load(name)
        assert found.build, name
        assert found.download or found.no_download, name
    kubernetes = [engines.load(name) for name in engines.names() if name.startswith("kube")]
    assert len({(each.version, each.build.ldflags) for each in kubernetes}) == 1
    assert {each.build.module for each in kubernetes} == {"kubernetes", "kubernetes-node"}
    assert f"gitVersion=v{kubernetes[0].version} " in kubernetes[0].build.ldflags


@pytest.mark.parametrize("name", engines.names())
def test_go_mod_pins_the_version_that_engine_toml_names(name):
    found = engines.load(name)
    gomod = (found.folder / found.build.module / "go.mod").read_text()
    pinned = [line.split() for line in gomod.splitlines() if line.strip().removeprefix("require ").strip()]
    modules = {parts[-2]: parts[-1] for parts in pinned if len(parts) >= 2 and "indirect" not in parts}
    owner = max((path for path in modules if found.build.package.startswith(path)), key=len)
    assert modules[owner] == f"v{found.version}"


def test_an_optional_engine_is_no_standard_one_and_not_listed_while_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("ORCHLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "engines"
    change(engine(folder, download=DOWNLOAD), 'summary = "A test."', 'summary = "A test."\noptional = true')
    engine(folder, "other", download=DOWNLOAD)
    assert engines.names(folder) == ["other", "tiny"] and engines.standard(folder) == ["other"]
    assert [(state.name, state.state) for state in engines.listing(folder)] == [("other", "missing")]


def test_a_program_that_is_no_daemon_needs_no_probe(tmp_path):
    file = engine(tmp_path, download=DOWNLOAD)
    change(file, '[run.probe]\nkind = "tcp"\nport = "port"\n', "")
    with pytest.raises(BadInput, match=r"run\.probe.*a daemon has one"):
        engines.load("tiny", tmp_path)
    change(file, '["--port={port}", "{folder}/x"]', "[]")
    assert engines.load("tiny", tmp_path).probe is None


@pytest.mark.parametrize("name", engines.standard())
def test_the_clones_engines_listen_on_loopback_with_tls(name):
    flags = dict(template.split("=", 1) for template in engines.load(name).templates)
    addresses = {flag: value for flag, value in flags.items() if "listen" in flag or flag in ("--bind-address", "--server-address")}
    assert addresses, "every one of them listens on all interfaces unless told otherwise"
    assert all("127.0.0.1" in value and "http://" not in value for value in addresses.values())
    assert ("--secure-port" in flags) == ("--bind-address" in flags)
    assert {"--tls-cert-file", "--cert-file"} & set(flags)


def test_manifests_and_a_module_for_the_version_are_checked(tmp_path):
    kueue = engines.load("kueue")
    assert kueue.manifests.module == kueue.version_module == "sigs.k8s.io/kueue" and kueue.version_command == ()
    toml = engine(tmp_path, download=DOWNLOAD)
    text = toml.read_text()
    for added, problem in (('[manifests]\nmodule = "m"\nfiles = ["a.yaml"]\n', "come from the module that .build. names"),
                           ('[manifests]\nmodule = "m"\nfiles = ["../a.yaml"]\n', "must be a path inside the module"),
                           ('[manifests]\nmodule = "m"\nfiles = ["/etc/a.yaml"]\n', "must be a path inside the module")):
        toml.write_text(f"{text}\n{added}")
        with pytest.raises(BadInput, match=problem):
            engines.load("tiny", tmp_path)
    toml.write_text(text.replace("[run]", '[run]\nversion_module = "m"'))
    with pytest.raises(BadInput, match="is for a program without a version command"):
        engines.load("tiny", tmp_path)
