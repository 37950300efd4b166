"""The error tree: old except clauses work, errors travel between processes, and show no secret."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import pickle
import re
from pathlib import Path

import deltalake.exceptions as stock
import pytest

from deltalakedb import exceptions
from deltalakedb.cli.output import describe
from deltalakedb.exceptions import DeltaSqlError

SOURCE = Path(exceptions.__file__).parent
ALL = [c for c in vars(exceptions).values() if inspect.isclass(c) and issubclass(c, DeltaSqlError)]


def test_every_error_survives_a_pickle_and_a_copy() -> None:
    for kind in ALL:
        error = kind("it broke", table="t", version=3, suggestion="mend it", command="mend", reason="rust")
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(other) is kind
            assert str(other) == str(error)
            assert other.to_dict() == error.to_dict()
            assert (other.command, other.context) == ("mend", {"reason": "rust"})


def test_every_error_says_what_where_and_what_to_do() -> None:
    for kind in ALL:
        assert str(kind("it broke")) == "it broke"
        assert str(kind("it broke", table="t")) == "it broke [table t]"
        assert str(kind("it broke", table="t", version=3, suggestion="mend it")) == (
            "it broke [table t, version 3]\n  → mend it"
        )


def test_every_error_is_plain_data_too() -> None:
    for kind in ALL:
        told = json.loads(json.dumps(kind("it broke", table="t", version=0).to_dict()))
        assert told["error"] == kind.__name__
        assert (told["message"], told["table"], told["version"]) == ("it broke", "t", 0)
        assert told["transient"] is kind.transient


def test_the_context_is_shown_nowhere() -> None:
    for kind in ALL:
        error = kind("it broke", dsn="hunter2")
        assert "hunter2" not in f"{error} {error!r} {error.args} {error.to_dict()}"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("AddressError", ValueError),
        ("CommitError", stock.CommitFailedError),
        ("ConfigError", ValueError),
        ("ConflictError", stock.CommitFailedError),
        ("InvalidArgumentError", ValueError),
        ("LogMissingError", stock.TableNotFoundError),
        ("MissingExtraError", ImportError),
        ("PredicateError", ValueError),
        ("ProtocolError", stock.DeltaProtocolError),
        ("SchemaError", stock.SchemaMismatchError),
        ("StorageError", OSError),
        ("StorageMissingError", FileNotFoundError),
        ("TableExistsError", FileExistsError),
        ("TableMissingError", stock.TableNotFoundError),
        ("UnsupportedFeatureError", stock.DeltaProtocolError),
        ("UnsupportedOperationError", NotImplementedError),
        ("VersionMissingError", ValueError),
    ],
)
def test_old_except_clauses_catch_the_new_errors(ours: str, theirs: type[Exception]) -> None:
    kind = getattr(exceptions, ours)
    with pytest.raises(theirs):
        raise kind("it broke")
    with pytest.raises(stock.DeltaError):
        raise kind("it broke")


def test_stock_names_are_the_stock_classes() -> None:
    for name in stock.__all__:
        assert getattr(exceptions, name) is getattr(stock, name)


def test_all_lists_every_error_once_and_in_order() -> None:
    assert exceptions.__all__ == sorted(set(exceptions.__all__))
    assert {c.__name__ for c in ALL} <= set(exceptions.__all__)


def test_a_cause_is_kept() -> None:
    cause = OSError("disk")
    with pytest.raises(DeltaSqlError) as caught:
        raise exceptions.StorageError("no") from cause
    assert caught.value.__cause__ is cause


def test_what_may_be_tried_again_is_marked() -> None:
    assert {c.__name__ for c in ALL if c.transient} == {
        "CatalogBusyError",
        "CatalogFullError",
        "CatalogUnavailableError",
        "CommitUnknownError",
        "ConflictError",
        "StorageUnavailableError",
    }


def test_the_command_line_shows_the_command_instead_of_the_call() -> None:
    error = DeltaSqlError("it broke", suggestion="call mend(force=True)", command="run `deltasql mend`")
    assert str(error).endswith("call mend(force=True)")
    assert describe(error)["suggestion"] == "run `deltasql mend`"
    assert describe(DeltaSqlError("it broke", suggestion="wait"))["suggestion"] == "wait"


def test_every_suggestion_with_a_python_argument_has_a_command_too() -> None:
    """The command line does not reach Spark and asyncio, whose errors suggest calls alone."""
    kinds = {kind.__name__ for kind in ALL}
    argument = re.compile(r"\b[a-z_]+=(True|False|None|')")
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] in ("spark", "aio"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds:
                texts = {k.arg: ast.unparse(k.value) for k in node.keywords}
                if argument.search(texts.get("suggestion", "")) and "command" not in texts:
                    found.append((path.name, texts["suggestion"]))
    assert found == []
