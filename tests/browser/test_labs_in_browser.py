"""Every lab as a learner meets it: opened from `orchlab lab`, Run All, no cell in error; then what its widget does by keyboard."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from orchlab.course import folder

RUN_SECONDS = 200
LABS = folder.labs()


def run_all(page) -> None:
    """Runs all cells and waits until none is queued or running."""
    expect(page.get_by_role("button", name="Python 3 (orchlab) | Idle")).to_be_visible(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    waiting = page.locator(".jp-InputPrompt", has_text="[*]")
    expect(waiting.first).to_be_attached(timeout=30_000)
    deadline = time.monotonic() + RUN_SECONDS
    while waiting.count() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert waiting.count() == 0, f"cells still run after {RUN_SECONDS} s"


def press(page, number: int, key: str) -> None:
    handle = page.locator(".noUi-handle").nth(number)
    handle.focus()
    handle.press(key)


def welcome(page) -> None:
    """Lab 00: a model is chosen, the slider goes up; the line and the picture follow."""
    status = page.get_by_role("status").filter(has_text="pod/visitor")
    expect(status).to_have_text(re.compile("pod/visitor Running on "), timeout=30_000)
    status.scroll_into_view_if_needed(timeout=20_000)
    before = page.locator("svg.olmap").first.inner_html()
    page.get_by_label("GPU model").select_option("NVIDIA-A100-SXM4-40GB")
    expect(status).to_have_text(re.compile("pod/visitor Running on a100-"), timeout=30_000)
    press(page, 0, "ArrowRight")
    expect(status).to_have_text(re.compile("0/9 nodes are available: 2 Insufficient nvidia.com/gpu, 7 node"), timeout=30_000)
    assert page.locator("svg.olmap").first.inner_html() != before


def stand_up_kubernetes(page) -> None:
    """Lab 01: both sliders are moved; line, picture and text twin follow."""
    status = page.get_by_role("status").filter(has_text="pods x")
    status.scroll_into_view_if_needed(timeout=20_000)
    expect(status).to_contain_text("7 pods x 3 GPUs: 6 placed (6 on h100), 1 pending", timeout=30_000)
    picture = page.locator("svg.olmap").first
    before = picture.inner_html()
    twin = page.locator("details", has_text="as text").first
    twin.locator("summary").click()
    expect(twin).to_contain_text("lab-01/w-6 (3 GPUs)")
    press(page, 1, "ArrowRight")
    expect(status).to_contain_text("8 pods x 3 GPUs: 6 placed (6 on h100), 2 pending", timeout=30_000)
    expect(twin).to_contain_text("lab-01/w-7 (3 GPUs)", timeout=30_000)
    assert picture.inner_html() != before
    press(page, 0, "ArrowLeft")
    expect(status).to_contain_text("8 pods x 2 GPUs: 8 placed (8 on h100), 0 pending", timeout=30_000)
    expect(twin).not_to_contain_text("lab-01/w-7 (", timeout=30_000)


def gpu_operator(page) -> None:
    """Lab 02: the table by arrow keys; a switch by the space bar; the line, the table and its text twin follow."""
    status = page.get_by_role("status").filter(has_text="ClusterPolicy")
    status.scroll_into_view_if_needed(timeout=20_000)
    expect(status).to_contain_text("48 of them ready", timeout=30_000)
    cell = page.locator("[data-k='h100-0/driver']")
    cell.focus()
    cell.press("ArrowRight")
    expect(page.locator(".ol-said").first).to_have_text("h100-0, toolkit: Ready")
    twin = page.locator("details", has_text="as text").first
    twin.locator("summary").click()
    switch = page.get_by_label("devicePlugin")
    for gpus, cells in (("0 GPUs", 0), (r"(34|42) GPUs", 7)):
        switch.focus()
        switch.press("Space")
        expect(status).to_contain_text(re.compile(rf"; {gpus} allocatable"), timeout=60_000)
        expect(page.locator("[data-k$='/plugin']")).to_have_count(cells, timeout=60_000)
        expect(twin).to_contain_text(re.compile(rf"; {gpus} allocatable"), timeout=30_000)


def gpu_requests(page) -> None:
    """Lab 03: a ticket is chosen and opened by keyboard, a wrong and the right cause are named; the line, the table and its twin follow."""
    status = page.get_by_role("status").filter(has_text=re.compile("bert|scan"))
    status.first.scroll_into_view_if_needed(timeout=20_000)
    page.get_by_label("Ticket", exact=True).select_option("scan")
    opener = page.get_by_role("button", name="Open", exact=True)
    opener.focus()
    opener.press("Enter")
    expect(status.first).to_contain_text("ticket scan: scan waits.", timeout=60_000)
    twin = page.locator("details", has_text="Tickets as text").first
    twin.locator("summary").click()
    expect(twin).to_contain_text(re.compile(r"scan +open"), timeout=30_000)
    judge = page.get_by_role("button", name="That is it")
    for cause, words in (("quota", "scan: not quota. There would be no pod"), ("cordoned", "scan: cordoned, that is it. Diagnosed after")):
        page.get_by_label("Cause", exact=True).select_option(cause)
        judge.focus()
        judge.press("Enter")
        expect(status.first).to_contain_text(words, timeout=30_000)
    expect(twin).to_contain_text(re.compile(r"scan +diagnosed"), timeout=30_000)
    twin.locator("summary").click()
    cell = page.locator("[data-k='scan']").first
    cell.focus()
    cell.press("ArrowUp")
    expect(page.locator(".ol-said").first).to_contain_text(re.compile("infer, (closed|mended): Two of the four pods"))
    status.first.scroll_into_view_if_needed(timeout=20_000)


def affinity_and_topology(page) -> None:
    """Lab 04: a field of the constraint is changed, then a slider by keyboard; line, map, the scheduler's points and the text follow."""
    policy = page.get_by_label("nodeTaintsPolicy")
    # As Run All leaves it, with the workers deleted.
    expect(policy).to_have_value("Honor", timeout=30_000)
    policy.scroll_into_view_if_needed(timeout=20_000)
    policy.select_option("Ignore")
    box = policy.locator("xpath=ancestor::*[contains(@class,'jp-OutputArea-output')][1]")
    status = box.get_by_role("status").filter(has_text=" pods: ")
    expect(status).to_contain_text("8 pods: 5 placed (5 on h100), 3 pending", timeout=60_000)
    workers = box.locator(".noUi-handle").first
    workers.focus()
    workers.press("ArrowRight")
    expect(status).to_contain_text("9 pods: 5 placed (5 on h100), 4 pending", timeout=60_000)
    expect(box.get_by_text("The scheduler's points for spread-0").first).to_be_visible(timeout=30_000)
    twin = box.locator("details", has_text="as text").first
    twin.locator("summary").focus()
    twin.locator("summary").press("Enter")
    expect(twin).to_contain_text("rack-a3", timeout=30_000)
    expect(twin).to_contain_text("lab-04/spread-8", timeout=30_000)
    policy.scroll_into_view_if_needed(timeout=20_000)


