import http.server
import json
import ssl
import threading
import time

import pytest
import trustme
from views_support import Api, node_object, pod, unit, until

from orchlab.errors import ApiError, BadInput, EnvironmentBroken, OrchlabError, TimeLimitReached
from orchlab.kube.client import Client
from orchlab.kube.feed import Feed


@pytest.fixture
def api():
    api = Api()
    api.put("nodes", node_object("n1"))
    api.put("pods", pod("p", 2, why="0/1 nodes are available"))
    return api


@pytest.fixture
def feed(api):
    with Feed(api, rate=50) as feed:
        yield feed.ready()


def names(feed):
    return [u.name for u in feed.snapshot().units]


def threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("orchlab-feed")]


def test_lists_and_follows(api, feed):
    assert names(feed) == ["p"] and feed.snapshot().nodes[0].name == "n1" and feed.snapshot().trouble == ""
    api.put("pods", pod("p", 2, "n1", "Running", ["GPU-1", "GPU-2"]))
    api.put("pods", pod("q"))
    snapshot = feed.wait(lambda s: len(s.units) == 2 and s.units[0].stage == "running", 5)
    assert snapshot.units[0].shares[0].devices == ("GPU-1", "GPU-2")
    api.remove("pods", "uid-p")
    feed.wait(lambda s: [u.name for u in s.units] == ["q"], 5)
    assert {r.name: r.outcome for r in feed.timeline.records()} == {"p": "deleted", "q": ""}
    assert not feed.timeline.gaps()


def test_nodes_come_change_and_go(api, feed):
    api.put("nodes", node_object("n2"))
    cordoned = node_object("n1")
    cordoned["spec"]["unschedulable"] = True
    api.put("nodes", cordoned)
    feed.wait(lambda s: [(n.name, n.cordoned) for n in s.nodes] == [("n1", True), ("n2", False)], 5)
    api.remove("nodes", "uid-n1")
    feed.wait(lambda s: [n.name for n in s.nodes] == ["n2"], 5)


def test_relists_after_410_and_marks_the_gap(api, feed):
    until(lambda: api.watching("pods"), "the watch")
    api.put("pods", pod("came"), silently=True)
    api.remove("pods", "uid-p", silently=True)
    before = time.time()
    api.expire("pods")
    feed.wait(lambda s: [u.name for u in s.units] == ["came"], 5)
    gap, = feed.timeline.gaps()
    assert gap.start <= before <= gap.end <= time.time() and "expired" in gap.why and "too old" in gap.why
    gone = next(r for r in feed.timeline.records() if r.name == "p")
    assert gone.outcome == "deleted" and gone.ended == pytest.approx(gap.end, rel=0, abs=1e-3)
    assert api.lists.count("pods") == 2 and api.lists.count("nodes") == 1, "only what expired is listed again"
    api.put("pods", pod("later"))
    feed.wait(lambda s: "later" in [u.name for u in s.units], 5)


def test_relists_after_the_server_was_away(api, feed):
    until(lambda: api.watching("pods"), "the watch")
    api.down = True
    api.send("pods", EnvironmentBroken("the watch on /api/v1/pods broke off: reset"))
    until(lambda: feed.trouble, "trouble")
    assert "pods not being watched" in feed.snapshot().trouble and "reset" in feed.snapshot().trouble
    assert names(feed) == ["p"], "what was known stays on show"
    api.put("pods", pod("came"), silently=True)
    time.sleep(0.5)
    assert 1 <= api.lists.count("pods") - 1 <= 4, "it tries again, with pauses"
    api.down = False
    feed.wait(lambda s: len(s.units) == 2 and not s.trouble, 5)
    assert [("reset" in g.why, g.end - g.start > 0.5) for g in feed.timeline.gaps()] == [(True, True)]


def test_a_watch_that_ends_by_itself_leaves_no_gap(api):
    with Feed(api, rate=50, watch_seconds=0.1) as feed:
        feed.ready()
        time.sleep(0.5)
        api.put("pods", pod("q"))
        feed.wait(lambda s: len(s.units) == 2, 5)
        assert not feed.timeline.gaps() and api.lists.count("pods") == 1


def test_a_refusal_is_said_and_does_not_hammer_the_server(api):
    def refuse(path, **query):
        api.lists.append(path)
        raise ApiError(403, "Forbidden", 'nodes is forbidden: User "x" cannot list resource "nodes"')

    api.list = refuse
    with Feed(api) as feed:
        with pytest.raises(EnvironmentBroken, match="cannot list resource"):
            feed.ready(1)
        assert len(api.lists) <= 4 * 3


def test_what_cannot_be_read_is_said_and_the_feed_goes_on(api, feed, caplog):
    until(lambda: api.watching("pods"), "the watch")
    api.send("pods", ("ADDED", {"metadata": {"name": "odd", "resourceVersion": "7"}}))
    until(lambda: feed.timeline.gaps("Pod"), "a new list")
    assert "KeyError" in caplog.text and "uid" in feed.timeline.gaps("Pod")[0].why
    api.put("pods", pod("q"))
    feed.wait(lambda s: len(s.units) == 2 and not s.trouble, 5)


def test_old_news_of_a_pod_is_ignored(api, feed):
    until(lambda: api.watching("pods"), "the watch")
    api.put("pods", pod("p", 2, "n1", "Running"))
    feed.wait(lambda s: s.units[0].stage == "running", 5)
    api.send("pods", ("MODIFIED", pod("p", 2, why="old")))
    api.put("pods", pod("mark"))
    feed.wait(lambda s: len(s.units) == 2, 5)
    assert [u.stage for u in feed.snapshot().units if u.name == "p"] == ["running"]


