"""``deltasql mirror``: publish commits to _delta_log, compare and repair it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import stop_on_signal
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import (
    CHANGING,
    LEASING,
    PREVIEWING,
    argument,
    command,
    common,
    flag,
    option,
)
from deltalakedb.cli.output import Rows
from deltalakedb.mirror.reconciler import checked_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.options import Option
    from deltalakedb.cli.output import Item
    from deltalakedb.coordinator.rebase import Resolved
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.mirror.drift import Difference
    from deltalakedb.mirror.reconciler import Pass
    from deltalakedb.transfer.reports import VerifyReport


@click.group("mirror")
@common
def mirror() -> None:
    """Publish commits to _delta_log, compare it with the catalog, and repair it.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror run --watch
      deltasql mirror verify sales.orders
    """


def subcommand(name: str, *groups: Sequence[Option], short: str | None = None) -> Callable[[Any], Any]:
    """A command of the group; ``short`` is its help in the group's list."""

    def add(function: Any) -> click.Command:
        made = command(name, *groups, short_help=short)(function)
        mirror.add_command(made)
        return made

    return add


@subcommand("status")
@argument("table", required=False)
@flag("--look", "Look into the logs too, for commits that are not in the catalog.")
def status(cli: Invocation, table: str | None, look: bool) -> int:
    """Show how far each log is behind its table, and why.

    Exit code 5 if a table is frozen, 3 if --look finds foreign commits, 75 if commits have waited
    for more than 60 seconds, or a checkpoint or the manifest of a transaction cannot be written.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror status --look
      deltasql mirror status sales.orders --json
    """
    with cli.open_optional(table) as (catalog, name):
        found = catalog.mirror.status(name, look=look)
    shown = [
        (
            s.table,
            s.version,
            s.published_version if s.published_version >= 0 else None,
            render.count(s.versions_behind),
            render.count(s.ahead),
            f"{s.seconds_behind:.0f}",
            s.checkpoint_version if s.checkpoint_version >= 0 else None,
            "paused" if s.paused and s.state == "active" else s.state,
            "; ".join(_reasons(s)) or None,
        )
        for s in found
    ]
    headers = "NAME|VERSION>|PUBLISHED>|BEHIND>|AHEAD>|SECONDS>|CHECKPOINT>|STATE|WHY"
    rows = [s.to_dict() | {"published_at": render.iso(s.published_at)} for s in found]
    cli.show(
        {"catalog": catalog.uri, "tables": rows},
        [Rows(headers, shown)] if found else _NO_TABLES,
        [f"{s.table} {s.versions_behind}" for s in found if s.versions_behind],
    )
    if any(s.state == "frozen" for s in found):
        return ExitCode.FROZEN
    if any(s.ahead for s in found):
        return ExitCode.DRIFT
    late = any(s.alarm or s.checkpoint_error is not None or s.manifests_missing for s in found)
    return ExitCode.TRY_AGAIN if late else ExitCode.OK


_NO_TABLES = "The catalog holds no tables."


def _reasons(status: MirrorStatus) -> Iterator[str]:
    if status.ahead:
        commits = render.many(status.ahead, "commit")
        way = "resolve" if status.versions_behind else "recover"
        yield f"the log has {commits} of other writers: `deltasql mirror {way}`"
    if status.state_reason:
        yield status.state_reason
    elif status.error is not None:
        again = f", next try in {status.retry_in:.0f} s" if status.backing_off else ""
        yield f"{status.error} ({render.many(status.attempts, 'attempt')}{again})"
    if status.checkpoint_error is not None:
        tries = render.many(status.checkpoint_attempts, "attempt")
        again = f", next try in {status.checkpoint_retry_in:.0f} s" if status.checkpoint_backing_off else ""
        yield f"no checkpoint: {status.checkpoint_error} ({tries}{again})"
    if status.checkpoint_holder is not None:
        ends = f"its lease ends in {status.checkpoint_lease:.0f} s"
        yield f"a checkpoint or clean-up is under way by {status.checkpoint_holder}, {ends}"
    if status.manifests_missing:
        lacks = f"no manifest of {render.many(status.manifests_missing, 'transaction')}"
        again = f" (next try in {status.manifest_retry_in:.0f} s)" if status.manifest_retry_in else ""
        yield f"{lacks}: {status.manifest_error}{again}"
    if status.alarm:
        yield "ALARM: behind for more than a minute"