def mig_and_sharing(page) -> None:
    """Lab 05: a layout is designed by clicks and by keys, a place that does not fit is refused, Apply makes it so."""
    picture = page.locator("svg.olmap", has=page.locator("[data-k='3g.20gb@0']")).first
    picture.scroll_into_view_if_needed(timeout=20_000)
    status = page.get_by_role("status").filter(has_text="a100-0: ")
    expect(status).to_contain_text("designed-1 success", timeout=30_000)
    clear = page.get_by_role("button", name="Clear this GPU")
    clear.focus()
    clear.press("Enter")
    said = page.get_by_role("status")
    picture.locator("[data-k='4g.20gb@0']").click()
    expect(said.filter(has_text="placed: 4g.20gb at slices 0-3")).to_be_visible(timeout=20_000)
    picture.locator("[data-k='2g.10gb@2']").click()
    expect(said.filter(has_text="refused: 2g.10gb at slices 2-3: slices 0-3 are held by 4g.20gb")).to_be_visible(timeout=20_000)
    place = picture.locator("[data-k='1g.5gb@4']")
    place.focus()
    place.press("Enter")
    expect(said.filter(has_text="placed: 1g.5gb at slice 4")).to_be_visible(timeout=20_000)
    page.keyboard.press("ArrowRight")
    page.keyboard.press(" ")
    expect(said.filter(has_text="placed: 1g.5gb at slice 5")).to_be_visible(timeout=20_000)
    twin = page.locator("details", has_text="Slice map as text").first
    twin.locator("summary").click()
    expect(twin).to_contain_text("GPU 0 of a100-0: 4g.20gb + 2 x 1g.5gb")
    twin.locator("summary").click()
    apply = picture.locator("xpath=ancestor::*[contains(@class,'jp-OutputArea-output')][1]").get_by_role("button", name="Apply")
    apply.focus()
    apply.press("Enter")
    expect(said.filter(has_text="designed-2 success; it advertises nvidia.com/gpu: 3, nvidia.com/mig-1g.5gb: 2, nvidia.com/mig-4g.20gb: 1")
           ).to_be_visible(timeout=60_000)
    picture.scroll_into_view_if_needed(timeout=20_000)


