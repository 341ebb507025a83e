"""What a fresh machine installs: the lock, the conda file and the project say the same, and name no package index."""

from __future__ import annotations

import re
import tomllib

import yaml

from orchlab.paths import repository

ROOT = repository()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()
PINNED = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", LOCK, re.M))


def wanted() -> dict[str, str]:
    """Direct dependencies, extras included: name → what pyproject.toml allows."""
    everything = PROJECT["dependencies"] + [one for extra in PROJECT["optional-dependencies"].values() for one in extra]
    return dict(re.fullmatch(r"([A-Za-z0-9_.-]+)(.*)", one).groups() for one in everything)


def test_the_lock_pins_every_dependency_within_its_range():
    from packaging.specifiers import SpecifierSet

    for name, allowed in wanted().items():
        assert PINNED[name] in SpecifierSet(allowed), name


def test_every_locked_package_has_hashes():
    blocks = re.split(r"\n(?=[A-Za-z0-9])", LOCK.strip())
    assert len(blocks) >= len(PINNED) > 50
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_the_lock_names_no_index():
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", LOCK)


def test_the_conda_file_installs_the_same():
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    packages = next(entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict))
    assert packages == [*(f"{name}=={PINNED[name]}" for name in sorted(wanted())), "--editable ."]


def test_the_oldest_python_is_the_same_everywhere():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "python>=3.11" in (ROOT / "environment.yml").read_text()
    assert "(3, 11)" in (ROOT / "scripts" / "install.sh").read_text()