@subcommand("verify", short="Compare log and catalog at every version.")
@argument("tables", metavar="[TABLE]...", nargs=-1)
@flag("--no-replay", "Compare commit files only: faster, blind to wrong checkpoints.")
def verify(cli: Invocation, tables: tuple[str, ...], no_replay: bool) -> int:
    """Compare log and catalog at every version: bytes, replay, checkpoints. Nothing is changed.

    This is `deltasql verify --level full`, and every checkpoint by itself. Without a table all are
    compared. Exit code 3 for drift, 5 if another writer's commit has the version of ours.

    \b
    Examples:
      deltasql mirror verify
      deltasql mirror verify sales.orders --json
    """
    with cli.each_table(tables) as (catalog, names):
        reports = [catalog.mirror.verify(name, replay=not no_replay) for name in names]
    findings = [f for report in reports for f in report.differences]
    cli.show(
        {"ok": not findings, "tables": [r.to_dict() for r in reports]},
        _view_reports(reports) if reports else _NO_TABLES,
        [f"{r.table} {f.version} {f.kind}: {f.detail}" for r in reports for f in r.differences],
    )
    return _code_of(findings)


def _view_reports(reports: Sequence[VerifyReport]) -> Iterator[Item]:
    for report in reports:
        versions = render.many(report.versions_checked, "version")
        if report.ok:
            yield f"{report.table}: {versions}, the log is what the catalog says."
        else:
            found = render.many(report.num_differences, "difference")
            yield f"{report.table}: {versions}, {found}", "bold red"
            yield _findings(report.differences)


def _findings(findings: Sequence[Difference]) -> Rows:
    rows = [(f.version, f.kind, f"{f.path}: {f.detail}" if f.path else f.detail) for f in findings]
    return Rows("VERSION>|KIND|DETAIL", rows)


def _code_of(findings: Sequence[Difference]) -> ExitCode:
    if any(f.kind == "foreign" for f in findings):
        return ExitCode.FROZEN
    return ExitCode.DRIFT if findings else ExitCode.OK


@subcommand("run", short="Publish what waits, once or as a service.")
@argument("table", required=False)
@flag("--watch", "Keep running until Ctrl-C or SIGTERM.")
@option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="With --watch, the pause between two rounds.",
)
def run(cli: Invocation, table: str | None, watch: bool, interval: float) -> int:
    """Publish what waits, and write due checkpoints: once, or as a service. Any number may run.

    A table whose last attempt failed is left alone until its next try is due; naming it forces one. What was
    left is named: frozen tables (exit code 5), failed and waiting ones and those whose checkpoint or the
    manifest of whose transaction cannot be written (75), paused ones (0).

    \b
    Examples:
      deltasql mirror run
      deltasql mirror run sales.orders
      deltasql mirror run --watch --interval 5
    """
    if watch and table is not None:
        raise click.UsageError("--watch looks after all tables: leave the name out")
    with cli.open_optional(table) as (catalog, name):
        if watch:
            checked_interval(interval)
            cli.note(f"Publishing the tables of {catalog.uri}; Ctrl-C ends it.")
            with stop_on_signal() as stop:
                done = catalog.mirror.run(stop=stop, interval=interval)
        else:
            done = catalog.mirror.run() if name is None else catalog.mirror.publish(name)
    return _report_pass(cli, done)


