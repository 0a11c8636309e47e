"""Faults of the retriever inside real runs: counted, never trained, and a run that cannot go on says why.

The faulty server is a real HTTP server in front of the real one; it fails for a fixed share of the queries.
"""

import threading
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def faulty(retriever_url):
    """A server that answers 400 to about one query in twelve, always the same ones, and passes on the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bad = blake2b(body).digest()[0] < 21 and b"ready" not in body
            status, answer = (400, b'{"error": "refused on purpose"}') if bad else (200, self.forward(body))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def forward(self, body):
            request = Request(f"{retriever_url}/retrieve", body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=30) as response:
                return response.read()

        def log_message(self, *_):
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def arguments(demo_files, url):
    return (
        "+recipe=search_r1_cpu",
        f"agentic.demo_dir={demo_files}",
        f"agentic.retriever.urls=[{url}]",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        "trainer.total_training_steps=3",
    )


def test_failed_groups_are_dropped_whole_and_counted(main_ppo, demo_files, faulty):
    # the check at start asks new queries, some of which would be refused
    run = main_ppo(*arguments(demo_files, faulty), "agentic.preflight=false")
    assert run.status == 0, run.log[-3000:]
    steps = [record["data"] for record in run.metrics]
    assert sum(step["agentic/infra_faults"] for step in steps) > 0
    for number, step in enumerate(steps, start=1):
        rows = [row for row in run.rows if row["step"] == number]
        groups = {row["index"] for row in rows}
        assert len(groups) == 8 - step["agentic/dropped_groups"]
        assert len(rows) == 8 * len(groups) == step["agentic/step/rows"]
    assert "refused on purpose" in run.log


def test_a_run_in_which_everything_fails_ends_with_the_cause(main_ppo, demo_files):
    run = main_ppo(
        *arguments(demo_files, "http://127.0.0.1:9"), "agentic.preflight=false", "agentic.retriever.retries=0"
    )
    assert run.status != 0
    assert "no group of step 1 finished: retriever: retriever at http://127.0.0.1:9" in run.log
