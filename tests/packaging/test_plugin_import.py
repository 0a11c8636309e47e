"""Importing the plugin loads nothing heavy, and finds Hydra whether it is imported before or afterwards."""

import pytest

HEAVY = "{'torch', 'verl', 'ray', 'transformers', 'hydra', 'faiss', 'flask', 'httpx'}"
LIST_RECIPES = (
    "from hydra import initialize_config_dir, compose\n"
    "with initialize_config_dir('/', version_base=None):\n"
    "    from hydra.core.global_hydra import GlobalHydra\n"
    "    print(GlobalHydra.instance().config_loader().get_group_options('recipe'))\n"
)


@pytest.mark.parametrize("module", ["verl_agentic", "verl_agentic.core", "verl_agentic.plugin", "verl_agentic.methods"])
def test_import_is_light(wheel_environment, module: str):
    shown = wheel_environment.python("-c", f"import sys, {module}; print(sorted({HEAVY} & set(sys.modules)))")
    assert (shown.stdout.strip(), shown.stderr) == ("[]", "")


@pytest.mark.parametrize("imports", ["import verl_agentic.plugin, hydra\n", "import hydra, verl_agentic.plugin\n"])
def test_hydra_finds_the_recipes_in_either_order_of_imports(wheel_environment, imports: str):
    shown = wheel_environment.python("-c", imports + LIST_RECIPES)
    assert "'search_r1'" in shown.stdout, shown.stderr


def test_foreign_package_named_recipes_does_not_hide_ours(unpacked_environment):
    """Some wheels ship a top-level `recipes` whose __init__ refuses to be imported; pip lets it overwrite ours."""
    (unpacked_environment.site_packages / "recipes" / "__init__.py").write_text(
        "raise ModuleNotFoundError('no package')\n"
    )
    shown = unpacked_environment.python("-c", "import verl_agentic.plugin\n" + LIST_RECIPES)
    assert "'search_r1'" in shown.stdout, shown.stderr


def test_plugin_is_silent_in_a_worker_process(wheel_environment):
    shown = wheel_environment.python("-c", "import verl, sys; print('verl_agentic.plugin' in sys.modules)")
    assert shown.stdout.strip() == "True"
    assert "verl-agentic" not in shown.stderr
