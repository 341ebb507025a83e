import pytest
from IPython.core.formatters import PlainTextFormatter

from orchlab.course import pods
from orchlab.course.answers import Answer, Text, broken, not_yet, passed, wrong


def pod(containers=(1,), init=(), node="", phase="Pending", conditions=(), **metadata):
    def made(entry):
        count, policy = entry if isinstance(entry, tuple) else (entry, None)
        return {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(count)}}} | ({"restartPolicy": policy} if policy else {})

    spec = {"containers": [made(c) for c in containers], "initContainers": [made(c) for c in init]} | ({"nodeName": node} if node else {})
    return {"metadata": {"name": "trainer", **metadata}, "spec": spec, "status": {"phase": phase, "conditions": list(conditions)}}


REFUSED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/9 nodes are available: 9 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(("made", "count"), [
    (pod((1,)), 1), (pod((2, 3)), 5), (pod((1,), init=(4,)), 4), (pod((2,), init=(1, 1)), 2), (pod((2,), init=((1, "Always"),)), 3),
])
def test_gpus_of_a_pod_are_what_the_scheduler_counts(made, count):
    """Kubernetes documentation, init containers: the sum of the containers or the largest init container; sidecars count with
    the containers."""
    assert pods.gpus(made) == count


@pytest.mark.parametrize(("made", "sentence", "settled"), [
    (pod(), "pod/trainer Pending; no scheduler has said anything about it", False),
    (pod(conditions=[REFUSED]), "pod/trainer Pending, Unschedulable: 0/9 nodes are available: 9 Insufficient nvidia.com/gpu.", True),
    (pod(node="h100-1"), "pod/trainer Pending on h100-1", False),
    (pod(node="h100-1", phase="Running"), "pod/trainer Running on h100-1", True),
    (pod(deletionTimestamp="2026-01-01T00:00:00Z"), "pod/trainer is being deleted", False),
])
def test_a_pod_in_one_sentence(made, sentence, settled):
    assert (pods.sentence(made), pods.settled(made)) == (sentence, settled)


def test_a_failed_pod_says_why():
    failed = pod(node="a100-0", phase="Failed")
    failed["status"] |= {"reason": "UnexpectedAdmissionError", "message": "Pod was rejected"}
    assert pods.sentence(failed) == "pod/trainer Failed on a100-0 (UnexpectedAdmissionError: Pod was rejected)"


def test_the_table_has_the_scheduler_s_words_under_the_pod():
    assert str(pods.table([pod(conditions=[REFUSED]), pod((8,), node="h100-0", phase="Running")])).splitlines() == [
        "pod      GPUs  phase      node", "trainer     1  Pending    -", "  └ 0/9 nodes are available: 9 Insufficient nvidia.com/gpu.",
        "trainer     8  Running    h100-0"]
    assert str(pods.table([])) == "no pods"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (passed("It runs."), "✔ passed. It runs."),
        (not_yet("No pod."), "… not yet. No pod."),
        (wrong("Two.", "delete it"), "✘ wrong. Two.\n  → delete it"),
        (broken("etcd is down", "orchlab up"), "! environment broken. etcd is down\n  → orchlab up"),
    ],
)
def test_an_answer_says_its_status_in_words_everywhere(answer, text):
    assert str(answer) == text == PlainTextFormatter()(answer)
    assert f"<b>{text.split('.')[0]}.</b>" in answer._repr_html_()


def test_html_in_an_answer_stays_text():
    assert "<img" not in Answer("wrong", "<img src=x>", exercise="a")._repr_html_()


def test_text_shows_itself_without_quotes():
    assert PlainTextFormatter()(Text("two\nlines")) == "two\nlines"
