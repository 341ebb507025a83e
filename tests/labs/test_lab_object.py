"""What a notebook can do with its Lab, on a real control plane."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from orchlab import environment
from orchlab.course import Lab, folder, kernels, newlab, pods, progress, reset
from orchlab.course import kubectl as kubectls
from orchlab.course.place import Place
from orchlab.errors import BadInput, EnvironmentBroken, TimeLimitReached

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]
  containers:
  - name: main
    image: registry.example/train:1
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


@pytest.fixture
def lab(proved, tmp_path, monkeypatch):
    """A lab of the test's own, at its start."""
    monkeypatch.setenv("ORCHLAB_LABS", str(tmp_path / "labs"))
    made = newlab.make("42", "some-lab", tmp_path / "labs")
    reset.cluster(made, proved)
    return Lab("42", proved, quiet=True)


@pytest.fixture
def shell(lab, tmp_path):
    """An IPython in which the lab is open, as in a notebook's kernel."""
    shell = InteractiveShell.instance(ipython_dir=str(tmp_path / "ipython"), config=Config(HistoryManager={"enabled": False}))
    shell.user_ns["lab"] = lab
    from orchlab.course import magics

    magics.register(shell, lab)
    yield shell
    InteractiveShell.clear_instance()


def run(shell, cell):
    return shell.run_cell(cell)


# -- magics


def test_yaml_is_applied_as_it_is_written(shell, lab, capsys):
    assert run(shell, "%%apply\n" + POD.format(name="trainer", gpus=8)).success
    assert capsys.readouterr().out == "pod/trainer serverside-applied\n"
    assert str(lab.wait("pod/trainer")).startswith("pod/trainer Running on h100-")
    managers = [entry["manager"] for entry in lab.get("pod/trainer")["metadata"]["managedFields"] if entry["operation"] == "Apply"]
    assert managers == ["orchlab-lab-42"]
    assert [len(ids) for ids in pods.devices(lab.get("pod/trainer")).values()] == [8]


@pytest.mark.parametrize(("yaml", "words"), [
    (POD.format(name="half", gpus=0.5), 'The Pod "half" is invalid'),
    ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {contaners: []}", "contaners"),
    ("apiVersion: v1\nkind: Pud\nmetadata: {name: x}", 'no matches for kind "Pud"'),
    ("a: [", "error converting YAML to JSON"),
    ("# nothing yet\n", "nothing to send"),
])
def test_what_the_api_server_refuses_is_shown_in_its_words_not_as_a_traceback(shell, capsys, yaml, words):
    result = run(shell, "%%apply\n" + yaml)
    shown = capsys.readouterr()
    assert result.success and words in shown.out and "Traceback" not in shown.out + shown.err


def test_a_part_for_another_backend_says_so_and_a_name_that_is_none_is_refused(lab, capsys):
    assert lab.on("local") and capsys.readouterr().out == ""
    assert not lab.on("kind")
    assert capsys.readouterr().out == ("Only on kind; environment default is local. To see it: orchlab up --name real --kubernetes kind, "
                                       'then Lab("42", "real").\n')
    with pytest.raises(BadInput, match="'docker': is not one of local, kind"):
        lab.on("docker")


def test_our_own_errors_have_no_traceback_either(shell, capsys):
    assert not run(shell, 'lab.wait("pod/none", "Running", seconds=0.3)').success
    shown = capsys.readouterr().out
    assert "TimeLimitReached: pod/none was not Running within 0.3 s; last seen: pod/none is not there" in shown
    assert "→ %kubectl describe pod/none tells more" in shown and "Traceback" not in shown and ".py" not in shown


def test_kubectl_is_the_real_one_in_the_lab_s_namespace(shell, capsys):
    assert run(shell, "%kubectl get pods").success
    assert capsys.readouterr().out == "No resources found in lab-42 namespace.\n"
    run(shell, "%kubectl get node cpu-0 -o jsonpath='{.metadata.name} {.status.nodeInfo.osImage}'")
    assert capsys.readouterr().out == "cpu-0 simulated by orchlab"
    run(shell, "%%kubectl create -f -\n" + POD.format(name="piped", gpus=1))
    assert capsys.readouterr().out == "pod/piped created\n"


def test_a_watch_ends_at_its_time_limit(shell, capsys):
    begun = time.monotonic()
    run(shell, "%kubectl -t 2 get nodes -w")
    shown = capsys.readouterr().out
    assert "h100-0" in shown and shown.endswith("stopped after 2 s (%kubectl -t SECONDS … allows more)\n")
    assert time.monotonic() - begun < 20


