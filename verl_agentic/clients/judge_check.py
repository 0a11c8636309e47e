"""What is asked of a judge's endpoint before a run: does it serve the model, and reply in a form that is read."""

from __future__ import annotations

from verl_agentic.clients.chat import ChatClient
from verl_agentic.clients.errors import ChatError
from verl_agentic.clients.judge import SHOWN, JudgeClient
from verl_agentic.core.judge_prompts import placeholders, render
from verl_agentic.core.judging import Missing
from verl_agentic.core.verdicts import parse_verdict

CANARY = "The Seine flows through Paris."  # stands in every field


async def check_judge_endpoint(judge: JudgeClient) -> None:
    """Ask every address of `judge` one canary of each of its kinds; nothing is remembered of it.

    Raises:
        ChatError: an address does not answer, does not serve the model, refuses the key, or replies without a verdict.
    """
    for url in judge.chat.urls:
        chat = judge.chat.only(url)
        try:
            for kind in judge.prompts:
                await _check(judge, chat, kind)
        finally:
            await chat.aclose()


async def _check(judge: JudgeClient, chat: ChatClient, kind: str) -> None:
    template = judge.prompts[kind]
    prompt = render(template, dict.fromkeys(placeholders(template), CANARY), judge.field_chars)
    try:
        reply = await judge.reply(chat, prompt)
    except ChatError as error:
        raise ChatError(error.url, error.kind, f"{error.what}; {_hint(error, chat)}", error.status) from error
    judgement = parse_verdict(reply)
    if isinstance(judgement, Missing):
        what = (
            f"gives no verdict on a trial ask of {kind} ({judgement.reason}), its model says {reply[:SHOWN]!r}; give "
            "agentic.judge.model a model that follows the prompt, or agentic.judge.prompts a prompt that it follows"
        )
        raise ChatError(chat.urls[0], judgement.reason, what)


def _hint(error: ChatError, chat: ChatClient) -> str:
    """What to do about a failed canary."""
    if error.status in (401, 403):
        return f"set the environment variable {chat.api_key_variable} to a key that it accepts"
    if error.status == 404:
        return (
            f"set agentic.judge.model, which is {chat.model!r}, to a model that it serves, or mend agentic.judge.urls"
        )
    if error.kind == "truncated":
        return "raise agentic.judge.max_tokens"
    return "start a server there that speaks POST /v1/chat/completions, or set agentic.judge.urls"
