"""Training curves of a run, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from verl_agentic.report.metrics import LoggedStep, series, validated

Points = Sequence[tuple[int | str, float]]


@dataclass(frozen=True)
class Panel:
    """One panel: a title, an axis label, and named series; `marked` series are drawn with points.

    A series is of (step, value), or of (x, value) where `across` says what x is; x may be a name.
    """

    title: str
    label: str
    lines: Mapping[str, Points]
    marked: Mapping[str, Points]
    across: str = "step"


def search_agent_panels(log: list[LoggedStep], sources: Mapping[str, str]) -> list[Panel]:
    """Score, searches per question, seconds per step, and tokens of context per turn.

    Greedy validation moves in jumps, so the score at the sampling temperature is drawn beside it at every step.

    Args:
        log: the run's records.
        sources: name in the legend -> data source of the validation.
    """
    score = {f"{name} (greedy)": validated(log, source, "em") for name, source in sources.items()}
    searches = {f"{name} (greedy)": validated(log, source, "searches") for name, source in sources.items()}
    sampled = {"training questions, sampled": series(log, "agentic/em")}
    context = {
        "as the policy saw it": series(log, "agentic/context/seen"),
        "had nothing been edited": series(log, "agentic/context/unedited"),
    }
    parts = {p: series(log, f"timing_s/{p}") for p in ("gen", "old_log_prob", "update_actor", "step")}
    return [
        Panel("Exact match", "EM", sampled, score),
        Panel("Searches per question", "searches", {"training, sampled": series(log, "agentic/searches")}, searches),
        Panel("Seconds per step", "s", {name: points for name, points in parts.items() if points}, {}),
        Panel("Context per turn (sampled)", "tokens", context, {}),
    ]


def draw(panels: list[Panel], path: Path, title: str, columns: int | None = None) -> None:
    """Write the panels as a PNG: side by side, or in rows of `columns`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(columns or len(panels), len(panels))
    rows = ceil(len(panels) / columns)
    size = (5.2 * columns, 4.8 * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for empty in axes.flat[len(panels) :]:
        empty.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        for name, points in panel.lines.items():
            axis.plot(*_xy(points), label=name, linewidth=1.4)
        for name, points in panel.marked.items():
            axis.plot(*_xy(points), label=name, marker="o", linestyle="--", linewidth=1.0)
        axis.set(title=panel.title, xlabel=panel.across, ylabel=panel.label)
        axis.set_ylim(bottom=0.0)
        axis.grid(alpha=0.3)
        if axis.lines:  # below the axes, where no curve can be
            axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _xy(points: Points) -> tuple[list[int | str], list[float]]:
    return [x for x, _ in points], [value for _, value in points]