def test_an_interrupt_ends_kubectl(lab):
    timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            kubectls.run(lab.env, lab.namespace, ["get", "nodes", "-w"], seconds=60, out=lambda line: None)
    finally:
        timer.cancel()
    own = str(os.getpid())
    assert subprocess.run(["ps", "--ppid", own, "-o", "comm="], capture_output=True, text=True).stdout.split().count("kubectl") == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%kubectl -t zero get pods", "is not a number of seconds"),
        ("%kubectl edit pod x", "needs a terminal"),
        ("%kubectl get 'pods", "close the quotation marks"),
    ],
)
def test_what_kubectl_cannot_do_here_is_said(shell, capsys, line, words):
    assert not run(shell, line).success
    assert words in capsys.readouterr().out


def test_the_user_s_own_kubectl_and_proxies_are_left_alone(lab, tmp_path, monkeypatch):
    user = tmp_path / "user"
    user.mkdir()
    for name, value in {
        "HOME": str(user),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "KUBECONFIG": "/nonexistent",
    }.items():
        monkeypatch.setenv(name, value)
    assert "Ready" in lab.kubectl("get", "nodes")
    assert list(user.iterdir()) == []


@pytest.fixture
def kernel(lab, monkeypatch):
    """A kernel as JupyterLab starts it; `ask(code)` gives its reply and what it printed."""
    from jupyter_client.manager import start_new_kernel

    for name, value in kernels.variables(lab.env).items():
        monkeypatch.setenv(name, value)
    manager, client = start_new_kernel(startup_timeout=60)

    def ask(code, during=lambda: None):
        printed = []
        message = client.execute(code)
        during()
        while True:
            said = client.get_iopub_msg(timeout=60)
            if said["parent_header"].get("msg_id") != message:
                continue
            if said["msg_type"] == "stream":
                printed.append(said["content"]["text"])
            elif said["msg_type"] == "error":
                printed.append("\n".join(said["content"]["traceback"]))
            elif said["msg_type"] == "status" and said["content"]["execution_state"] == "idle":
                break
        while (reply := client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != message:
            pass
        return reply["content"], "".join(printed)

    yield manager, client, ask
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_an_interrupted_wait_ends_at_once_and_a_restarted_kernel_goes_on(kernel, lab, tmp_path):
    manager, client, ask = kernel
    started = tmp_path / "started"

    def interrupt():
        # Not before the cell runs: an interrupt of an idle kernel is lost.
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        manager.interrupt_kernel()

    begin = f'from orchlab.course import Lab; lab = Lab("42", {lab.home!r}, quiet=True)'
    assert ask(begin)[0]["status"] == "ok"
    begun = time.monotonic()
    reply, shown = ask(
        f'open({str(started)!r}, "w").close(); lab.wait("pod/none", "Running", seconds=100)', threading.Thread(target=interrupt).start
    )
    assert reply["ename"] == "KeyboardInterrupt" and time.monotonic() - begun < 50
    assert ask("%%apply\n" + POD.format(name="trainer", gpus=8))[1] == "pod/trainer serverside-applied\n"
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=60)
    assert "is not defined" in ask("lab.show()")[1]
    assert ask(begin + '; print(lab.wait("pod/trainer", "Running"))')[1].startswith("pod/trainer Running on h100-")


def test_our_own_errors_end_a_cell_without_a_traceback(kernel, lab):
    _, _, ask = kernel
    ask(f'from orchlab.course import Lab; lab = Lab("42", {lab.home!r}, quiet=True)')
    reply, shown = ask('lab.wait("trainer")')
    assert reply["status"] == "error"
    assert shown == "BadInput: target: 'trainer': is not KIND/NAME\n→ write it like pod/trainer"


# -- looking and waiting


def test_a_restarted_kernel_attaches_to_the_same_state(lab):
    lab.apply(POD.format(name="trainer", gpus=8))
    lab.wait("pod/trainer", "Running")
    uid = lab.get("pod/trainer")["metadata"]["uid"]
    code = f'from orchlab.course import Lab; print(Lab("42", {lab.home!r}, quiet=True).get("pod/trainer")["metadata"]["uid"])'
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.strip() == uid


def test_two_labs_at_once_do_not_see_each_other_s_pods(lab, tmp_path, capsys):
    newlab.make("43", "other-lab", tmp_path / "labs")
    other = Lab("43", lab.home, quiet=True)
    other.apply(POD.format(name="trainer", gpus=8))
    other.wait("pod/trainer", "Running")
    assert lab.pods() == [] and [pod["metadata"]["name"] for pod in other.pods()] == ["trainer"]
    assert "lab-43 holds 8 GPUs; `orchlab reset 43` frees them" in lab.describe()
    reset.cluster(other.folder, lab.home)
    assert "lab-43" not in lab.describe()


