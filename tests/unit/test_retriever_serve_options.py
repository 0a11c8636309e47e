"""Options of `serve`: how many batches run at once and with how many threads, and values out of range."""

import argparse

import pytest

from retriever_server.commands import serve_options


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve_options.add_arguments(parser)
    return parser.parse_args(["--index", "x", *options])


@pytest.mark.parametrize(
    ("cores", "environment", "options", "executors", "threads"),
    [
        (1, "", (), 1, 1),
        (2, "", (), 2, 1),
        (16, "", (), 2, 8),
        (16, "", ("--executors", "4"), 4, 4),
        (16, "", ("--executors", "1"), 1, 16),
        (2, "", ("--executors", "8"), 8, 1),
        (16, "", ("--threads", "16"), 1, 16),
        (16, "", ("--threads", "4"), 2, 4),
        (16, "", ("--search-threads", "4", "--executors", "7"), 7, 4),
        (16, "3", (), 2, 3),
        (16, "3", ("--threads", "5"), 2, 5),
        (2, "8", (), 1, 8),
        (16, "0", (), 2, 8),
        (16, "4,2", (), 2, 8),
        (16, "many", (), 2, 8),
    ],
)
def test_executors_and_threads_share_the_cores(monkeypatch, cores, environment, options, executors, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    settings = serve_options.server_settings(parsed(*options))
    assert (settings.executors, settings.threads) == (executors, threads)
    assert serve_options.open_options(parsed(*options)).threads == threads


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--executors", ("0", "-1", "1.5", "x")),
        ("--threads", ("0", "-1", "x")),
        ("--deadline", ("0", "-1", "nan", "inf", "1e12", "x")),
        ("--drain-timeout", ("-1", "nan", "inf", "1e12")),
        ("--cache-mb", ("-1", "nan", "1e308")),
        ("--window-ms", ("-1", "nan", "inf")),
    ],
)
def test_values_out_of_range_are_refused(capsys, option, values):
    for value in values:
        with pytest.raises(SystemExit) as ended:
            parsed(f"{option}={value}")
        assert ended.value.code == 2
        assert f"argument {option}" in capsys.readouterr().err
