"""``deltasql mirror``: publish commits to _delta_log, compare and repair it."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import Invocation, stop_on_signal
from deltalakedb.cli.options import (
    CHANGING,
    LEASING,
    PREVIEWING,
    command,
    common,
    flag,
    interval,
    table_command,
)
from deltalakedb.cli.output import NO_TABLES, ExitCode, Item, Rows, difference_rows, view_reports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalakedb.catalog import Catalog
    from deltalakedb.coordinator.rebase import Resolved
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.mirror.drift import Difference
    from deltalakedb.mirror.reconciler import Pass


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


#: a command of the group with the argument TABLE
on_table = partial(table_command, group=mirror)


@on_table("status", required=False)
@flag("--look", "Also list the logs, to find commits that are not in the catalog.")
def status(cli: Invocation, catalog: Catalog, name: str | None, look: bool) -> int:
    """Show how far each log is behind its table, and why.

    Exit code 5 if a table is frozen, 3 if --look finds foreign commits, 75 if commits have waited
    for more than 60 seconds, or a checkpoint or the manifest of a transaction cannot be written.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror status --look
      deltasql mirror status sales.orders --json
    """
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
    waiting = [f"{s.table} {s.versions_behind}" for s in found if s.versions_behind]
    cli.show(
        {"catalog": catalog.uri, "tables": rows}, [Rows(headers, shown)] if found else NO_TABLES, waiting
    )
    if any(s.state == "frozen" for s in found):
        return ExitCode.FROZEN
    if any(s.ahead for s in found):
        return ExitCode.DRIFT
    late = any(s.alarm or s.checkpoint_error is not None or s.manifests_missing for s in found)
    return ExitCode.TRY_AGAIN if late else ExitCode.OK


def _reasons(status: MirrorStatus) -> Iterator[str]:
    if status.ahead:
        commits = render.many(status.ahead, "commit")
        way = "resolve" if status.versions_behind else "recover"
        yield f"the log has {commits} of other writers: `deltasql mirror {way}`"
    if status.state_reason:
        yield status.state_reason
    elif status.error is not None:
        wait = status.retry_in if status.backing_off else None
        yield f"{status.error} ({_attempts(status.attempts, wait)})"
    if status.checkpoint_error is not None:
        wait = status.checkpoint_retry_in if status.checkpoint_backing_off else None
        yield f"no checkpoint: {status.checkpoint_error} ({_attempts(status.checkpoint_attempts, wait)})"
    if status.checkpoint_holder is not None:
        ends = f"its lease ends in {status.checkpoint_lease:.0f} s"
        yield f"a checkpoint or clean-up is in progress by {status.checkpoint_holder}, {ends}"
    if status.manifests_missing:
        lacks = f"no manifest of {render.many(status.manifests_missing, 'transaction')}"
        again = f" (next try in {status.manifest_retry_in:.0f} s)" if status.manifest_retry_in else ""
        yield f"{lacks}: {status.manifest_error}{again}"
    if status.alarm:
        yield "ALARM: behind for more than a minute"


def _attempts(number: int, wait: float | None) -> str:
    return render.many(number, "attempt") + ("" if wait is None else f", next try in {wait:.0f} s")


@command("verify", group=mirror, short_help="Compare log and catalog at every version.")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@flag("--no-replay", "Compare commit files only: faster, blind to wrong checkpoints.")
def verify(cli: Invocation, tables: tuple[str, ...], no_replay: bool) -> int:
    """Compare log and catalog at every version: bytes, replay, checkpoints. Nothing is changed.

    This is `deltasql verify --level full` plus a check of every checkpoint. Without a table all are
    compared. Exit code 3 for drift, 5 if another writer's commit has the version of ours.

    \b
    Examples:
      deltasql mirror verify
      deltasql mirror verify sales.orders --json
    """
    with cli.open_tables(tables) as (catalog, names):
        every = names or [table.name for table in catalog.tables()]
        reports = [catalog.mirror.verify(name, replay=not no_replay) for name in every]
    findings = [f for report in reports for f in report.differences]
    lines = [f"{r.table} {f.version} {f.kind}: {f.detail}" for r in reports for f in r.differences]
    cli.show({"ok": not findings, "tables": reports}, view_reports(reports), lines)
    return _code_of(findings)


def _code_of(findings: Sequence[Difference]) -> ExitCode:
    if any(f.kind == "foreign" for f in findings):
        return ExitCode.FROZEN
    return ExitCode.DRIFT if findings else ExitCode.OK


def _check_run(*, watch: bool, table: str | None, **_: Any) -> None:
    if watch and table is not None:
        raise click.UsageError("--watch publishes all tables: leave the name out")


@on_table(
    "run", required=False, check=_check_run, short_help="Publish waiting commits, once or as a service."
)
@flag("--watch", "Keep running until Ctrl-C or SIGTERM.")
@interval(1.0, "With --watch, the pause between two rounds.")
def run(cli: Invocation, catalog: Catalog, name: str | None, watch: bool, interval: float) -> int:
    """Publish waiting commits and write due checkpoints, once or as a service. Several processes may run it.

    A table whose last attempt failed is skipped until its next attempt is due; naming it forces one. Tables
    that are not up to date are listed: frozen ones (exit code 5), those whose commits, checkpoint or
    transaction manifest could not be written (75), and paused ones (0).

    \b
    Examples:
      deltasql mirror run
      deltasql mirror run sales.orders
      deltasql mirror run --watch --interval 5
    """
    if watch:
        cli.note(f"Publishing the tables of {catalog.uri}; Ctrl-C ends it.")
        with stop_on_signal() as stop:
            done = catalog.mirror.run(stop=stop, interval=interval)
    else:
        done = catalog.mirror.run() if name is None else catalog.mirror.publish(name)
    return _report_pass(cli, done)


_WHY = "`deltasql mirror status {0}` shows why"
_AGAIN, _FROZEN = (ExitCode.TRY_AGAIN, "yellow"), (ExitCode.FROZEN, "red")
_ALL = "`deltasql mirror resume` if the whole catalog is"
#: what may be left undone: exit code and style, line for people
_LEFT = {
    "failed": (_AGAIN, f"! {{0}} waits: {_WHY}"),
    "diverged": (_FROZEN, "✗ {0} is frozen: another writer's commit has the version of ours"),
    "frozen": (_FROZEN, f"✗ {{0}} is frozen: {_WHY}"),
    "backing_off": (_AGAIN, "! {0} failed and waits for its next try: `deltasql mirror run {0}`"),
    "no_checkpoint": (_AGAIN, f"! the checkpoint of {{0}} cannot be written: {_WHY}"),
    "no_manifest": (_AGAIN, f"! the manifest of a transaction cannot be written beside {{0}}: {_WHY}"),
    "paused": ((ExitCode.OK, ""), f"- {{0}} is paused: `deltasql mirror resume {{0}}`, {_ALL}"),
    "late": ((ExitCode.TRY_AGAIN, "red"), "! {0} is behind for more than a minute"),
}


def _report_pass(cli: Invocation, done: Pass, **more: Any) -> int:
    left: dict[str, list[str]] = {kind: list(getattr(done, kind)) for kind in _LEFT}
    left |= {kind: sorted(set(left[kind])) for kind in ("failed", "diverged")}
    document = {"published": done.published, "checkpoints": done.checkpoints, **left}
    document["paused_tables"] = document.pop("paused")
    left["frozen"] = sorted(set(left["frozen"]) - set(left["diverged"]))
    made = f", {render.many(done.checkpoints, 'checkpoint')} written" if done.checkpoints else ""
    lines = [(f"  {text.format(n)}", how[1]) for kind, (how, text) in _LEFT.items() for n in left[kind]]
    brief = [name for kind in ("failed", "diverged", "frozen", "backing_off") for name in left[kind]]
    cli.show(more | document, [f"{render.many(done.published, 'version')} published{made}.", *lines], brief)
    codes = {how[0] for kind, (how, _) in _LEFT.items() if left[kind]}
    return next((c for c in (ExitCode.FROZEN, ExitCode.TRY_AGAIN) if c in codes), ExitCode.OK)


@on_table("pause", required=False, short_help="Pause publishing.")
def pause(cli: Invocation, catalog: Catalog, name: str | None) -> None:
    """Pause publishing, for a table or the whole catalog. Commits continue.

    Readers of _delta_log keep an older, consistent state.

    \b
    Examples:
      deltasql mirror pause sales.orders
      deltasql mirror pause
    """
    catalog.mirror.pause(name)
    again = "deltasql mirror resume" + (f" {name}" if name else "")
    line = f"Publishing of {name or 'every table'} is paused until `{again}`."
    cli.show({"table": name, "paused": True}, line)


@on_table("resume", required=False)
def resume(cli: Invocation, catalog: Catalog, name: str | None) -> int:
    """Resume publishing, and publish waiting commits.

    Without a table, this ends the pause of the whole catalog. Tables that were paused by name stay paused and
    are listed: resume each by its name.

    \b
    Examples:
      deltasql mirror resume sales.orders
      deltasql mirror resume
    """
    return _report_pass(cli, catalog.mirror.resume(name), table=name, paused=False)


@on_table("repair", PREVIEWING, LEASING, short_help="Rewrite lost or damaged log files.")
@flag(
    "--create-folder",
    "Write the log even if the table's folder is missing or empty; without it that is an error.",
)
def repair(cli: Invocation, catalog: Catalog, name: str, dry_run: bool, create_folder: bool) -> int:
    """Rewrite commit files that are missing or damaged, and broken checkpoints, from the catalog.

    Commits of other writers are left alone: exit code 5 if one has the version of ours, 3 if other drift
    is left.

    \b
    Examples:
      deltasql mirror repair sales.orders --dry-run
      deltasql mirror repair sales.orders
    """
    done = catalog.mirror.repair(name, dry_run=dry_run, create_folder=create_folder)
    would = "would be " if dry_run else ""
    view: list[Item] = []
    for what, versions in (("commit file", done.rewritten), ("checkpoint", done.checkpoints)):
        if versions or what == "commit file":
            which = f": {', '.join(map(str, versions))}" if versions else ""
            view.append(f"{render.many(len(versions), what)} {would}rewritten{which}.")
    if done.begins_at is not None:
        verb = "would begin" if dry_run else "begin"
        view.append(f"Readers {verb} at a checkpoint of version {done.begins_at}: older commits are lost.")
    if done.unfrozen:
        view.append("The table is no longer frozen; `deltasql mirror run` publishes waiting commits.")
    if done.left:
        view += ["Left alone:", difference_rows(done.left)]
    cli.show({"table": name, **asdict(done)}, view, map(str, done.rewritten))
    return _code_of(done.left)


@on_table("rebuild", LEASING, short_help="Write the whole log to an empty location.")
@click.argument("location")
def rebuild(cli: Invocation, catalog: Catalog, name: str, location: str) -> None:
    """Write the whole log of a table from the catalog to a location that has none.

    Data files are not copied: put the new _delta_log beside them. If the bytes of old commits were pruned,
    the log begins with a checkpoint of the first version that still has them.

    \b
    Examples:
      deltasql mirror rebuild sales.orders /srv/lake/rebuilt
    """
    first, last = catalog.mirror.rebuild(name, location)
    which = f"Versions {first} to {last} of {name} are" if first < last else f"Version {last} of {name} is"
    begins = f", beginning with a checkpoint of version {first}" if first else ""
    document = {"table": name, "location": location, "first_version": first, "version": last}
    cli.show(document, f"{which} in {location}/_delta_log{begins}.")


@on_table("recover", short_help="Adopt commits of a log that is ahead.")
def recover(cli: Invocation, catalog: Catalog, name: str) -> None:
    """Adopt the commits of a log that is ahead of the catalog, and make the table writable again.

    The log is ahead if the database was restored from an older backup, or if another engine wrote.

    \b
    Examples:
      deltasql mirror recover sales.orders
    """
    adopted = catalog.mirror.recover(name).versions
    version = catalog.describe(name).head.version
    line = f"{render.many(len(adopted), 'version')} adopted from the log; {name} is at version {version}."
    cli.show({"table": name, "adopted": adopted, "version": version}, line, map(str, adopted))


@on_table("resolve", CHANGING, LEASING, short_help="Resolve a diverged log.")
@flag(
    "--keep-theirs",
    "Their commits stay; ours go on top with new versions.",
    required=True,
    expose_value=False,  # the only way there is, and one to confirm
)
@flag("--allow-split", "Drop part of a transaction even if its other parts stay in other tables.")
def resolve(cli: Invocation, catalog: Catalog, name: str, allow_split: bool, dry_run: bool) -> int:
    """Resolve a divergence: the log has another writer's commit at a version that we committed too.

    Only commits of ours that were never published move. Those that conflict with theirs are dropped
    and listed: exit code 4. --dry-run lists every commit and what would become of it.

    Other tables that diverged and share a transaction with this one are resolved with it. A transaction that
    would be dropped here and kept in another table is refused, unless --allow-split is given.

    \b
    Examples:
      deltasql mirror resolve sales.orders --keep-theirs --dry-run
      deltasql mirror resolve sales.orders --keep-theirs --yes
    """
    if not dry_run:
        (state,) = catalog.mirror.status(name)
        waiting = render.many(state.versions_behind, "commit")
        cli.confirm(f"Adopt the commits in the log of {name}, and commit {waiting} of ours again on top?")
    done = catalog.mirror.resolve(name, allow_split=allow_split, dry_run=dry_run)
    every = {name: done, **done.also}
    document = _resolved(name, done) | {"also": [_resolved(n, r) for n, r in done.also.items()]}
    view = (item for n, r in every.items() for item in _view_resolved(r, f"{n}:" if done.also else ""))
    lost = [f"lost {v} of {n}: {why}" for n, one in every.items() for v, why in one.lost.items()]
    cli.show(document, view, lost)
    return ExitCode.CONFLICT if lost else ExitCode.OK


def _resolved(name: str, done: Resolved) -> dict[str, Any]:
    commits = [asdict(c) | {"committed_at": render.iso(c.committed_at)} for c in done.commits]
    return {"table": name, **asdict(done), "commits": commits}


def _view_resolved(done: Resolved, title: str) -> Iterator[Item]:
    if title:
        yield title
    verb, lost, now = (
        ("would be adopted", "would be", "would become") if done.dry_run else ("adopted", "is", "is now")
    )
    yield f"{render.many(len(done.theirs), 'commit')} of other writers {verb}."
    for ours in done.commits:
        when = render.iso(ours.committed_at) or "at an unknown time"
        operation = ours.operation or "unknown operation"
        what = f"our version {ours.version} ({operation}, {when}, {ours.txn_uuid})"
        if (why := done.lost.get(ours.version)) is not None:
            yield f"  ✗ {what} {lost} lost: {why}", "red"
        else:
            yield f"  {what} {now} version {done.ours[ours.version]}"
    for txn, tables in done.split.items():
        needs = "needs --allow-split" if done.dry_run else "make the tables consistent by hand"
        yield f"  ✗ Transaction {txn} stays in {', '.join(tables)}: {needs}.", "red"


@on_table("policy", short_help="Show or set the policy for foreign commits.")
@click.argument("policy", required=False, type=click.Choice(["freeze", "adopt"]))
def policy(cli: Invocation, catalog: Catalog, name: str, policy: str | None) -> None:
    """Show or set what happens when another engine commits beyond the catalog's newest version.

    `freeze` refuses writes until you decide; `adopt` adopts such commits before the next write. A
    commit at the version of one of ours always freezes the table.

    \b
    Examples:
      deltasql mirror policy sales.orders
      deltasql mirror policy sales.orders adopt
    """
    if policy is not None:
        catalog.mirror.set_policy(name, cast('Literal["freeze", "adopt"]', policy))
    now = catalog.mirror.policy(name)
    cli.show({"table": name, "policy": now}, f"Commits of other writers to {name}: {now}.", [now])


@on_table("fence", short_help="Block writers that bypass the catalog.")
@flag("--remove", "Remove the fence.")
def fence(cli: Invocation, catalog: Catalog, name: str, remove: bool) -> None:
    """Block writers that bypass the catalog. Readers are not affected.

    A commit adds the writer feature deltasqlManaged, which no other engine knows: by the rules of Delta it
    must then refuse to write.

    \b
    Examples:
      deltasql mirror fence sales.orders
      deltasql mirror fence sales.orders --remove
    """
    version = catalog.mirror.unfence(name) if remove else catalog.mirror.fence(name)
    state = "has no fence" if remove else "is fenced"
    since = "already" if version is None else f"since version {version}"
    document = {"table": name, "fenced": not remove, "version": version}
    cli.show(document, f"{name} {state} {since}.", [] if version is None else [str(version)])


@on_table("prune", PREVIEWING, short_help="Delete old commit bytes in the catalog.")
def prune(cli: Invocation, catalog: Catalog, name: str, dry_run: bool) -> None:
    """Delete the bytes of published commits that a published checkpoint covers from the catalog.

    Tables, history and time travel stay. `repair` and `rebuild` can no longer write these commits.

    \b
    Examples:
      deltasql mirror prune sales.orders --dry-run
      deltasql mirror prune sales.orders
    """
    done = catalog.mirror.prune(name, dry_run=dry_run)
    line = f"There is nothing to delete: no published checkpoint of {name} covers more commits."
    if done.commits:
        bytes_of = f"The bytes of {render.many(done.commits, 'commit')} of {name}"
        line = f"{bytes_of} {_deleted(dry_run)}, up to version {done.upto}."
    cli.show({**done.to_dict(), "dry_run": dry_run}, line)


def _deleted(dry_run: bool) -> str:
    return "would be deleted" if dry_run else "deleted"


@on_table("clean", PREVIEWING, LEASING, short_help="Delete log files that are old and covered.")
def clean(cli: Invocation, catalog: Catalog, name: str, dry_run: bool) -> None:
    """Delete log files whose retention has ended and that a published checkpoint covers.

    The retention is the table's delta.logRetentionDuration. Readers of _delta_log can no longer travel to
    these versions; readers of the catalog can. Refused while the table is frozen or its log is ahead of the
    catalog (exit code 5).

    \b
    Examples:
      deltasql mirror clean sales.orders --dry-run
      deltasql mirror clean sales.orders
    """
    done = catalog.mirror.clean(name, dry_run=dry_run)
    deleted = [meta.path for meta in done.delete]
    why = f": {done.reason}" if done.reason else ""
    lines = [f"{render.many(len(deleted), 'log file')} {_deleted(dry_run)}{why}."]
    document = {"table": name, "checkpoint": done.checkpoint, "deleted": deleted, "reason": done.reason}
    shown = [f"  {path}" for path in deleted if dry_run]
    cli.show({**document, "dry_run": dry_run}, lines + shown, deleted)


@on_table("compact-log", PREVIEWING, LEASING, short_help="Write one log file for a range of versions.")
@click.argument("start", type=click.IntRange(min=0))
@click.argument("end", type=click.IntRange(min=1))
def compact_log(cli: Invocation, catalog: Catalog, name: str, start: int, end: int, dry_run: bool) -> None:
    """Write one log compaction file over a range of published versions.

    Readers that know of such files read it instead of the single commits, which stay. Data files are not
    touched: `deltasql optimize` joins small ones.

    \b
    Examples:
      deltasql mirror compact-log sales.orders 100 199 --dry-run
      deltasql mirror compact-log sales.orders 100 199
    """
    path = catalog.mirror.compact_log(name, start, end, dry_run=dry_run)
    written = f"{path} {'would be' if dry_run else 'is'} written."
    document = {"table": name, "start": start, "end": end, "path": path, "dry_run": dry_run}
    cli.show(document, written if path else f"Versions {start} to {end} already have a compaction file.")
