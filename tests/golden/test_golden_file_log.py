"""The file-backed log against what independent replays say of real tables, at every version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltalakedb.delta_log import open_file_log
from deltalakedb.exceptions import DeltaSqlError
from support.golden import golden_params
from support.golden_truth import check_version

if TYPE_CHECKING:
    from support.golden import GoldenTable


@pytest.mark.parametrize("table", golden_params())
def test_the_file_log_agrees_with_the_truth(table: GoldenTable) -> None:
    truth = table.truth
    if truth["expect"] == "must_fail":
        with pytest.raises(DeltaSqlError) as caught:
            list(open_file_log(table.path).files())
        assert caught.value.suggestion
        return
    log = open_file_log(table.path)
    assert list(log.versions()) == truth["versions_reachable"]
    assert log.latest_version() == truth["latest"]
    # up and down again, so that both the advancing and the rebuilding of states are seen
    for version in [*truth["versions_reachable"], *reversed(truth["versions_reachable"])]:
        wanted = truth["versions"][str(version)]
        if wanted["metadata"]["schemaString"] is None:
            with pytest.raises(DeltaSqlError):
                log.snapshot(version)
        else:
            check_version(log, version, wanted)
    for version in [*(set(range(truth["latest"])) - set(truth["versions_reachable"])), truth["latest"] + 1]:
        with pytest.raises(DeltaSqlError):
            log.snapshot(version)
    operations = {commit.version: commit.operation for commit in log.history()}
    assert list(operations) == sorted(operations, reverse=True)
    for number, wanted in truth["versions"].items():
        if (info := wanted.get("commit_info")) is not None and int(number) in operations:
            assert operations[int(number)] == info["operation"]
