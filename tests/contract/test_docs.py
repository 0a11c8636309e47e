"""Documentation that is made from the code stays what the code says.

`python tests/contract/test_docs.py` writes the generated parts; the tests fail while they differ.
"""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

from omegaconf import OmegaConf

from retriever_server.encoders import RECORDS
from retriever_server.rerankers import RERANKERS
from verl_agentic.data.command import build_parser as data_parser
from verl_agentic.methods import discover
from verl_agentic.warm_start.command import build_parser as warm_start_parser

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import method_tables  # noqa: E402

# Methods whose page in docs/ shows what benchmarks/METHOD.py measured, and the recipes whose actions it lists.
MEASURED = {
    "agentic_rag_r1": ("agentic_rag_r1_cpu", "agentic_rag_r1_no_memory_cpu"),
    "dep_search": ("dep_search_cpu", "dep_search_no_memory_cpu"),
}


def key_tables() -> str:
    """The keys that every method has, then what each method adds or sets otherwise."""
    parts = [key_table(["base.yaml"])]
    for method in discover():
        parts += [f"What `{method}` adds or sets otherwise:", key_table([f"{method}.yaml"])]
    return "\n\n".join(parts)


def key_table(files: list[str]) -> str:
    """One line a key of `agentic`: its default and the comment above it."""
    rows: dict[str, tuple[str, str]] = {}
    for file in files:
        path: list[str] = []
        comment: list[str] = []
        for line in (ROOT / "recipes" / "agentic" / file).read_text().splitlines():
            stripped = line.strip()
            if stripped.startswith("#"):
                comment.append(stripped[1:].strip())
            found = re.match(r"( *)(\w+): *(.*)$", line)
            if found is None:
                comment = comment if stripped.startswith("#") else []
                continue
            depth, key, value = len(found.group(1)) // 2, found.group(2), found.group(3)
            path = [*path[:depth], key]
            if value and key != "defaults":
                name = ".".join(path)
                rows[name] = (value, " ".join(comment) or rows.get(name, ("", ""))[1])
                comment = comment if _shares_comment(key) else []
    lines = [f"| `agentic.{name}` | `{value}` | {meaning} |" for name, (value, meaning) in rows.items()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines])


def _shares_comment(key: str) -> bool:
    """Two keys that one comment describes together."""
    return key in ("turn_tokens", "timeout_s")


