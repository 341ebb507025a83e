"""Makes a lab to start from: notebook with stored outputs, folder, one exercise with check, solution and wrong answer. It passes the proof
as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from orchlab.course.folder import NAME, LabFolder, labs, labs_home
from orchlab.errors import BadInput, OrchlabError

LAB_TOML = """\
title = "{title}"
goal = "Say in one sentence what the learner can do afterwards."
minutes = 15
engines = ["etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kwok"]

[backends]
kubernetes = ["local"]

[[exercises]]
name = "{exercise}"
title = "A pod with one GPU that runs"
hints = [
  "An extended resource is asked for under resources.limits of a container.",
  "The GPU nodes carry a taint; the pod needs a toleration for the key nvidia.com/gpu.",
]
"""

CHECKS = '''\
"""What the exercises of lab {number} ask for, looked at in the live cluster."""

from orchlab.course import Answer, Lab, not_yet, passed, pods, wrong


def {function}(lab: Lab) -> Answer:
    """The pod `mine` runs and holds one GPU."""
    pod = lab.get("pod/mine")
    if pod is None:
        return not_yet("There is no pod called mine.")
    if not pods.settled(pod):
        return not_yet(pods.sentence(pod), settling=True)
    if pods.gpus(pod) != 1:
        return wrong(f"pod/mine asks for {{pods.gpus(pod)}} GPUs, not 1.", "a pod's resources are fixed: delete it, apply it anew")
    if words := pods.unschedulable(pod):
        return not_yet(f"pod/mine is pending. The scheduler says: {{words}}")
    return passed(pods.sentence(pod))
'''

SOLUTION = """\
apiVersion: v1
kind: Pod
metadata:
  name: mine
spec:
  restartPolicy: Never
  tolerations:
  - {{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}
  containers:
  - name: main
    image: registry.example/train:1
    resources:
      limits:
        nvidia.com/gpu: {gpus}
"""

WRONG = "# refused (wrong): asks for 2 GPUs\n"

START = """\
%%apply
# Your pod, called mine, with one GPU.
"""


def make(number: str, slug: str, home: Path | None = None) -> LabFolder:
    """Writes the files. Raises BadInput for a bad or taken number or name; nothing that exists is changed."""
    home = home or labs_home()
    name = f"{number}-{slug}"
    if not NAME.fullmatch(name):
        raise BadInput(
            "NN name",
            f"{number} {slug}",
            "is not two digits and a name of lower-case words joined by dashes",
            "for example: scripts/new-lab 07 training-controllers",
        )
    for lab in labs(home):
        if lab.number == number:
            raise BadInput("NN", number, f"is taken by labs/{lab.name}", "choose another")
    lab = LabFolder(home, name)
    title = slug.replace("-", " ").capitalize()
    exercise = "one-gpu"
    names = {"number": number, "title": title, "exercise": exercise, "function": exercise.replace("-", "_")}
    for folder in ("solutions", "wrong"):
        (lab.folder / folder).mkdir(parents=True)
    (lab.folder / "lab.toml").write_text(LAB_TOML.format(**names))
    (lab.folder / "checks.py").write_text(CHECKS.format(**names))
    (lab.folder / "solutions" / f"{exercise}.yaml").write_text(SOLUTION.format(gpus=1))
    (lab.folder / "wrong" / f"{exercise}.two.yaml").write_text(WRONG + SOLUTION.format(gpus=2))
    nbformat.write(_notebook(names), lab.notebook)
    return lab


def _notebook(names: dict[str, str]) -> nbformat.NotebookNode:
    number, exercise = names["number"], names["exercise"]
    task = new_code_cell(START.rstrip("\n"), metadata={"tags": ["exercise", f"exercise:{exercise}"]})
    cells = [
        new_markdown_cell(f"# {number} · {names['title']}\n\n**Goal.** Say in one sentence what the learner can do afterwards.\n\n"
                          "**Time.** About 15 minutes.\n\nReal: the control plane. Simulated: nodes and GPUs."),
        new_code_cell(f'from orchlab.course import Lab\n\nlab = Lab("{number}")'),
        new_markdown_cell("## A first round\n\n**Predict.** How many of the nodes offer GPUs?"),
        new_code_cell("%kubectl get nodes -o 'custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu'"),
        new_markdown_cell("Explain what was seen, in two or three sentences."),
        new_markdown_cell("## Exercise\n\nGive a pod called `mine` one GPU. Hints: `lab.hint(\"" + exercise + "\")`."),
        task,
        new_code_cell(f'lab.check("{exercise}")'),
    ]
    for index, cell in enumerate(cells):
        cell.id = f"cell-{index:02d}"
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})


def main() -> None:
    """scripts/new-lab NN NAME: writes the files, then runs the notebook once on the environment `default`."""
    from orchlab.course import stored

    words = sys.argv[1:]
    if len(words) != 2:
        sys.exit("usage: scripts/new-lab NN NAME   (two digits, lower-case words joined by dashes)")
    try:
        lab = make(*words)
        print(f"labs/{lab.notebook.name} and labs/{lab.folder.name}/ are there; running it once", flush=True)
        stored.renew(lab)
    except OrchlabError as error:
        sys.exit(f"error: {error}")
    print(f"It passes its tests as it is: scripts/test tests/labs -k {lab.name}\nAfter each change: scripts/execute-labs {lab.number}")


if __name__ == "__main__":
    main()