def test_a_lab_s_namespaces_are_made_when_it_is_opened_and_emptied_with_it(lab):
    text = (lab.folder.folder / "lab.toml").read_text()
    (lab.folder.folder / "lab.toml").write_text(text.replace("minutes = 15", 'minutes = 15\nnamespaces = ["vision"]'))
    opened = Lab("42", lab.home, quiet=True)
    assert "namespaces   lab-42, lab-42-vision" in opened.describe()
    opened.apply(POD.format(name="trainer", gpus=8).replace("trainer\n", "trainer\n  namespace: lab-42-vision\n", 1))
    Place(lab.home, "lab-42-vision").wait("pod/trainer", "Running")
    assert "lab-42" not in opened.describe().split("simulated")[1] and "lab-42-vision holds 8 GPUs; `orchlab reset 42` frees them" in lab.describe()
    opened.kubectl("delete", "namespace", "lab-42-vision", "--wait=false")
    assert "namespace lab-42-vision: empty" in opened.reset()
    assert Place(lab.home, "lab-42-vision").list("pod") == []
    opened.apply(POD.format(name="trainer", gpus=1).replace("trainer\n", "trainer\n  namespace: lab-42-vision\n", 1))
    reset.others(lab.folder, lab.home)
    assert Place(lab.home, "lab-42-vision").list("pod") == []


def test_a_pending_pod_is_waited_for_until_the_scheduler_has_spoken(lab):
    lab.apply(POD.format(name="giant", gpus=16))
    assert str(lab.wait("pod/giant")).startswith(
        "pod/giant Pending, Unschedulable: 0/9 nodes are available: 9 Insufficient nvidia.com/gpu."
    )
    with pytest.raises(TimeLimitReached, match="pod/giant was not Running within 0.5 s; last seen: pod/giant Pending, Unschedulable: 0/9"):
        lab.wait("pod/giant", "Running", seconds=0.5)
    lab.kubectl("delete", "pod", "giant", "--now", "--wait=false")
    assert str(lab.wait("pod/giant", "deleted")) == "pod/giant is not there"


@pytest.mark.parametrize(("target", "words"), [("trainer", "is not KIND/NAME"), ("pud/x", "is not served by this cluster")])
def test_a_bad_target_is_refused(lab, target, words):
    with pytest.raises(BadInput, match=words):
        lab.wait(target)


def test_a_manifest_of_one_s_own_says_where_its_pods_went(lab, tmp_path, capsys):
    web = """apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: elsewhere}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: registry.example/web:1}]}
"""
    (tmp_path / "web.yaml").write_text(web)
    for _ in range(2):
        placed = str(lab.submit(tmp_path / "web.yaml")).splitlines()
        assert len(placed) == 3 and all("Running" in line for line in placed[1:])
    shown = capsys.readouterr().out
    assert "metadata.namespace elsewhere was taken out" in shown and "deployment.apps/web serverside-applied" in shown
    (tmp_path / "job.yaml").write_text(POD.format(name="x", gpus=16).replace("name: x", "generateName: big-", 1))
    assert "0/9 nodes are available" in lab.submit(tmp_path / "job.yaml")
    (tmp_path / "bad.yaml").write_text(POD.format(name="x", gpus=0.5))
    assert str(lab.submit(tmp_path / "bad.yaml")).startswith("nothing was placed")
    (tmp_path / "cm.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")
    assert str(lab.submit(tmp_path / "cm.yaml")) == "it makes no pods by itself"


# -- exercises


def test_an_exercise_from_start_to_finish(lab, capsys):
    assert lab.check("one-gpu").status == "not yet"
    assert str(lab.hint("one-gpu")).startswith("Hint 1 of 2")
    assert 'lab.check("one-gpu")' in lab.solve("one-gpu")
    assert "kind: Pod" in capsys.readouterr().out
    answer = lab.check("one-gpu")
    assert answer.passed and answer.message.startswith("pod/mine Running on ")
    record = progress.of(lab.folder, "one-gpu")
    assert record["passed"] and record["hints"] == 1 and record["solved"] and record["attempts"] == 2
    assert "1 of 1 exercises passed" in lab.progress()
    lab.reset()
    assert lab.pods() == [] and progress.of(lab.folder, "one-gpu")["passed"]
    with pytest.raises(BadInput, match="exercise: 'two': is not in lab 42"):
        lab.check("two")


