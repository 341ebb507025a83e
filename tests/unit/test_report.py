"""A report tells what a maintainer needs and nothing that is secret."""

from __future__ import annotations

import getpass
import json
import stat
import tarfile
from pathlib import Path

import pytest

from orchlab import report

PEM = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqG\n-----END PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(("text", "secret"), [
    (f"key:\n{PEM}\nafter", "MIGHAgEAMBMGByqG"), (f"Authorization: Bearer {JWT}", JWT), (f"saw {JWT} there", JWT),
    ("http://127.0.0.1:8888/lab?token=0123456789abcdef&x=1", "0123456789abcdef"), ('{"password": "hunter22"}', "hunter22"),
    ("    client-key-data: LS0tLS1CRUdJTi", "LS0tLS1CRUdJTi"), (f"read {Path.home()}/labs", str(Path.home()))])
def test_secrets_are_redacted(text, secret):
    assert secret not in report.redact(text)


def test_what_is_no_secret_stays():
    text = "0/9 nodes are available: 9 Insufficient nvidia.com/gpu. token bucket of 5"
    assert report.redact(text) == text


def test_a_report_without_an_environment_says_so(home, tmp_path):
    path = report.write("nobody", tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        texts = {Path(member.name).name: archive.extractfile(member).read().decode() for member in archive}
    assert "there is no environment 'nobody'" in texts["environment.txt"]
    assert json.loads(texts["about.json"])["orchlab"] and "Python: ok" in texts["doctor.txt"]
    assert {engine["name"] for engine in json.loads(texts["engines.json"])} >= {"etcd", "kwok"}
    if len(getpass.getuser()) > 1:
        assert str(Path.home()) not in "".join(texts.values())
