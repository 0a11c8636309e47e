"""The client of chat completions against servers behind real HTTP."""

import asyncio

import pytest
from http_servers import JsonHandler, serving

from verl_agentic.clients.chat import ChatClient, ChatError

MESSAGES = [{"role": "user", "content": "Who ?"}]
TOLD = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 8}


def reply(content):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}


def ask(urls, retries=0, **options):
    async def asked():
        client = ChatClient(urls, "big", timeout_s=5, deadline_s=20, retries=retries, concurrency=2)
        try:
            return await client.complete(MESSAGES, **TOLD, **options)
        finally:
            await client.aclose()

    return asyncio.run(asked())


def test_what_is_sent_and_what_comes_back(monkeypatch):
    seen = []

    class Server(JsonHandler):
        def do_POST(self):
            seen.append((self.path, self.headers.get("Authorization"), self.body()))
            self.answer(200, reply(" Bram "))

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(Server) as url:
        assert ask([f"{url}/v1"]) == " Bram "
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        assert ask([f"{url}/v1"], stop=("</a>",), json_object=True) == " Bram "
    plain = {"model": "big", "messages": MESSAGES, **TOLD}
    assert seen[0] == ("/v1/chat/completions", None, plain)
    assert seen[1][1:] == ("Bearer k", {**plain, "stop": ["</a>"], "response_format": {"type": "json_object"}})


def test_a_server_that_recovers_is_asked_again_and_one_that_refuses_is_not():
    statuses = [503, 500, 200]
    asked = []

    class Server(JsonHandler):
        def do_POST(self):
            self.body()
            asked.append(statuses[0])
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            self.answer(status, reply("yes") if status == 200 else {"error": {"message": "no such model"}})

    with serving(Server) as url:
        assert ask([url], retries=3) == "yes"
        assert asked == [503, 500, 200]
        statuses[:] = [404]
        with pytest.raises(ChatError, match=r"endpoint at http\S+ answers 404: .*no such model") as caught:
            ask([url], retries=3)
    assert (caught.value.kind, asked[3:]) == ("refused", [404])


@pytest.mark.parametrize(
    ("payload", "said"),
    [({}, "no `choices"), ({"choices": []}, "no `choices"), (reply([1]), "is no text"), (b"<html>", "is not JSON")],
)
def test_answers_of_another_shape_are_one_sentence(payload, said):
    class Server(JsonHandler):
        def do_POST(self):
            self.body()
            self.answer(200, payload)

    with serving(Server) as url, pytest.raises(ChatError, match=said) as caught:
        ask([url])
    assert caught.value.kind == "shape"


def test_thinking_alone_is_an_empty_reply():
    class Server(JsonHandler):
        def do_POST(self):
            self.body()
            self.answer(200, reply(None))

    with serving(Server) as url:
        assert ask([url]) == ""


def test_a_server_that_is_not_there_and_addresses_that_are_none():
    with pytest.raises(ChatError, match=r"does not answer \(connection refused\)"):
        ask(["http://127.0.0.1:9/v1"])
    with pytest.raises(ValueError, match="needs at least one address"):
        ask([])
    with pytest.raises(ValueError, match=r"'127.0.0.1:9' is not an address like"):
        ask(["127.0.0.1:9"])
    with pytest.raises(ValueError, match="retries at least 0"):
        ask(["http://127.0.0.1:9"], retries=-1)