def test_an_exercise_that_follows_another_says_so(lab):
    text = (lab.folder.folder / "lab.toml").read_text()
    (lab.folder.folder / "lab.toml").write_text(
        text + '\n[[exercises]]\nname = "second"\ntitle = "Another"\nafter = ["one-gpu"]\nhints = ["a", "b"]\n'
    )
    with (lab.folder.folder / "checks.py").open("a") as file:
        file.write('\n\ndef second(lab):\n    return passed("fine")\n')
    again = Lab("42", lab.home, quiet=True)
    answer = again.check("second")
    assert answer.status == "not yet" and answer.message == "Exercise 'one-gpu' comes first, and its answer is: not yet."
    again.solve("one-gpu")
    assert again.check("second").passed


def test_a_check_does_not_blame_the_learner_for_a_broken_environment(lab):
    lab.solve("one-gpu")
    lab.env.supervisor.stop_process("kube-scheduler")
    try:
        answer = lab.check("one-gpu")
    finally:
        environment.up(lab.home)
    assert answer.status == "environment broken" and "kube-scheduler" in answer.message and answer.remedy == "orchlab up heals it"
    lab.fault("daemon-down", "kube-scheduler")
    try:
        assert lab.check("one-gpu").passed, "what a fault holds down is part of the lesson"
    finally:
        assert "daemon-down kube-scheduler" in lab.mend()
    lab.kubectl("delete", "namespace", lab.namespace, "--wait=false")
    answer = lab.check("one-gpu")
    assert answer.status == "environment broken" and answer.remedy == "orchlab reset 42"
    (lab.folder.folder / "checks.py").write_text("def one_gpu(lab):\n    return 1 / 0\n")
    reset.cluster(lab.folder, lab.home)
    answer = lab.check("one-gpu")
    assert answer.status == "environment broken" and "The check itself failed: ZeroDivisionError" in answer.message


def test_a_lab_says_what_to_run_when_there_is_no_environment(lab):
    with pytest.raises(EnvironmentBroken, match="there is no environment 'nowhere'\n→ orchlab up --name nowhere"):
        Lab("42", "nowhere")


def test_reset_clears_faults(lab):
    lab.fault("node-down", "h100-0")
    lab.fault("daemon-down", "kube-scheduler")
    assert "up and healthy" in lab.reset()
    lab.apply(POD.format(name="trainer", gpus=8))
    assert "Running" in lab.wait("pod/trainer")


# -- a fleet of the lab's own


@pytest.mark.timeout(300)
def test_a_lab_s_own_fleet_is_made_on_entry_and_the_former_one_restored_by_the_next(lab, tmp_path, capsys):
    before = environment.Environment.load(lab.home).record.fleet
    own = newlab.make("44", "own-fleet", tmp_path / "labs")
    (own.folder / "fleet.yaml").write_text("pools:\n- {name: big, count: 3, gpus: {model: B200-180, count: 8}, cpu: 64, memory: 1Ti}\n")
    entered = Lab("44", lab.home)
    assert "3 nodes, 24 GPUs" in capsys.readouterr().out
    assert [node["metadata"]["name"] for node in entered.place.list("node")] == ["big-0", "big-1", "big-2"]
    Lab("44", lab.home)
    assert "has the fleet of lab 44" not in capsys.readouterr().out
    Lab("42", lab.home)
    assert "has its former fleet back" in capsys.readouterr().out
    assert environment.Environment.load(lab.home).record.fleet == before
    assert len(lab.place.list("node")) == 9


# -- the command line


def test_the_command_line_checks_hints_solves_and_resets(lab, tmp_path):
    def orchlab(*words, status=0):
        done = subprocess.run([str(Path(sys.executable).with_name("orchlab")), *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "42  Some lab" in orchlab("labs")
    assert "… one-gpu: not yet. There is no pod called mine." in orchlab("check", "42", status=1)
    assert orchlab("hint", "42", "one-gpu").startswith("Hint 1 of 2")
    assert "Now look at it" in orchlab("solve", "42", "one-gpu")
    assert "✔ one-gpu: passed. pod/mine Running on" in orchlab("check", "42", "one-gpu")
    assert "✔ one-gpu" in orchlab("progress", "42") and "solution shown" in orchlab("progress", "42")
    assert "namespace lab-42: empty" in orchlab("reset", "42")
    assert "there is no such lab" in orchlab("check", "99", status=2)
    assert folder.lab("42").notebook.exists()
