"""Point 4: restore bandwidth from disk >= 0.7 x raw preads; 100,000 blocks indexed within a second
on top of the scan."""

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench


def test_store(figure: Figure) -> None:
    result = run_bench("store.py", kept_as="store.json")
    for kind in result["restore"]:
        ratio, fresh = kind["restore_vs_raw"], kind["fresh_restore_vs_raw"]
        figure(
            f"{kind['block']} blocks: restore {kind['restore_gb_per_s']} GB/s, raw preads "
            f"{kind['raw_gb_per_s']}, ratio {ratio['ratio']} [{ratio['low95']}, "
            f"{ratio['high95']}], control {kind['control_raw_raw']['ratio']}; into fresh memory "
            f"{kind['fresh_restore_gb_per_s']}, raw {kind['fresh_raw_gb_per_s']}, ratio "
            f"{fresh['ratio']} [{fresh['low95']}, {fresh['high95']}]; store "
            f"{kind['store_gb_per_s']} GB/s; share of the page cache left "
            f"{kind['page_cache_left']}"
        )
    index = result["index"]
    figure(
        f"{index['blocks']:,} blocks indexed in {index['index_s']} s, bare scan "
        f"{index['bare_scan_s']} s"
    )
    for kind in result["restore"]:
        for ratio in (kind["restore_vs_raw"], kind["fresh_restore_vs_raw"]):
            assert ratio["pairs"] >= 5
            assert ratio["high95"] >= 0.7, kind
    assert index["blocks"] == 100_000
    assert index["extra_s"] <= 1.0, index