def quotas_and_priorities(page) -> None:
    """Lab 08: a quota is lowered by keys and the stream submitted again; line, both pictures and their text twins follow."""
    status = page.get_by_role("status").filter(has_text="vision: 4 submitted")
    expect(status).to_contain_text("vision: 4 submitted, 1 refused, 2 on a node, 0 waiting, 1 evicted", timeout=60_000)
    status.scroll_into_view_if_needed(timeout=20_000)
    twins = [page.locator("details", has_text=f"{title} as text").first for title in ("Used against hard", "What it cost")]
    for twin in twins:
        twin.locator("summary").focus()
        twin.locator("summary").press("Enter")
    expect(twins[0]).to_contain_text("lab-08-vision  4 of 6", timeout=30_000)
    expect(twins[1]).to_contain_text("PreemptionByScheduler", timeout=30_000)
    press(page, 0, "ArrowLeft")
    press(page, 0, "ArrowLeft")
    button = page.get_by_role("button", name="Submit", exact=True)
    button.focus()
    button.press("Enter")
    expect(status).to_contain_text("vision: 4 submitted, 2 refused, 2 on a node, 0 waiting, 0 evicted", timeout=60_000)
    expect(twins[0]).to_contain_text("lab-08-vision  4 of 4", timeout=30_000)
    twins[0].locator("summary").press("Enter")
    bar = page.locator("svg.olmap [data-k='a0']").last
    bar.focus()
    bar.press("ArrowDown")
    expect(page.locator(".ol-said", has_text="team lab-08-speech: held")).to_be_visible(timeout=20_000)


def stand_up_slurm(page) -> None:
    """Lab 12: the map of the second cluster, as it was when that was taken down, and its text twin."""
    picture = page.locator("svg.olmap").first
    picture.scroll_into_view_if_needed(timeout=20_000)
    expect(picture).to_contain_text("gpu-0")
    twin = page.locator("details", has_text="as text").first
    twin.locator("summary").focus()
    twin.locator("summary").press("Enter")
    expect(twin).to_contain_text("gpu-1")


def sbatch_and_arrays(page) -> None:
    """Lab 13: one more task, and the button; the line, the Gantt chart and its text twin follow."""
    status = page.get_by_role("status").filter(has_text="tasks x")
    expect(status).to_have_text("6 tasks x 4 GPUs: 6 completed", timeout=60_000)
    status.scroll_into_view_if_needed(timeout=20_000)
    twin = page.locator("details", has_text="as text").first
    twin.locator("summary").click()
    before = twin.inner_text()
    press(page, 0, "ArrowRight")
    press(page, 2, "ArrowRight")
    button = page.get_by_role("button", name="Submit", exact=True)
    button.focus()
    button.press("Enter")
    expect(status).to_have_text(re.compile(r"7 tasks x 5 GPUs: 2 running, 5 waiting \(JobArrayTaskLimit\)"), timeout=30_000)
    expect(status).to_have_text("7 tasks x 5 GPUs: 7 completed", timeout=60_000)
    assert "h100-1 GPU 0" in twin.inner_text() and twin.inner_text() != before


BY_KEYBOARD = {"00": welcome, "01": stand_up_kubernetes, "02": gpu_operator, "03": gpu_requests, "04": affinity_and_topology,
               "05": mig_and_sharing, "08": quotas_and_priorities, "12": stand_up_slurm, "13": sbatch_and_arrays}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("lab", LABS, ids=[lab.name for lab in LABS])
def test_run_all_and_the_widget_by_keyboard(lab, jupyterlab, page, tmp_path):
    # A workspace of its own: the default one opens the notebooks of earlier tests again.
    page.goto(jupyterlab(lab).replace("/lab/tree/", f"/lab/workspaces/lab-{lab.number}/tree/"), timeout=90_000)
    page.wait_for_selector(".jp-Notebook", timeout=90_000)
    run_all(page)
    assert page.locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    if (lab.folder / "widget.py").exists():
        assert lab.number in BY_KEYBOARD, (
            f"labs/{lab.name}/widget.py is tried by nobody\n"
            "    cure: add a function to BY_KEYBOARD in tests/browser/test_labs_in_browser.py"
        )
        BY_KEYBOARD[lab.number](page)
    page.screenshot(path=tmp_path / f"lab-{lab.number}.png")
    assert (tmp_path / f"lab-{lab.number}.png").stat().st_size > 20_000
    assert page.get_by_text("Would you like to get notified about official Jupyter news").count() == 0
    assert page.outside == [], "a notebook must not fetch anything from elsewhere"
