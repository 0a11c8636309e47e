"""From a name to a reranker's record, and from a record to the reranker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retriever_server.errors import RerankerError
from retriever_server.records import FILE_ENDINGS, read_object
from retriever_server.rerankers.catalogue import RERANKERS
from retriever_server.rerankers.record import Reranker, RerankerRecord


def find_reranker(name: str) -> RerankerRecord:
    """Return the record of a declared name, a .yaml or .json file, or a folder or hub id whose last part is declared.

    Raises RerankerError when nothing declares it.
    """
    if name in RERANKERS:
        return RERANKERS[name]
    path = Path(name)
    if path.suffix in FILE_ENDINGS:
        return RerankerRecord.from_dict(read_object(path, "reranker record", RerankerError))
    if path.name in RERANKERS and RERANKERS[path.name].kind != "late_interaction":
        return replace(RERANKERS[path.name], model=name)
    raise RerankerError(
        f"Reranker '{name}' is not declared ({', '.join(RERANKERS)}); write its record (id, kind, model, max_tokens) "
        "into a .yaml or .json file and pass that."
    )


def open_reranker(record: RerankerRecord, device: str = "cpu", threads: int = 0) -> Reranker:
    """Load the reranker of `record`; `device` and `threads` as for open_encoder.

    Raises RerankerError, or EncoderError for the encoder of a late interaction, when a package or weights are absent.
    """
    if device not in ("cpu", "cuda", "auto"):
        raise RerankerError(f"Reranker '{record.id}': device '{device}' is not one of cpu, cuda, auto.")
    if record.kind == "cross_encoder":
        from retriever_server.rerankers.cross_encoder import CrossEncoder

        return CrossEncoder(record, device, threads)
    if record.kind == "yes_no":
        from retriever_server.rerankers.yes_no import YesNoReranker

        return YesNoReranker(record, device, threads)
    from retriever_server.rerankers.late_interaction import LateInteraction

    return LateInteraction(record, device, threads)