def test_bookmarks_move_the_version_on_and_change_nothing(api, feed):
    until(lambda: api.watching("pods"), "the watch")
    calls = []
    feed.on_change(lambda: calls.append(1))
    until(lambda: calls, "the first call")
    api.send("pods", ("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "999"}}))
    time.sleep(0.2)
    assert len(calls) == 1 and names(feed) == ["p"] and not feed.trouble


def test_changes_are_told_together(api):
    with Feed(api, rate=5) as feed:
        feed.ready()
        calls = []
        feed.on_change(lambda: calls.append(len(feed.snapshot().units)))
        start = time.monotonic()
        for number in range(200):
            api.put("pods", pod(f"q{number}"))
        until(lambda: calls and calls[-1] == 201, "all changes")
        assert len(calls) <= 2 + (time.monotonic() - start) * 5


def test_a_listener_that_fails_silences_no_other(api, feed, caplog):
    calls = []
    feed.on_change(lambda: 1 / 0)
    end = feed.on_change(lambda: calls.append(1))
    until(lambda: calls, "a call")
    assert "ZeroDivisionError" in caplog.text
    end()
    end()
    count = len(calls)
    api.put("pods", pod("q"))
    feed.wait(lambda s: len(s.units) == 2, 5)
    time.sleep(0.1)
    assert len(calls) == count


def test_events_are_kept_up_to_a_number_even_when_the_server_forgets_them(api):
    def event(number):
        return {"metadata": {"uid": f"e{number:03}", "resourceVersion": "1"}, "reason": "R", "message": str(number), "type": "Normal",
                "involvedObject": {"kind": "Pod", "name": "p"}, "eventTime": f"2023-11-14T08:{number // 60:02}:{number % 60:02}Z"}

    with Feed(api, rate=50, events=10) as feed:
        feed.ready()
        until(lambda: api.watching("events"), "the watch")
        for number in range(30):
            api.put("events", event(number))
        feed.wait(lambda s: s.events and s.events[-1].message == "29", 5)
        api.remove("events", "e029")
        api.put("events", event(30))
        kept = [e.message for e in feed.wait(lambda s: s.events[-1].message == "30", 5).events]
        assert kept == [str(n) for n in range(21, 31)]
        api.remove("events", "e000")
        api.put("events", event(30) | {"message": "again"})
        kept = [e.message for e in feed.wait(lambda s: s.events[-1].message == "again", 5).events]
        assert "0" not in kept, "what was let go doesn't come back when the server forgets it too"


def test_wait_says_what_did_not_come(api, feed):
    start = time.monotonic()
    with pytest.raises(TimeLimitReached, match="two pods did not"):
        feed.wait(lambda s: len(s.units) == 2, 0.3, "two pods")
    assert time.monotonic() - start < 2


def test_stop_ends_the_threads_and_a_waiting_call(api):
    feed = Feed(api).start()
    feed.ready()
    until(lambda: api.watching("events"), "the watches")
    failures = []

    def wait():
        try:
            feed.wait(lambda s: False, 30)
        except EnvironmentBroken as error:
            failures.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert feed.stop(2) and not threads()
    waiting.join(2)
    assert failures and feed.stop(), "stopping twice is no fault"
    with pytest.raises(OrchlabError, match="cannot be started again"):
        feed.start()


def test_a_listener_may_stop_the_feed(api):
    feed = Feed(api, rate=50)
    feed.on_change(feed.stop)
    feed.start()
    until(lambda: not threads(), "the end of all threads")


def test_a_rate_of_nothing_is_refused(api):
    with pytest.raises(BadInput) as caught:
        Feed(api, rate=0)
    assert caught.value.field == "rate"


def test_one_namespace(api):
    paths = []
    inner = api.list
    api.list = lambda path, **query: (paths.append(path), inner(path, **query))[1]
    with Feed(api, namespace="lab01") as feed:
        feed.ready()
    assert sorted(paths) == ["/api/v1/namespaces/lab01/events", "/api/v1/namespaces/lab01/pods", "/api/v1/nodes"]


class Silent(http.server.BaseHTTPRequestHandler):
    """Answers lists; opens watches and then says nothing for a minute."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if "watch=1" in self.path:
            self.end_headers()
            self.wfile.flush()
            self.server.opened.set()
            self.server.released.wait(60)
        else:
            body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_stop_breaks_off_watches_that_are_blocked_in_tls():
    """The real client on a real socket: nothing else would end a read that waits for a quiet server."""
    authority = trustme.CA()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    server.opened, server.released = threading.Event(), threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        trust = ssl.create_default_context()
        authority.configure_trust(trust)
        feed = Feed(Client(f"https://127.0.0.1:{server.server_address[1]}", trust)).start().ready()
        assert server.opened.wait(5)
        time.sleep(0.2)
        start = time.monotonic()
        assert feed.stop(2) and time.monotonic() - start < 2 and not threads()
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


def test_the_support_makes_units_as_the_feed_does():
    """Pictures are tested with made-up units: they must look like those that come from objects."""
    from orchlab.kube.objects import unit_from

    read = unit_from(pod("p", 2, "n1", "Running", ["GPU-n1-0", "GPU-n1-1"]))
    assert read.shares == unit("p", 2, "n1").shares and read.wanted == unit("p", 2, "n1").wanted
