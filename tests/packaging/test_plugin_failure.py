"""A plugin that cannot register says so, and never lets stock verl train what a recipe was asked for."""

from pathlib import Path

import yaml

SENTENCE = "verl-agentic: the plugin could not register itself with verl, so its recipes are unavailable ("


def break_plugin(site_packages: Path) -> None:
    with (site_packages / "verl_agentic" / "startup" / "registration.py").open("a") as module:
        module.write("\nraise OSError('broken on purpose')\n")


def test_broken_plugin_stops_a_run_with_a_recipe_and_only_warns_without(unpacked_environment):
    break_plugin(unpacked_environment.site_packages)

    refused = unpacked_environment.main_ppo("+recipe=search_r1")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert f"{SENTENCE}OSError: broken on purpose); repair the installation" in refused.stderr

    stock = unpacked_environment.main_ppo("trainer.total_epochs=7")
    assert stock.returncode == 0
    assert yaml.safe_load(stock.stdout)["trainer"]["total_epochs"] == 7
    assert f"{SENTENCE}OSError: broken on purpose)" in stock.stderr


def test_unsupported_verl_is_named_with_the_supported_range(unpacked_environment):
    linked = next((unpacked_environment.root / "links").glob("verl-*.dist-info"))
    linked.unlink()
    other = linked.with_name("verl-0.8.3.dist-info")
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.8.3\n")

    imported = unpacked_environment.python("-c", "import verl_agentic.plugin")
    assert imported.returncode == 0
    assert "UnsupportedVersionError: verl 0.8.3 is installed but verl-agentic " in imported.stderr
    assert "supports verl>=0.9,<0.10: run pip install 'verl>=0.9,<0.10'" in imported.stderr

    for spelling in ("+recipe=search_r1", "+recipe@_global_=search_r1", "recipe=search_r1"):
        assert unpacked_environment.python("-c", "import verl_agentic.plugin", spelling).returncode == 1


def test_registration_that_fails_later_is_told_too(unpacked_environment):
    (unpacked_environment.site_packages / "verl_agentic" / "startup" / "recipe_search_path.py").write_text("1 / 0\n")
    later = unpacked_environment.python("-c", "import verl_agentic.plugin, hydra; print('went on')")
    assert later.returncode == 0
    assert later.stdout.strip() == "went on"
    assert f"{SENTENCE}ZeroDivisionError: division by zero)" in later.stderr
    asked = unpacked_environment.python("-c", "import verl_agentic.plugin, hydra; print('went on')", "+recipe=x")
    assert (asked.returncode, asked.stdout) == (1, "")
