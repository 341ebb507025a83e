"""JupyterLab as a learner starts it, in a headless Chromium."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
START_SECONDS = 120


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium. Without one the browser tests fail: they must not vanish silently."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.fail("there is no Chromium. Debian, Ubuntu: sudo apt-get install chromium; scripts/test does it as root")
    return found


@pytest.fixture
def jupyterlab(course, tmp_path):
    """Starts `orchlab lab NN` for a lab at its start and gives the address that it prints; ends it as Ctrl-C would."""
    from orchlab.course import reset

    running: list[tuple[subprocess.Popen, Path]] = []

    def start(lab) -> str:
        reset.cluster(lab, course)
        reset.others(lab, course)
        variables = {**os.environ, "ORCHLAB_PROGRESS": str(tmp_path / "progress.json")}
        log = tmp_path / "orchlab-lab.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(Path(sys.executable).with_name("orchlab")), "lab", lab.number, "--no-browser", "--name", course],
                stdout=out,
                stderr=out,
                env=variables,
                start_new_session=True,
            )
        running.append((process, log))
        return _address(process, log)

    yield start
    for process, log in running:
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, log.read_text()


def _address(process: subprocess.Popen, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r"http://127\.0\.0\.1:\d+/\S+", log.read_text()):
            return found[0]
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    pytest.fail(f"orchlab lab gave no address within {START_SECONDS} s:\n{log.read_text()}")


@pytest.fixture
def page(chromium):
    """A page of 1400 x 1000 pixels that notes every request that leaves this machine."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        opened = browser.new_page(viewport={"width": 1400, "height": 1000})
        opened.outside = []
        opened.on("request", lambda request: None if re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:", request.url)
                  else opened.outside.append(request.url))
        yield opened
        browser.close()
