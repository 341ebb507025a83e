import threading
import time

import pytest
from views_support import Api, node_object, pod, until

from orchlab import views
from orchlab.errors import BadInput
from orchlab.kube.feed import Feed
from orchlab.views import Live

ALL = ("map", "pending", "events", "gantt", "devices", "occupancy")


@pytest.fixture
def api():
    api = Api()
    api.put("nodes", node_object("n1"))
    api.put("pods", pod("big", 16, why="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
    yield api
    views.close_all()
    until(lambda: not threads(), "the end of all threads")


def threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("orchlab-")]


def panels(view):
    return view.widget.children[1:]


def test_every_part_is_drawn_with_its_text_and_follows(api):
    view = Live(api, ALL, key="t", title="My cluster")
    until(lambda: all(panel.text for panel in panels(view)), "the first drawing")
    assert all(panel.html and panel.title for panel in panels(view)) and panels(view)[0].title == "My cluster"
    assert "0/1 nodes are available: 1 Insufficient nvidia.com/gpu." in panels(view)[1].html
    api.put("pods", pod("p", 2, "n1", "Running", ["GPU-1", "GPU-2"]))
    until(lambda: "B B . ." in view.text, "the change")
    assert "B lab/p" in panels(view)[0].html and "p: B" not in panels(view)[0].html
    until(lambda: "running" in panels(view)[3].html.split("</style>")[1] and "lab/p" in panels(view)[3].text, "the Gantt chart's change")
    for panel in panels(view):
        assert panel.text in view.text
    view.close()


def test_a_unit_looks_the_same_in_the_map_and_in_the_chart(api):
    api.put("pods", pod("p", 1, "n1", "Running", ["GPU-1"]))
    view = Live(api, ("map", "devices"), key="t")
    until(lambda: "lab/p" in panels(view)[0].text and "p" in panels(view)[1].text, "the first drawing")
    code = next(line.split()[0] for line in panels(view)[0].text.splitlines() if "lab/p" in line)
    assert f": {code} p from" in panels(view)[1].html


def test_close_leaves_no_thread_and_the_last_picture(api):
    view = Live(api, ALL, key="t")
    until(lambda: view.text.strip(), "the first drawing")
    start = time.monotonic()
    view.close()
    assert time.monotonic() - start < 2 and not threads()
    last = panels(view)[0].html
    api.put("nodes", node_object("n2"))
    view.update()
    assert panels(view)[0].html == last and "n1" in last
    view.close()


def test_running_the_cell_again_closes_the_earlier_view(api):
    first = Live(api, ALL, key="same")
    second = Live(api, ALL, key="same")
    other = Live(api, key="other")
    assert not any(t.is_alive() for t in first.feed._threads) and all(t.is_alive() for t in second.feed._threads)
    first.close()
    assert all(t.is_alive() for t in (*second.feed._threads, *other.feed._threads)), "closing the earlier one again harms nobody"
    views.close_all()
    assert not threads()


def test_a_feed_that_was_given_is_left_running(api):
    with Feed(api, rate=50) as feed:
        with Live(feed, key="t") as view:
            until(lambda: view.text.strip(), "the first drawing")
        again = Live(feed, key="t")
        until(lambda: again.text.strip(), "the drawing of the next view")
        again.close()
        assert all(t.is_alive() for t in feed._threads) and not feed._listeners


def test_nothing_is_sent_when_nothing_changed(api):
    view = Live(api, ("map", "pending"), key="t")
    until(lambda: view.text.strip(), "the first drawing")
    sent = []
    for panel in panels(view):
        panel.observe(lambda change: sent.append(change.name), ["html", "text"])
    api.put("pods", api.objects["pods"]["uid-big"])
    view.update()
    time.sleep(0.4)
    assert not sent


def test_bars_grow_with_time_though_nothing_changes(api):
    api.put("pods", pod("p", 1, "n1", "Running", ["GPU-1"]))
    view = Live(api, ("gantt",), key="t")
    until(lambda: view.text.strip(), "the first drawing")
    first = panels(view)[0].text
    until(lambda: panels(view)[0].text != first, "the growth", 5)


def test_trouble_is_shown_and_goes_away(api):
    view = Live(api, key="t")
    until(lambda: view.text.strip(), "the first drawing")
    from orchlab.errors import EnvironmentBroken

    until(lambda: api.watching("nodes"), "the watch")
    api.down = True
    api.send("nodes", EnvironmentBroken("the watch broke off"))
    until(lambda: "may be out of date" in view.text and "may be out of date" in panels(view)[0].html, "the warning")
    api.down = False
    until(lambda: "may be out of date" not in view.text, "its end")


def test_a_failure_to_draw_is_shown_until_it_works_again(api):
    view = Live(api, key="t")
    until(lambda: view.text.strip(), "the first drawing")
    part, picture = view._parts[0], view._parts[0]._picture
    part._picture = lambda *_: 1 / 0
    view.update()
    assert "division by zero" in view.trouble.value and view.trouble.layout.display is None
    part._picture = picture
    view.update()
    assert view.trouble.value == "" and view.trouble.layout.display == "none"


def test_a_part_of_ones_own(api):
    own = ("Count", lambda s, t, now: f"<b>{len(s.nodes)}</b>", lambda s, t, now: f"{len(s.nodes)} of {len(t.records())} at {now > 0}")
    view = Live(api, ("map", own), key="t")
    until(lambda: "1 of 1 at True" in view.text, "the drawing")
    assert panels(view)[1].html == "<b>1</b>" and panels(view)[1].title == "Count"


def test_an_unknown_part_is_refused_before_anything_starts(api):
    with pytest.raises(BadInput) as caught:
        Live(api, ("map", "pie"), key="t")
    assert caught.value.value == "pie" and "gantt" in caught.value.remedy and not threads()


def test_what_a_notebook_stores_of_it_never_varies(api):
    view = Live(api, ("map", "pending"), key="lab01")
    bundle = view._repr_mimebundle_()
    bundle = bundle[0] if isinstance(bundle, tuple) else bundle
    assert bundle["text/plain"] == "Live view 'lab01': Cluster map, Waiting, and why (.text says the same in words)"
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_everything_that_is_announced_can_be_imported():
    for name in views.__all__:
        assert getattr(views, name) is not None
    with pytest.raises(AttributeError):
        views.nothing  # noqa: B018


def test_any_feed_with_the_same_face_will_do(api):
    """Slurm's feed is another class; a view must follow it all the same and leave it running."""
    from views_support import node, unit

    from orchlab.snapshot import ClusterSnapshot
    from orchlab.timeline import Timeline

    class Other:
        def __init__(self):
            self.timeline, self.stopped, self.tell = Timeline(), False, None

        def snapshot(self):
            return ClusterSnapshot.of([node("n1")], [unit("j", 2, "n1")], taken=1)

        def on_change(self, listener):
            self.tell = listener
            return lambda: None

        def start(self):
            raise AssertionError("its maker starts it")

        def stop(self):
            self.stopped = True
            return True

    other = Other()
    with Live(other, ("map", "gantt"), key="t") as view:
        other.tell()
        assert "A lab/j" in panels(view)[0].html
    assert not other.stopped


def test_nothing_is_drawn_before_everything_was_read(api):
    inner, gate = api.list, threading.Event()

    def slow(path, **query):
        if path.endswith("/pods"):
            gate.wait(5)
        return inner(path, **query)

    api.list = slow
    view = Live(api, key="t")
    time.sleep(0.3)
    view.update()
    assert view.text.strip() == "", "half of a cluster would be a false picture"
    gate.set()
    until(lambda: "lab/big" in view.text, "the first drawing")