_WHY = "`deltasql mirror status {0}` says why"
#: what may be left undone: exit code, style, line for people
_LEFT = {
    "failed": (ExitCode.TRY_AGAIN, "yellow", f"! {{0}} waits: {_WHY}"),
    "diverged": (ExitCode.FROZEN, "red", "✗ {0} is frozen: another writer's commit has the version of ours"),
    "frozen": (ExitCode.FROZEN, "red", f"✗ {{0}} is frozen: {_WHY}"),
    "backing_off": (
        *(ExitCode.TRY_AGAIN, "yellow"),
        "! {0} failed and waits for its next try: `deltasql mirror run {0}`",
    ),
    "no_checkpoint": (
        *(ExitCode.TRY_AGAIN, "yellow"),
        f"! the checkpoint of {{0}} cannot be written: {_WHY}",
    ),
    "no_manifest": (
        *(ExitCode.TRY_AGAIN, "yellow"),
        f"! the manifest of a transaction cannot be written beside {{0}}: {_WHY}",
    ),
    "paused": (
        *(ExitCode.OK, ""),
        "- {0} is paused: `deltasql mirror resume {0}`, `deltasql mirror resume` if the whole catalog is",
    ),
    "late": (ExitCode.TRY_AGAIN, "red", "! {0} is behind for more than a minute"),
}


def _report_pass(cli: Invocation, done: Pass, **more: Any) -> int:
    left: dict[str, list[str]] = {kind: list(getattr(done, kind)) for kind in _LEFT}
    left |= {kind: sorted(set(left[kind])) for kind in ("failed", "diverged")}
    document = {"published": done.published, "checkpoints": done.checkpoints, **left}
    document["paused_tables"] = document.pop("paused")
    left["frozen"] = sorted(set(left["frozen"]) - set(left["diverged"]))
    made = f", {render.many(done.checkpoints, 'checkpoint')} written" if done.checkpoints else ""
    lines = [(f"  {text.format(n)}", style) for kind, (_, style, text) in _LEFT.items() for n in left[kind]]
    brief = [name for kind in ("failed", "diverged", "frozen", "backing_off") for name in left[kind]]
    cli.show(more | document, [f"{render.many(done.published, 'version')} published{made}.", *lines], brief)
    codes = {code for kind, (code, *_) in _LEFT.items() if left[kind]}
    return next((c for c in (ExitCode.FROZEN, ExitCode.TRY_AGAIN) if c in codes), ExitCode.OK)


@subcommand("pause", short="Pause publishing.")
@argument("table", required=False)
def pause(cli: Invocation, table: str | None) -> None:
    """Pause publishing, for a table or the whole catalog. Commits continue.

    Readers of _delta_log keep an older, consistent state.

    \b
    Examples:
      deltasql mirror pause sales.orders
      deltasql mirror pause
    """
    with cli.open_optional(table) as (catalog, name):
        catalog.mirror.pause(name)
    again = "deltasql mirror resume" + (f" {name}" if name else "")
    line = f"Publishing of {name or 'every table'} is paused until `{again}`."
    cli.show({"table": name, "paused": True}, line)


@subcommand("resume")
@argument("table", required=False)
def resume(cli: Invocation, table: str | None) -> int:
    """Resume publishing, and publish what waits.

    Without a table the pause of the whole catalog ends. Tables that were paused by name stay so, and are
    named: resume each by its name.

    \b
    Examples:
      deltasql mirror resume sales.orders
      deltasql mirror resume
    """
    with cli.open_optional(table) as (catalog, name):
        done = catalog.mirror.resume(name)
    return _report_pass(cli, done, table=name, paused=False)


