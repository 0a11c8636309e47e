"""Refusals on the command line: unknown recipes, unknown keys of ours."""

from pathlib import Path

import pytest

from verl_agentic.startup.config_folders import ConfigFileError
from verl_agentic.startup.override_check import OverrideError, check_overrides

BASE = """\
method: ???
retriever:
  urls: [http://127.0.0.1:8000]
  topk: 3
budget:
  max_actions: 2
headers: {}
judge: null
"""
METHOD = """\
defaults: [base, _self_]
budget:
  stack_depth: 4
"""
RECIPE = """\
# @package _global_
defaults:
  - override /model: x
agentic:
  reward:
    metric: em
trainer:
  total_epochs: 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agentic").mkdir()
    (tmp_path / "recipe").mkdir()
    (tmp_path / "agentic" / "base.yaml").write_text(BASE)
    (tmp_path / "agentic" / "stack.yaml").write_text(METHOD)
    for name in ("search_r1", "search_r1_cpu", "stack"):
        (tmp_path / "recipe" / f"{name}.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--cfg", "job", "trainer.total_epochs=3", "+anything.new=1"],
        ["+recipe=search_r1"],
        ["+recipe@_global_=stack"],
        ["+recipe=stack.yaml"],
        ["+recipe=[search_r1,stack]"],
        ["--multirun", "+recipe=search_r1,stack"],
        ["+recipe=stack", "agentic.budget.stack_depth=2", "++agentic.reward.metric=f1"],
        ["+agentic.headers.Authorization=x", "agentic.judge.url=y", "agentic.retriever.urls.0=z"],
        ["+agentic.budget={max_actions:3,stack_depth:1}", "~agentic.judge"],
        ["+agentic=base"],
        ["--config-dir=agentc.x", "this is [not an override="],
    ],
)
def test_known_names_pass(folder: Path, arguments: list[str]):
    check_overrides(arguments, [folder])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            "+recipe=serch_r1",
            "unknown recipe 'serch_r1'; did you mean 'search_r1'? (available: search_r1, search_r1_cpu, stack)",
        ),
        (
            "+recipe@_global_=zzz",
            "unknown recipe 'zzz' (available: search_r1, search_r1_cpu, stack)",
        ),
        (
            "+recipe=[search_r1,stak]",
            "unknown recipe 'stak'; did you mean 'stack'? (available: search_r1, search_r1_cpu, stack)",
        ),
        (
            "agentic.budgt.max_actions=3",
            "unknown key 'agentic.budgt.max_actions'; did you mean 'agentic.budget.max_actions'? "
            "(keys of agentic: budget, headers, judge, method, retriever, reward)",
        ),
        (
            "+agentic.retriever.top_k=3",
            "unknown key 'agentic.retriever.top_k'; did you mean 'agentic.retriever.topk'? "
            "(keys of agentic: budget, headers, judge, method, retriever, reward)",
        ),
        (
            "++agentic.budget={max_action:3}",
            "unknown key 'agentic.budget.max_action'; did you mean 'agentic.budget.max_actions'? "
            "(keys of agentic: budget, headers, judge, method, retriever, reward)",
        ),
        (
            "+agentc.judge=3",
            "unknown key 'agentc.judge'; did you mean 'agentic.judge'? "
            "(keys of agentic: budget, headers, judge, method, retriever, reward)",
        ),
        (
            "agentic.retriever.topk.x=3",
            "unknown key 'agentic.retriever.topk.x'; did you mean 'agentic.retriever.topk'? "
            "(keys of agentic: budget, headers, judge, method, retriever, reward)",
        ),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(folder: Path, argument: str, message: str):
    with pytest.raises(OverrideError) as refused:
        check_overrides(["trainer.total_epochs=3", argument], [folder])
    assert str(refused.value) == message


@pytest.mark.parametrize("argument", ["+recipie=search_r1", "+recipes=search_r1", "++recpie=search_r1"])
def test_p71_a_misspelt_group_would_train_stock_verl_and_is_refused(folder: Path, argument: str):
    with pytest.raises(OverrideError, match=r"unknown group '\w+' in .*; did you mean 'recipe'\?"):
        check_overrides([argument], [folder])


@pytest.mark.parametrize(
    "argument", ["+critic=x", "+reward.num_workers=1", "+ray_kwargs.x=1", "reprice=3", "+data.recipe=1"]
)
def test_other_groups_are_left_to_hydra(folder: Path, argument: str):
    check_overrides([argument], [folder])


def test_no_recipes_at_all_is_said(tmp_path: Path):
    with pytest.raises(OverrideError, match="none, the installation lacks its recipes"):
        check_overrides(["+recipe=search_r1"], [tmp_path])


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a: [1", "is not valid YAML: while parsing a flow sequence"), ("- 1", "must hold keys and values, not a list")],
)
def test_unreadable_file_is_named(folder: Path, text: str, reason: str):
    (folder / "agentic" / "base.yaml").write_text(text)
    with pytest.raises(ConfigFileError) as refused:
        check_overrides(["agentic.judge=1"], [folder])
    assert str(refused.value).startswith(f"{folder}/agentic/base.yaml {reason}")
