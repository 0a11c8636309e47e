"""A search loop as published agents write it, against this server: nothing here is ours but the server.

    python examples/04_stock_client.py http://127.0.0.1:8000 "who built the harbour clock" "river Belm"

Such clients know one request and one answer: queries in, for each a list of documents with `contents`, whose first
line is the title in quotation marks.
"""

import json
import sys
import urllib.request


def search(url: str, queries: list[str], topk: int = 3) -> list[str]:
    """One text of numbered passages for each query, as it is put between <information> tags."""
    body = json.dumps({"queries": queries, "topk": topk, "return_scores": True}).encode()
    request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        result = json.load(response)["result"]
    return [as_text(result[i]) for i in range(len(queries))]


def as_text(found: list) -> str:
    lines = []
    for j in range(len(found)):
        title, _, text = found[j]["document"]["contents"].partition("\n")
        title = title.strip('"')
        lines.append(f"Doc {j + 1} (Title: {title}) {text}")
    return "\n".join(lines)


if __name__ == "__main__":
    url, *queries = sys.argv[1:]
    for query, text in zip(queries, search(url, queries), strict=True):
        print(f"<search> {query} </search>\n<information>\n{text}\n</information>")