@subcommand("repair", PREVIEWING, LEASING, short="Rewrite lost or damaged log files.")
@argument("table")
@flag(
    "--create-folder",
    "Write the log even if the table's folder is missing or empty; without it that is an error.",
)
def repair(cli: Invocation, table: str, dry_run: bool, create_folder: bool) -> int:
    """Rewrite commit files that are missing or damaged, and broken checkpoints, from the catalog.

    Commits of other writers are left alone: exit code 5 if one has the version of ours, 3 if other drift
    is left.

    \b
    Examples:
      deltasql mirror repair sales.orders --dry-run
      deltasql mirror repair sales.orders
    """
    with cli.open_table(table) as (catalog, name):
        done = catalog.mirror.repair(name, dry_run=dry_run, create_folder=create_folder)
    would = "would be " if dry_run else ""

    def view() -> Iterator[Item]:
        which = f": {', '.join(map(str, done.rewritten))}" if done.rewritten else ""
        yield f"{render.many(len(done.rewritten), 'commit file')} {would}rewritten{which}."
        if done.checkpoints:
            versions = ", ".join(map(str, done.checkpoints))
            yield f"{render.many(len(done.checkpoints), 'checkpoint')} {would}rewritten: {versions}."
        if done.begins_at is not None:
            verb = "would begin" if dry_run else "begin"
            yield f"Readers {verb} at a checkpoint of version {done.begins_at}: older commits are lost."
        if done.unfrozen:
            yield "The table is not frozen any more; `deltasql mirror run` publishes what waits."
        if done.left:
            yield "Left alone:"
            yield _findings(done.left)

    document = {
        "table": name,
        "dry_run": dry_run,
        "rewritten": list(done.rewritten),
        "checkpoints": list(done.checkpoints),
        "begins_at": done.begins_at,
        "unfrozen": done.unfrozen,
        "left": [{"kind": f.kind, "version": f.version, "detail": f.detail} for f in done.left],
    }
    cli.show(document, view(), [str(v) for v in done.rewritten])
    return _code_of(done.left)


@subcommand("rebuild", LEASING, short="Make the whole log in an empty place.")
@argument("table")
@argument("location")
def rebuild(cli: Invocation, table: str, location: str) -> None:
    """Write the whole log of a table from the catalog to a location that has none.

    Data files are not copied: put the new _delta_log beside them. If the bytes of old commits were pruned,
    the log begins with a checkpoint of the first version that still has them.

    \b
    Examples:
      deltasql mirror rebuild sales.orders /srv/lake/rebuilt
    """
    with cli.open_table(table) as (catalog, name):
        first, last = catalog.mirror.rebuild(name, location)
    which = f"Versions {first} to {last} of {name} are" if first < last else f"Version {last} of {name} is"
    begins = f", beginning with a checkpoint of version {first}" if first else ""
    cli.show(
        {"table": name, "location": location, "first_version": first, "version": last},
        f"{which} in {location}/_delta_log{begins}.",
    )


@subcommand("recover", short="Adopt commits of a log that is ahead.")
@argument("table")
def recover(cli: Invocation, table: str) -> None:
    """Adopt the commits of a log that is ahead of the catalog, and make the table writable again.

    That is the case after the database came back from an older backup, or after another engine wrote.

    \b
    Examples:
      deltasql mirror recover sales.orders
    """
    with cli.open_table(table) as (catalog, name):
        adopted = catalog.mirror.recover(name).versions
        version = catalog.describe(name).head.version
    cli.show(
        {"table": name, "adopted": list(adopted), "version": version},
        f"{render.many(len(adopted), 'version')} adopted from the log; {name} is at version {version}.",
        [str(v) for v in adopted],
    )


