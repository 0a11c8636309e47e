"""agentic_rag_r1 inside verl's real trainer, on the packaged cold starts, with a real retriever server.

Two steps with edits, judge and rejection are part of the default run; the policy without edits, and a judge behind a
chat endpoint that often says nothing of use, are slow-marked.
"""

import json
import threading
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from verl_agentic.clients.judge_check import CANARY
from verl_agentic.demo.prepare import PrepareConfig, prepare_cold_start

METHOD = "agentic_rag_r1"
QUESTIONS, ROLLOUTS = 4, 8
SESSIONS = QUESTIONS * ROLLOUTS
KEPT = 23  # 0.7 of 32, rounded up


@pytest.fixture(scope="module")
def demo(demo_files):
    """The demo's files with the cold starts of the method beside search_r1's."""
    for off in ((), ("backtrack", "summary")):
        start = PrepareConfig(demo_files, METHOD, off, cold_start="packaged")
        prepare_cold_start(start, line=lambda text: None)
    return demo_files


def arguments(recipe, demo, url):
    return (
        f"+recipe={recipe}",
        f"agentic.demo_dir={demo}",
        f"agentic.retriever.urls=[{url}]",
        f"data.train_batch_size={QUESTIONS}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        "trainer.total_training_steps=2",
    )


def test_two_steps_of_agentic_rag_r1(main_ppo, demo, retriever_url):
    done = main_ppo(*arguments("agentic_rag_r1_cpu", demo, retriever_url))
    assert done.status == 0, done.log[-3000:]
    steps = [record["data"] for record in done.metrics]
    assert [step["training/global_step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["agentic/infra_faults"] == 0
        assert step["agentic/tokens_compared"] > 0
        # edits: more rows than sessions, and the policy saw less than it would have without them
        assert step["agentic/step/rows"] > 1.5 * SESSIONS
        assert step["agentic/rows"] == step["agentic/step/rows"] / SESSIONS
        assert step["agentic/actions/summary"] > 0.5
        assert step["agentic/context/seen"] < 0.9 * step["agentic/context/unedited"]
        # rejection
        assert step["agentic/selection/kept_fraction"] == KEPT / SESSIONS
        assert step["agentic/step/rows_trained"] < step["agentic/step/rows"]
        # the judge was asked about every search and every edit, and said something each time
        judged = sum(step[f"agentic/actions/{name}"] for name in ("search", "summary", "backtrack"))
        assert step["agentic/judge/asked"] == pytest.approx(judged)
        assert step["agentic/judge/missing_share"] == 0.0
        assert step["agentic/process/retrieval"] > 0.3
        # rollout and training agree on what was seen, in edited sessions as in unedited ones
        differences = [step[name] for name in step if name.startswith("agentic/log_prob_difference_max")]
        assert differences
        assert max(differences) < 1e-3
    assert "agentic/log_prob_difference_max_edited" in steps[0]
    assert len(done.losses) == 2


@pytest.mark.slow
def test_without_edits_agentic_rag_r1_has_one_row_a_session(main_ppo, demo, retriever_url):
    done = main_ppo(*arguments("agentic_rag_r1_no_memory_cpu", demo, retriever_url))
    assert done.status == 0, done.log[-3000:]
    for step in (record["data"] for record in done.metrics):
        assert step["agentic/step/rows"] == SESSIONS
        assert "agentic/actions/summary" not in step
        assert step["agentic/context/seen"] == step["agentic/context/unedited"]
        assert step["agentic/process/memory"] == 0.0
        assert step["agentic/selection/kept_fraction"] == KEPT / SESSIONS


@pytest.fixture
def endpoint():
    """Starts chat endpoints that judge 0.5, but for a share of the prompts, always the same, say what is no verdict."""
    servers = []

    def start(useless):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = body["messages"][0]["content"]
                bad = CANARY not in prompt and blake2b(prompt.encode()).digest()[0] < 256 * useless
                reply = {"role": "assistant", "content": "I cannot say." if bad else '{"score": 0.5}'}
                answer = json.dumps({"choices": [{"message": reply, "finish_reason": "stop"}]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                """Keep the test's output clean."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()


def judged_by(url):
    return ("agentic.judge.scorer=endpoint", f"agentic.judge.urls=[{url}]", "agentic.judge.model=judge")


@pytest.mark.slow
def test_a_judge_that_often_fails_is_counted_and_never_0(main_ppo, demo, retriever_url, endpoint):
    done = main_ppo(*arguments("agentic_rag_r1_cpu", demo, retriever_url), *judged_by(endpoint(0.08)))
    assert done.status == 0, done.log[-3000:]
    assert "verl-agentic: judge of retrieval, memory: judge at http://127.0.0.1:" in done.log
    for step in (record["data"] for record in done.metrics):
        assert 0.0 < step["agentic/judge/missing_share"] < 0.2
        # each verdict is 0.5, so what was credited counts the verdicts
        verdicts = step["agentic/judge/asked"] - step["agentic/judge/missing"]
        credited = step["agentic/process/retrieval"] + step["agentic/process/memory"]
        assert credited <= 0.5 * verdicts + 1e-6
        assert credited > 0.5 * verdicts - step["agentic/process/beyond_cap"] - 1e-6


@pytest.mark.slow
def test_a_judge_that_mostly_fails_stops_the_run(main_ppo, demo, retriever_url, endpoint):
    done = main_ppo(*arguments("agentic_rag_r1_cpu", demo, retriever_url), *judged_by(endpoint(0.9)))
    assert done.status != 0
    assert "agentic.judge.max_missing_share" in done.log
