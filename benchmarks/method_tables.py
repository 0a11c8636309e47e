"""Tables of a method's results as markdown, from METHOD_cpu.json alone; pages of docs/ and the report show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tables(record: Mapping[str, Any]) -> str:
    """All tables of a method's results, with a sentence on what they are."""
    parts = [about(record), statements(record), compared(record), comparisons(record), all_runs(record)]
    parts += [memory_use(record), memory_capacities(record)]
    return "\n\n".join(part for part in parts if part)


def about(record: Mapping[str, Any]) -> str:
    """When, with what and on what the runs were made."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    text = f"Measured on {record['date']} by `{record['command']}`; {versions}; {record['machine']['cores']} CPU cores."
    if record["missing"]:
        text += f" Still missing: {', '.join(record['missing'])}."
    judges = sorted({run["judge"] for run in record["runs"] if run["judge"]})
    return text + (f" Judge: `{'`, `'.join(judges)}`." if judges else "")


def statements(record: Mapping[str, Any]) -> str:
    """In plain words: what each comparison found on the headline questions, and for which kinds EM separates."""
    arms = record["derived"]["arms"]
    return "\n".join(_statement(pair, arms) for pair in record["derived"]["comparisons"])


def _statement(pair: Mapping[str, Any], arms: Mapping[str, Any]) -> str:
    a, b = (arms[pair[side]]["kinds"]["headline"] for side in ("a", "b"))
    em, (low, high) = pair["em"]["headline"], pair["em"]["headline"]["interval"]
    verdict = "separates" if em["separates"] else "does not separate at this scale"
    kinds = [f"{kind} ({own['difference']:+.3f})" for kind, own in pair["em"].items() if own["separates"]]
    text = (
        f"- `{pair['a']}` against `{pair['b']}`, headline questions after training: EM {a['em']['after']['mean']:.3f} "
        f"against {b['em']['after']['mean']:.3f}, difference {em['difference']:+.3f} (95 % interval {low:+.3f} to "
        f"{high:+.3f}): {verdict}. EM separates for: {', '.join(kinds) or 'no kind of question'}. "
        f"Searches a question: {a['searches']['after']['mean']:.2f} against {b['searches']['after']['mean']:.2f}."
    )
    ratio = pair["context"]["headline"]
    if ratio is None:
        return text
    seen_a, seen_b = (own["context/seen"]["after"]["mean"] for own in (a, b))
    shorter = "in every seed" if ratio["shorter_in_every_seed"] else "not in every seed"
    return (
        f"{text} Tokens of context a turn: {seen_a:.1f} against {seen_b:.1f} (x {ratio['to_b']:.2f}, shorter "
        f"{shorter}); against the same sessions had nothing been edited away: x {ratio['to_unedited']:.2f}."
    )


def compared(record: Mapping[str, Any]) -> str:
    """A line a kind of question and recipe: before and after training, mean of the seeds and each seed."""
    head = "| questions | n | recipe | EM | F1 | searches | context per turn | the same unedited | rows |"
    lines = [head, "|---" * 9 + "|"]
    arms = record["derived"]["arms"]
    for kind in next(iter(arms.values()))["kinds"] if arms else ():
        for recipe, arm in arms.items():
            own = arm["kinds"][kind]
            names = ("em", "f1", "searches", "context/seen", "context/unedited", "rows")
            cells = [_change(own[name], _digits(name)) if name in own else "" for name in names]
            lines.append(f"| {kind} | {own['count']} | `{recipe}` | {' | '.join(cells)} |")
    return "\n".join(lines) if arms else ""


def _digits(name: str) -> int:
    return {"em": 3, "f1": 3}.get(name, 1 if name.startswith("context") else 2)


def _change(pair: Mapping[str, Any], digits: int) -> str:
    seeds = ", ".join(f"{value:.{digits}f}" for value in pair["after"]["seeds"])
    return f"{pair['before']['mean']:.{digits}f} → {pair['after']['mean']:.{digits}f} ({seeds})"


def comparisons(record: Mapping[str, Any]) -> str:
    """A line a comparison and kind: difference of EM with its interval and verdict, ratio of context lengths."""
    found = record["derived"]["comparisons"]
    if not found:
        return ""
    lines = [
        record["derived"]["rule"],
        "",
        "| | against | questions | difference of EM | 95 % interval | EM | context of the same sessions unedited "
        "| context of the other | shorter in every seed |",
        "|---" * 9 + "|",
    ]
    for pair in found:
        for kind, em in pair["em"].items():
            low, high = em["interval"]
            verdict = "separates" if em["separates"] else "does not separate"
            cells = [f"{em['difference']:+.3f}", f"{low:+.3f} to {high:+.3f}", verdict, *_ratios(pair["context"][kind])]
            lines.append(f"| `{pair['a']}` | `{pair['b']}` | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratios(ratio: Mapping[str, Any] | None) -> list[str]:
    if ratio is None:
        return ["", "", ""]
    return [
        f"x {ratio['to_unedited']:.2f}",
        f"x {ratio['to_b']:.2f}",
        "yes" if ratio["shorter_in_every_seed"] else "no",
    ]


def all_runs(record: Mapping[str, Any]) -> str:
    """A line each run: whether all it logged is finite, log-probability differences, selection, seconds."""
    lines = [
        "| run | steps | status | all numbers finite | log-prob difference: edited | unedited | kept share "
        "| infrastructure faults | judgements missing | seconds a step |",
        "|---" * 10 + "|",
    ]
    lines += [_line_of_run(run) for run in record["runs"]]
    return "\n".join(lines) if record["runs"] else ""


def _line_of_run(run: Mapping[str, Any]) -> str:
    differences, training = run["log_prob_differences"], run["training"]
    unedited = differences.get("unedited") if differences else run["largest_log_prob_difference"]
    cells = [
        str(run["steps"]),
        run["status"],
        "yes" if run["finite"] else "no",
        _number(differences.get("edited"), ".1e"),
        _number(unedited, ".1e"),
        _number(training.get("selection/kept_fraction"), ".2f"),
        str(run["infra_faults"]),
        _number(training.get("judge/missing_share"), ".3f"),
        _number(run["median_step_seconds"], ".1f"),
    ]
    return f"| `{run['name']}` | {' | '.join(cells)} |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def actions(record: Mapping[str, Any], recipes: Sequence[str]) -> str:
    """How often a session of the headline questions does each action after training, before in brackets."""
    arms = {recipe: record["derived"]["arms"][recipe] for recipe in recipes if recipe in record["derived"]["arms"]}
    tags = sorted({name for arm in arms.values() for name in arm["kinds"]["headline"] if name.startswith("actions/")})
    if not tags:
        return ""
    lines = [f"| recipe | {' | '.join(tag.removeprefix('actions/') for tag in tags)} |", "|---" * (len(tags) + 1) + "|"]
    for recipe, arm in arms.items():
        own = arm["kinds"]["headline"]
        cells = [_before(own[tag]) if tag in own else "" for tag in tags]
        lines.append(f"| `{recipe}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _before(pair: Mapping[str, Any]) -> str:
    return f"{pair['after']['mean']:.2f} ({pair['before']['mean']:.2f})"


def memory_use(record: Mapping[str, Any]) -> str:
    """Searches and the use of the memory by kind of question after training; empty where no run has a memory."""
    arms = record["derived"]["arms"]
    names = ("searches", "memory/stored", "memory/recalled", "memory/reused")
    lines = []
    for recipe, arm in arms.items():
        for kind, own in arm["kinds"].items():
            if "memory/stored" in own:
                after = [own[name]["after"]["mean"] for name in names]
                rate = f"{after[3] / after[1]:.2f}" if after[1] else ""
                cells = [f"{own['em']['after']['mean']:.3f}", *(f"{value:.2f}" for value in after), rate]
                lines.append(f"| {kind} | `{recipe}` | {' | '.join(cells)} |")
    head = "| questions | recipe | EM | searches | entries stored | recalled | reused | reuse rate |"
    return "\n".join([head, "|---" * 8 + "|", *sorted(lines)]) if lines else ""


def memory_capacities(record: Mapping[str, Any]) -> str:
    """EM, searches and reuse rate of one policy at each capacity of its memory; empty where that was not measured."""
    if "capacities" not in record.get("further", {}):
        return ""
    further = record["further"]
    lines = ["| capacity | questions | n | EM | searches | entries recalled | reuse rate |", "|---" * 7 + "|"]
    for capacity, kinds in further["capacities"].items():
        for kind, own in kinds.items():
            rate = f"{own['memory/reused'] / own['memory/stored']:.2f}" if own["memory/stored"] else ""
            cells = [f"{own['em']:.3f}", f"{own['searches']:.2f}", f"{own['memory/recalled']:.2f}", rate]
            lines.append(f"| {capacity} | {kind} | {own['count']} | {' | '.join(cells)} |")
    return "\n".join([f"One policy ({further['checkpoint']}) at each capacity of its memory:", "", *lines])