def generated(text: str, name: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {name}[^>]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(text), f"no marks <!-- {name} --> in the document"
    return pattern.sub(lambda m: f"{m.group(1)}{content}\n{m.group(2)}", text)


def documents() -> dict[Path, str]:
    """Each document with generated parts, as it should be."""
    recipes = ROOT / "docs" / "recipes.md"
    documents = {recipes: generated(recipes.read_text(), "keys", key_tables())}
    readme, seeds = ROOT / "README.md", ROOT / "benchmarks" / "results" / "demo_seeds.md"
    if readme.is_file() and seeds.is_file():
        documents[readme] = generated(readme.read_text(), "seeds", seeds.read_text().rstrip("\n"))
    cpu, rollout = ROOT / "docs" / "cpu.md", ROOT / "benchmarks" / "results" / "rollout.json"
    if rollout.is_file():
        documents[cpu] = generated(cpu.read_text(), "rollout", rollout_table(json.loads(rollout.read_text())))
    documents[ROOT / "docs" / "encoders.md"] = encoders_page()
    scale, kinds = ROOT / "docs" / "scale.md", ROOT / "benchmarks" / "results" / "index_kinds.json"
    if kinds.is_file():
        documents[scale] = generated(scale.read_text(), "index_kinds", index_kinds_table(json.loads(kinds.read_text())))
    page, measured = ROOT / "docs" / "retriever.md", ROOT / "benchmarks" / "results" / "retriever.md"
    documents[page] = generated(page.read_text(), "retriever", measured.read_text().rstrip("\n"))
    for method, recipes in MEASURED.items():
        documents[ROOT / "docs" / f"{method}.md"] = method_page(method, recipes)
    return documents


def method_page(method: str, recipes: tuple[str, ...]) -> str:
    """A method's page with its measured tables, or the words that nothing is measured yet."""
    text = (ROOT / "docs" / f"{method}.md").read_text()
    results = ROOT / "benchmarks" / "results" / f"{method}_cpu.json"
    if not results.is_file():
        return generated(text, "results", "Not measured yet.")
    record = json.loads(results.read_text())
    parts = [method_tables.tables(record), "How often a session does each action, after training (before):"]
    parts.append(method_tables.actions(record, recipes))
    if results.with_suffix(".png").is_file():
        parts.append(f"![curves of the compared runs](../benchmarks/results/{results.stem}.png)")
    return generated(text, "results", "\n\n".join(parts))


def index_kinds_table(record: dict) -> str:
    """Recall, size and speed of each kind of vector index."""
    vectors, machine = record["vectors"], record["machine"]
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    lines = [
        f"{vectors['all']:,} vectors of {vectors['dimension']} dimensions, {vectors['real']:,} of them real "
        f"({' and '.join(vectors['corpora'])}); {record['queries']} questions; {threads} of a machine with "
        f"{machine['cores']} cores; times in seconds of CPU, beside other work; "
        f"{record['passages_encoded_per_second']:,.0f} passages encoded a second.",
        "",
        "| kind | parameters | MB | built in | q/s, batch 1 | q/s, batch 64 | recall@10 | when tuned |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in record["kinds"]:
        parameters = ", ".join(f"{name} {value:,}" for name, value in row["parameters"].items())
        one, many = (row["queries_per_second"][batch] for batch in ("1", "64"))
        lines.append(
            f"| `{row['kind']}` | {parameters} | {row['bytes'] / 1e6:,.0f} | {row['build_seconds']:,.0f} s "
            f"| {one:,.0f} | {many:,.0f} | {row['recall']:.3f} | {row['recall_when_tuned']:.3f} |"
        )
    return "\n".join(lines)


def encoders_page() -> str:
    """docs/encoders.md with the catalogues of encoders and rerankers, and the measured quality."""
    text = (ROOT / "docs" / "encoders.md").read_text()
    text = generated(text, "encoders", encoder_table())
    text = generated(text, "rerankers", reranker_table())
    runtimes = ROOT / "benchmarks" / "results" / "encoder_runtimes.json"
    text = generated(text, "runtimes", runtimes_table(json.loads(runtimes.read_text())))
    quality = ROOT / "benchmarks" / "results" / "retrieval_quality.json"
    if quality.is_file():
        record = json.loads(quality.read_text())
        text = generated(text, "quality", quality_table(record, record["stack"]))
        text = generated(text, "records", quality_table(record["subset"], record["records"]))
    return text


def runtimes_table(record: dict) -> str:
    """Texts a second of each runtime, and how near its vectors are to torch's."""
    rates, cosines = record["texts_per_cpu_second"], record["lowest_cosine_with_torch"]
    batches = list(rates["torch"])
    lines = [
        f"Texts a second of CPU in one thread, beside other work; {record['encoder']}, {record['texts']} questions:",
        "",
        f"| runtime | {' | '.join(f'batch {size}' for size in batches)} | lowest cosine with torch |",
        "|---" * (len(batches) + 2) + "|",
    ]
    for name, found in rates.items():
        cells = [f"`{name}`", *(f"{found[size]:.0f}" for size in batches), f"{cosines[name]:.4f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def encoder_table() -> str:
    """One line an encoder of the catalogue."""
    lines = ["| name | dimension | pooling | query prefix | passage prefix | max tokens |", "|---|---|---|---|---|---|"]
    for record in RECORDS.values():
        prefixes = [f"`{json.dumps(text)}`" if text else "" for text in (record.query_prefix, record.passage_prefix)]
        pooling, length = ("", "") if record.runtime == "hashing" else (record.pooling, record.max_tokens)
        lines.append(f"| `{record.id}` | {record.dimension} | {pooling} | {prefixes[0]} | {prefixes[1]} | {length} |")
    return "\n".join(lines)


def reranker_table() -> str:
    """One line a reranker of the catalogue."""
    lines = ["| name | kind | model | max tokens |", "|---|---|---|---|"]
    for record in RERANKERS.values():
        lines.append(f"| `{record.id}` | `{record.kind}` | `{record.model}` | {record.max_tokens} |")
    return "\n".join(lines)


def quality_table(data: dict, rows: list[dict]) -> str:
    """Recall of each way to retrieve; of records also how far their vectors are and what a server says to them."""
    columns = ["recall@5", "recall@10", "all@5", "all@10"]
    of_records = "lowest_cosine" in rows[0]
    head = [f"{data['questions']} questions, {data['passages']:,} passages", *columns]
    head += ["mean cosine", "lowest", "served"] if of_records else []
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row["name"], *(f"{row[name]:.3f}" for name in columns)]
        if of_records:
            cells += [f"{row['mean_cosine']:.4f}", f"{row['lowest_cosine']:.4f}"]
            cells.append("yes" if row["served_with_it"] == "served" else "refused")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rollout_table(record: dict) -> str:
    """Tokens a second of each way of answering, and the ratio."""
    lines = ["| requests | engine | plain batched `generate` | ratio |", "|---|---|---|---|"]
    for row in record["tokens_per_second"]:
        engine, plain = row["engine"], row["generate"]
        lines.append(f"| {row['requests']} | {engine:,.0f} tokens/s | {plain:,.0f} tokens/s | {engine / plain:.2f} |")
    return "\n".join(lines)


def test_generated_parts_are_up_to_date():
    for path, text in documents().items():
        assert path.read_text() == text, f"{path} is out of date: run python {Path(__file__).relative_to(ROOT)}"


def test_every_key_is_documented():
    table = key_tables()
    for name in ("base", *discover()):
        loaded = OmegaConf.load(ROOT / "recipes" / "agentic" / f"{name}.yaml")
        loaded.pop("defaults", None)
        for path in leaves(OmegaConf.to_container(loaded, resolve=False)):
            assert f"`agentic.{path}`" in table


def leaves(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}"


def test_links_and_paths_in_the_documents_exist():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def commands() -> list[tuple[str, str]]:
    """Every line of the documents' code blocks, with the document."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")]
    fence = re.compile(r"```\n(.*?)```", re.DOTALL)
    blocks = [(path.name, block) for path in documents for block in fence.findall(path.read_text())]
    return [(name, line.strip()) for name, block in blocks for line in block.splitlines()]


def test_commands_in_the_documents_name_things_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    seen = 0
    for document, line in commands():
        for module in re.findall(r"python -m ([\w.]+)", line):
            seen += 1
            assert module in ("venv", "pytest") or importlib.util.find_spec(module), f"{document}: {line}"
        for script in re.findall(r"python ((?:examples|benchmarks|tests)/\S+\.py)", line):
            seen += 1
            assert (ROOT / script).is_file(), f"{document}: {line}"
        for target in re.findall(r"^make ([\w-]+)", line):
            seen += 1
            benchmark = re.fullmatch(r"bench-(\w+)", target)
            known = re.search(rf"^{target}:", makefile, re.MULTILINE)
            assert known or (benchmark and (ROOT / "benchmarks" / f"{benchmark.group(1)}.py").is_file()), (
                f"{document}: {line}"
            )
        for recipe in re.findall(r"\+recipe(?:@_global_)?=(\w+)", line):
            seen += 1
            assert list(ROOT.glob(f"**/recipe/{recipe}.yaml")) or recipe == "NAME", f"{document}: {line}"
        if found := re.match(r"verl-agentic (data|traces|sft) (.*)", line):
            seen += 1
            parser = data_parser() if found.group(1) == "data" else warm_start_parser()
            words = shlex.split(found.group(2))
            parser.parse_args(words if found.group(1) == "data" else [found.group(1), *words])
    assert seen > 15


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
