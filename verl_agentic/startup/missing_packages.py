"""Which packages that training needs are not installed: asked before a run starts, not minutes into it."""

from importlib import metadata

from packaging.requirements import Requirement

DISTRIBUTION = "verl-agentic"


class MissingPackageError(RuntimeError):
    """A package of an extra is needed and not installed."""


def check_extra(extra: str) -> None:
    """Raise MissingPackageError naming the packages of the extra `extra` that are not installed."""
    missing = [name for name in required_packages(extra) if not _is_installed(name)]
    if missing:
        raise MissingPackageError(
            f"{', '.join(missing)} must be installed for this: run pip install '{DISTRIBUTION}[{extra}]'"
        )


def required_packages(extra: str) -> list[str]:
    """Names of the distributions that this package with the extra `extra` requires, in the order of the metadata."""
    requirements = [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    return [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": extra})]


def _is_installed(name: str) -> bool:
    return any(True for _ in metadata.distributions(name=name))
