"""Your own corpus and questions in the retriever: build an index, serve it, ask it, write a data set for verl.

    python examples/02_own_corpus.py [FOLDER]

The server is a process of its own, as in training; here it is started and stopped for you. The data set is written by
pyarrow, which verl brings (`pip install 'verl-agentic[train,retriever]'`).
"""

import json
import subprocess
import sys
from pathlib import Path

from retriever_server.process import start_server
from verl_agentic.clients.retriever import RetrieverClient
from verl_agentic.data.rows import make_row, write_rows

PASSAGES = {
    "Harbour clock": "The harbour clock of Vellin was built by the watchmaker Ada Torn in 1871.",
    "Ada Torn": "Ada Torn learned her trade in the mountain town of Osk and never left the coast again.",
    "Osk": "Osk lies at the foot of the Grey Saddle and is known for its bell foundry.",
}
QUESTIONS = [
    ("Who built the harbour clock of Vellin?", ["Ada Torn"]),
    ("Where did the builder of Vellin's harbour clock learn her trade?", ["Osk", "the town of Osk"]),
]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    corpus, index = folder / "corpus.jsonl", folder / "index"
    lines = [json.dumps({"id": str(i), "title": t, "text": x}) for i, (t, x) in enumerate(PASSAGES.items())]
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    build = [sys.executable, "-m", "retriever_server", "build", "--corpus", str(corpus), "--encoder", "bm25"]
    subprocess.run([*build, "--out", str(index), "--force"], check=True)

    with start_server(index) as server:
        client = RetrieverClient([server.url], topk=2)
        queries = [question for question, _ in QUESTIONS]
        for query, passages in zip(queries, client.retrieve_sync(queries), strict=True):
            print(query)
            for passage in passages:
                print(f"  {passage.score:6.2f}  {passage.title}: {passage.text}")

    rows = [
        make_row(question, golds, index=i, split="train", data_source="my_corpus", agent_name="search_r1")
        for i, (question, golds) in enumerate(QUESTIONS)
    ]
    print(f"{write_rows(folder / 'train.parquet', rows)} rows in {folder / 'train.parquet'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own_corpus"))
