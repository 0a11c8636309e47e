"""The lines that a long build prints."""

from retriever_server.building.progress import Progress


def test_progress_tells_rate_and_time_to_go(monkeypatch):
    clock = iter([0.0, 1.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr("retriever_server.building.progress.time.monotonic", lambda: next(clock))
    told: list[str] = []
    progress = Progress("encoded", 1000, "passages", told.append)
    for done, made in ((100, 100), (400, 300), (500, 400), (1000, 900)):
        progress(done, made)
    assert told == [
        "encoded 400 of 1,000 passages, 50 passages/s, 12 s to go",
        "encoded 1,000 of 1,000 passages, 75 passages/s",
    ]