@subcommand("resolve", CHANGING, LEASING, short="Resolve a diverged log.")
@argument("table")
@option(
    "--keep-theirs", is_flag=True, required=True, help="Their commits stay; ours go on top with new versions."
)
@flag("--allow-split", "Drop part of a transaction although its other parts stay in other tables.")
def resolve(cli: Invocation, table: str, keep_theirs: bool, allow_split: bool, dry_run: bool) -> int:
    """Resolve a divergence: the log has another writer's commit at a version that we committed too.

    Only commits of ours that were never published move. Those that conflict with theirs are dropped
    and listed: exit code 4. With --dry-run every commit is named, with what would become of it.

    Other tables that diverged and share a transaction with this one are resolved with it. A transaction that
    would be dropped here and kept in another table is refused, unless --allow-split is given.

    \b
    Examples:
      deltasql mirror resolve sales.orders --keep-theirs --dry-run
      deltasql mirror resolve sales.orders --keep-theirs --yes
    """
    del keep_theirs  # the only way there is: it has to be said
    with cli.open_table(table) as (catalog, name):
        if not dry_run:
            (state,) = catalog.mirror.status(name)
            waiting = render.many(state.versions_behind, "commit")
            cli.confirm(f"Adopt the commits in the log of {name}, and commit {waiting} of ours again on top?")
        done = catalog.mirror.resolve(name, allow_split=allow_split, dry_run=dry_run)
    every = {name: done, **done.also}
    document = _resolved(name, done) | {"also": [_resolved(n, r) for n, r in done.also.items()]}
    cli.show(
        document,
        (item for n, r in every.items() for item in _view_resolved(r, f"{n}:" if done.also else "")),
        [f"lost {v} of {n}: {why}" for n, one in every.items() for v, why in one.lost.items()],
    )
    return ExitCode.CONFLICT if any(one.lost for one in every.values()) else ExitCode.OK


def _resolved(name: str, done: Resolved) -> dict[str, Any]:
    return {
        "table": name,
        "dry_run": done.dry_run,
        "theirs": list(done.theirs),
        "ours": {str(old): new for old, new in done.ours.items()},
        "lost": {str(old): why for old, why in done.lost.items()},
        "commits": [asdict(c) | {"timestamp": render.iso(c.timestamp)} for c in done.commits],
        "split": {txn: list(tables) for txn, tables in done.split.items()},
    }


def _view_resolved(done: Resolved, title: str) -> Iterator[Item]:
    if title:
        yield title
    verb, lost, now = (
        ("would be adopted", "would be", "would become") if done.dry_run else ("adopted", "is", "is now")
    )
    yield f"{render.many(len(done.theirs), 'commit')} of other writers {verb}."
    for ours in done.commits:
        when = render.iso(ours.timestamp) or "at an unknown time"
        operation = ours.operation or "unknown operation"
        what = f"our version {ours.version} ({operation}, {when}, {ours.txn_uuid})"
        if (why := done.lost.get(ours.version)) is not None:
            yield f"  ✗ {what} {lost} lost: {why}", "red"
        else:
            yield f"  {what} {now} version {done.ours[ours.version]}"
    for txn, tables in done.split.items():
        needs = "needs --allow-split" if done.dry_run else "bring the tables into line by hand"
        yield f"  ✗ Transaction {txn} stays in {', '.join(tables)}: {needs}.", "red"


@subcommand("policy", short="Show or set the policy for foreign commits.")
@argument("table")
@argument("policy", required=False, type=click.Choice(["freeze", "adopt"]))
def policy(cli: Invocation, table: str, policy: str | None) -> None:
    """Show or set what happens when another engine commits beyond the catalog's newest version.

    `freeze` refuses writes until a person decides; `adopt` adopts such commits before the next write. A
    commit at the version of one of ours always freezes the table.

    \b
    Examples:
      deltasql mirror policy sales.orders
      deltasql mirror policy sales.orders adopt
    """
    with cli.open_table(table) as (catalog, name):
        if policy is not None:
            catalog.mirror.set_policy(name, cast('Literal["freeze", "adopt"]', policy))
        now = catalog.mirror.policy(name)
    cli.show({"table": name, "policy": now}, f"Commits of other writers to {name}: {now}.", [now])


