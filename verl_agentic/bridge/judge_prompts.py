"""The judge's prompts: one text file a kind of ask, in the method's folder or one of the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_agentic.bridge.prompts import read_template
from verl_agentic.core.judge_prompts import placeholders
from verl_agentic.core.method import Method
from verl_agentic.core.suggest import did_you_mean


def load_judge_prompts(method: Method, folder: str | None, kinds: Sequence[str]) -> Mapping[str, str]:
    """The template of each kind: `KIND.txt` in `folder`, or in the method's own where that is None.

    A folder of the user's may use the placeholders of the method's own file of that kind.

    Raises:
        ValueError: there is no folder or file, a template is malformed, or a placeholder is unknown.
    """
    chosen = method.judge_prompts if folder is None else Path(folder).expanduser()
    if chosen is None:
        raise ValueError(f"agentic.judge.prompts: the method {method.name} has no prompts of its own; give a folder")
    prompts = {kind: _load(chosen, kind) for kind in kinds}
    if folder is not None and method.judge_prompts is not None:
        for kind, text in prompts.items():
            _check(chosen / f"{kind}.txt", placeholders(text), placeholders(_load(method.judge_prompts, kind)))
    return prompts


def _load(folder: Path, kind: str) -> str:
    path = folder / f"{kind}.txt"
    if not path.is_file():
        raise ValueError(f"agentic.judge.prompts: the judge is asked for {kind} and there is no file {path}; write it")
    text = read_template(path)
    try:
        placeholders(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; write a brace that is meant as such twice") from None
    return text


def _check(path: Path, used: set[str], known: set[str]) -> None:
    for name in sorted(used - known):
        raise ValueError(
            f"{path}: unknown placeholder {name!r}, an ask of this kind has {sorted(known)}{did_you_mean(name, known)}"
        )
