import http.server
import threading

import pytest

from orchlab.course import manifests
from orchlab.errors import BadInput

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: vectoradd # as published\nspec: {}\n"


@pytest.fixture
def web():
    """A local web server: /pod.yaml, /page.html, /huge; anything else is 404."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = {"/pod.yaml": POD.encode(), "/page.html": b"<html><p>a page</p></html>", "/huge": b"a" * (manifests.LARGEST + 1)}.get(
                self.path
            )
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_is_taken_as_it_is_written(tmp_path):
    (tmp_path / "pod.yaml").write_text(POD)
    read = manifests.read("pod.yaml", [tmp_path / "nowhere", tmp_path])
    assert read.text == POD and read.notes == [] and not read.generates_names


def test_an_address_is_fetched(web):
    assert manifests.read(f"{web}/pod.yaml", []).text == POD


@pytest.mark.parametrize(
    ("path", "words"), [("/none", "cannot be fetched"), ("/page.html", "apiVersion and kind"), ("/huge", "larger than 1 MiB")]
)
def test_what_an_address_can_give_besides(web, path, words):
    with pytest.raises(BadInput, match=words):
        manifests.read(web + path, [])


def test_an_address_where_nobody_listens():
    with pytest.raises(BadInput, match="cannot be fetched.*\n→ save it and give the file"):
        manifests.read("http://127.0.0.1:9/pod.yaml", [])


def test_a_namespace_is_taken_out_and_said(tmp_path):
    (tmp_path / "pod.yaml").write_text(POD.replace("  name:", "  namespace: gpu-operator\n  name:"))
    read = manifests.read(tmp_path / "pod.yaml", [])
    assert "namespace: gpu-operator" not in read.text and "gpu-operator was taken out" in read.notes[0]


def test_generated_names_are_noticed(tmp_path):
    (tmp_path / "job.yaml").write_text("apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: train-}\n")
    assert manifests.read(tmp_path / "job.yaml", []).generates_names


@pytest.mark.parametrize(
    ("text", "words"), [("a: [", "is not YAML: line 1"), ("# nothing\n", "holds no object"), ("- 1\n", "apiVersion and kind")]
)
def test_a_bad_file_is_refused(tmp_path, text, words):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(BadInput, match=words):
        manifests.read(tmp_path / "bad.yaml", [])


def test_a_missing_file_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(BadInput, match="there is no such file"):
        manifests.read("nothing.yaml", [tmp_path])