@subcommand("fence", short="Block writers that bypass the catalog.")
@argument("table")
@flag("--remove", "Take the fence away.")
def fence(cli: Invocation, table: str, remove: bool) -> None:
    """Block writers that bypass the catalog. Readers are not affected.

    A commit adds the writer feature deltasqlManaged, which no other engine knows: by the rules of Delta it
    must then refuse to write.

    \b
    Examples:
      deltasql mirror fence sales.orders
      deltasql mirror fence sales.orders --remove
    """
    with cli.open_table(table) as (catalog, name):
        version = catalog.mirror.unfence(name) if remove else catalog.mirror.fence(name)
    state = "has no fence" if remove else "is fenced"
    since = "already" if version is None else f"since version {version}"
    document = {"table": name, "fenced": not remove, "version": version}
    cli.show(document, f"{name} {state} {since}.", [] if version is None else [str(version)])


@subcommand("prune", PREVIEWING, short="Delete old commit bytes in the catalog.")
@argument("table")
def prune(cli: Invocation, table: str, dry_run: bool) -> None:
    """Delete the bytes of published commits that a published checkpoint covers from the catalog.

    Tables, history and time travel stay. `repair` and `rebuild` can no longer write these commits.

    \b
    Examples:
      deltasql mirror prune sales.orders --dry-run
      deltasql mirror prune sales.orders
    """
    with cli.open_table(table) as (catalog, name):
        done = catalog.mirror.prune(name, dry_run=dry_run)
    line = f"There is nothing to delete: no published checkpoint of {name} covers more commits."
    if done.commits:
        bytes_of = f"The bytes of {render.many(done.commits, 'commit')} of {name}"
        line = f"{bytes_of} {_deleted(dry_run)}, up to version {done.upto}."
    cli.show({**done.to_dict(), "dry_run": dry_run}, line)


def _deleted(dry_run: bool) -> str:
    return "would be deleted" if dry_run else "deleted"


@subcommand("clean", PREVIEWING, LEASING, short="Delete log files that are old and covered.")
@argument("table")
def clean(cli: Invocation, table: str, dry_run: bool) -> None:
    """Delete log files whose retention has ended and that a published checkpoint covers.

    The retention is the table's delta.logRetentionDuration. Readers of _delta_log can no longer travel to
    these versions; readers of the catalog can. Refused while the table is frozen or its log is ahead of the
    catalog (exit code 5).

    \b
    Examples:
      deltasql mirror clean sales.orders --dry-run
      deltasql mirror clean sales.orders
    """
    with cli.open_table(table) as (catalog, name):
        done = catalog.mirror.clean(name, dry_run=dry_run)
    deleted = [meta.path for meta in done.delete]
    why = f": {done.reason}" if done.reason else ""
    lines = [f"{render.many(len(deleted), 'log file')} {_deleted(dry_run)}{why}."]
    document = {"table": name, "checkpoint": done.checkpoint, "deleted": deleted, "reason": done.reason}
    shown = [f"  {path}" for path in deleted if dry_run]
    cli.show({**document, "dry_run": dry_run}, lines + shown, deleted)


@subcommand("compact", PREVIEWING, LEASING, short="Write one file for a range of versions.")
@argument("table")
@argument("start", type=click.IntRange(min=0))
@argument("end", type=click.IntRange(min=1))
def compact(cli: Invocation, table: str, start: int, end: int, dry_run: bool) -> None:
    """Write one log compaction file over a range of published versions.

    Readers that know of such files read it instead of the single commits, which stay.

    \b
    Examples:
      deltasql mirror compact sales.orders 100 199 --dry-run
      deltasql mirror compact sales.orders 100 199
    """
    with cli.open_table(table) as (catalog, name):
        path = catalog.mirror.compact(name, start, end, dry_run=dry_run)
    written = f"{path} {'would be' if dry_run else 'is'} written."
    document = {"table": name, "start": start, "end": end, "path": path, "dry_run": dry_run}
    cli.show(document, written if path else f"Versions {start} to {end} are already compacted.")
