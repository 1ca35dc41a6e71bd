"""Point 11: a soak of 20 minutes under mixed traffic, budgets far too small, kill -9 and restart
every two minutes: no wrong answer, no growth of memory or of files beyond the budget."""

from typing import Any

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench

MB = 1_000_000
# What a process may gain within a life or over lives; buffers that mlx keeps for an engine come and
# go, and blocks of many sizes leave gaps between them.
SLACK_BYTES = {"server": 8 * MB, "kv": 96 * MB, "state": 96 * MB, "window": 96 * MB}


def test_soak(figure: Figure) -> None:
    result = run_bench("soak.py", "--minutes", "20", "--kill-every", "120", kept_as="soak.json")
    answers, directory, memory = result["answers"], result["directory"], result["memory"]
    figure(
        f"{answers['compared']} answers and {answers['parts_compared']} parts of such compared "
        f"with a plain run, {len(result['wrong'])} wrong, {len(result['errors'])} errors, "
        f"{answers['broken_by_a_kill']} broken by a kill and sent again; a wrong block would "
        f"change {result['control']['differ']} of {result['control']['changed']}"
    )
    figure(
        f"{sum(result['kills'].values())} kills ({result['kills']}), {result['lives']} lives; "
        f"commands and hands: {result['commands']}"
    )
    figure(
        f"directory: budget {directory['budget_bytes'] / MB:g} MB, at most "
        f"{directory['max_bytes'] / MB:.2f} MB and {directory['max_files']} files in "
        f"{directory['samples']} samples, {directory['processes']} processes with blocks of "
        f"{directory['largest_file'] / MB:.2f} MB; {directory['temps_left']} temporary files left"
    )
    for name, found in memory["steady"].items():
        figure(
            f"memory of {name} in a life of {found['samples']} s: "
            f"{found['rss_first'] / MB:.0f} MB in the first third, {found['rss_last'] / MB:.0f} MB "
            f"in the last; descriptors {found['fds_first']:g} and {found['fds_last']:g}"
        )
    for name, found in memory["by_process"].items():
        figure(
            f"memory of {name} in {found['lives']} lives: {found['rss_median'] / MB:.0f} MB, "
            f"within a life {found['within_median'] / MB:+.1f} MB (at most "
            f"{found['within_max'] / MB:+.1f}), from the first to the last "
            f"{found['over_lives'] / MB:+.1f} MB"
        )
    check(result)


def check(result: dict[str, Any]) -> None:
    """What has to hold."""
    assert result["problems"] == []
    assert result["wrong"] == [] and result["errors"] == []
    answers, cache, directory = result["answers"], result["cache"], result["directory"]
    assert answers["compared"] >= 500 and answers["left"] > 0 and sum(result["kills"].values()) > 7
    assert cache["cached_memory_tokens"] > 1000 and cache["cached_disk_tokens"] > 1000
    assert cache["evicted_disk"] > 1000
    assert result["control"]["differ"] >= result["control"]["changed"] / 2 > 5
    assert directory["samples"] > 600 and directory["num_over"] == 0, directory
    assert directory["bytes_left"] <= directory["budget_bytes"]
    assert directory["temps_left"] == directory["temps_in_state"] == directory["verify_after"] == 0
    steady = result["memory"]["steady"]
    assert set(steady) == {"server", "kv", "state", "window"}
    for name, found in steady.items():
        assert found["rss_last"] - found["rss_first"] <= SLACK_BYTES[name], found
        assert found["fds_last"] - found["fds_first"] <= 8, found
    for name, found in result["memory"]["by_process"].items():
        assert max(found["within_median"], found["over_lives"]) <= SLACK_BYTES[name], found
