"""Prompt packs: the texts a method shows its policy, one folder of text files a pack, chosen by the recipe."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from verl_agentic.core.environment import Passage
from verl_agentic.core.suggest import did_you_mean


@dataclass(frozen=True)
class PromptPack:
    """The texts of a single-context method.

    Attributes:
        user: the user message; `{question}`.
        passage: one passage; `{rank}` from 1, `{title}`, `{text}`, `{contents}`.
        observation: what is appended after a retrieval; `{passages}`, the passages joined by `passage_separator`.
        correction: appended after an invalid turn that is given another chance.
        notices: what is appended instead where there is a file `notice.NAME.txt`: NAME is a fault code
            (`nested_tag`), or what an environment calls an edit that it cannot do.
        observations: what is appended after other actions, files `observation.NAME.txt` where NAME is what an
            environment calls it; `{texts}`, joined by `passage_separator`, at most once.
        requests: what asks the policy for a text beside the session, files `request.NAME.txt`.
        last_turn: appended after the observation of the last allowed action.
        passage_separator: file `passage_separator.txt`; a newline where the file is missing.
    """

    user: str
    passage: str
    observation: str
    correction: str
    last_turn: str
    passage_separator: str = "\n"
    notices: Mapping[str, str] = field(default_factory=dict)
    observations: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)

    def notice(self, name: str) -> str:
        """The text that tells the policy that its turn was wrong by `name`: the notice, or the general correction."""
        return self.notices.get(name, self.correction)

    def render_passage(self, rank: int, passage: Passage) -> str:
        return self.passage.format(rank=rank, title=passage.title, text=passage.text, contents=passage.contents)

    def observation_parts(self, name: str = "") -> tuple[str, str]:
        """The text of an observation template before and after its passages or texts; "" is that of a retrieval."""
        text, placeholder = (self.observations[name], "{texts}") if name else (self.observation, "{passages}")
        before, _, after = text.partition(placeholder)
        return before, after


# Kind of text of which a pack holds several -> how the names of their files begin.
_BY_NAME = {"notices": "notice", "observations": "observation", "requests": "request"}
# The two texts that are formatted; the others are taken as they are.
_PLACEHOLDERS = {"user": {"question"}, "passage": {"rank", "title", "text", "contents"}}
_REQUIRED = {"user": {"question"}}


def load_pack(root: Path, name: str) -> PromptPack:
    """Read the pack `name` under `root`, or the folder `name` itself where it is a path to a pack of the user's.

    A template file's own final newline is not part of the text.

    Raises:
        ValueError: no such pack, a file is missing, or a placeholder is unknown or missing.
    """
    folder = Path(name) if "/" in name else root / name
    if not folder.is_dir():
        known = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        raise ValueError(f"agentic.prompts: no prompt pack {name!r}{did_you_mean(name, known)} (available: {known})")
    texts: dict[str, Any] = {}
    for key in (f.name for f in fields(PromptPack) if f.name not in _BY_NAME):
        path = folder / f"{key}.txt"
        if path.is_file():
            texts[key] = read_template(path)
            _check(path, key, texts[key])
        elif key != "passage_separator":
            raise ValueError(f"the prompt pack lacks the file {path}")
    texts.update((key, _named(folder, prefix)) for key, prefix in _BY_NAME.items())
    pack = PromptPack(**texts)
    for name, text in pack.observations.items():
        if text.count("{texts}") > 1:
            raise ValueError(f"{folder}/observation.{name}.txt: the placeholder {{texts}} may occur once at most")
    return pack


def _named(folder: Path, prefix: str) -> dict[str, str]:
    """The texts of the files `PREFIX.NAME.txt`, by name."""
    return {path.stem.removeprefix(f"{prefix}."): read_template(path) for path in folder.glob(f"{prefix}.*.txt")}


def read_template(path: Path) -> str:
    """The text of a template file; its own final newline is not part of it."""
    return path.read_text(encoding="utf-8").removesuffix("\n")


def _check(path: Path, key: str, text: str) -> None:
    if key == "observation" and text.count("{passages}") != 1:
        raise ValueError(
            f"{path}: the placeholder {{passages}} must occur once, it occurs {text.count('{passages}')} times"
        )
    if key not in _PLACEHOLDERS:
        return
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise ValueError(f"{path}: {error}; write a brace that is meant as such twice") from None
    if used - _PLACEHOLDERS[key]:
        allowed = sorted(_PLACEHOLDERS[key])
        raise ValueError(f"{path}: unknown placeholder {sorted(used - _PLACEHOLDERS[key])}, allowed: {allowed}")
    if missing := _REQUIRED.get(key, set()) - used:
        raise ValueError(f"{path}: the placeholder {sorted(missing)} is missing")
