"""``deltasql mirror``: publish commits to _delta_log, compare and repair it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.context import stop_on_signal
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, command, common, leasing, previewing
from deltalakedb.mirror.reconciler import checked_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.metastore.outbox import MirrorStatus
    from deltalakedb.mirror.drift import Difference
    from deltalakedb.mirror.rebase import Resolved
    from deltalakedb.mirror.reconciler import Pass
    from deltalakedb.transfer.verifying.report import VerifyReport


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


@command("status")
@click.argument("table", required=False)
@click.option("--look", is_flag=True, help="Look into the logs too, for commits that are not in the catalog.")
def status(invocation: Invocation, table: str | None, look: bool) -> int:
    """Show how far each log is behind its table, and why.

    Exit code 5 if a table is frozen, 3 if --look finds foreign commits, 75 if commits have waited
    for more than 60 seconds, or a checkpoint or the manifest of a transaction cannot be written.

    \b
    Examples:
      deltasql mirror status
      deltasql mirror status --look
      deltasql mirror status sales.orders --json
    """
    with invocation.open_optional(table) as (catalog, name):
        found = catalog.mirror.status(name, look=look)
    rows = [s.to_dict() | {"published_at": render.iso(s.published_at)} for s in found]
    invocation.output.result(
        {"catalog": catalog.uri, "tables": rows},
        lambda screen: _view_status(screen, found),
        brief=[f"{s.table} {s.versions_behind}" for s in found if s.versions_behind],
    )
    if any(s.state == "frozen" for s in found):
        return ExitCode.FROZEN
    if any(s.ahead for s in found):
        return ExitCode.DRIFT
    late = any(s.alarm or s.checkpoint_error is not None or s.manifests_missing for s in found)
    return ExitCode.TRY_AGAIN if late else ExitCode.OK


def _view_status(screen: Screen, found: Sequence[MirrorStatus]) -> None:
    if not found:
        screen.line("The catalog holds no tables.")
        return
    headers = ("NAME", "VERSION", "PUBLISHED", "BEHIND", "AHEAD", "SECONDS", "CHECKPOINT", "STATE", "WHY")
    rows = [
        (
            s.table,
            str(s.version),
            str(s.published_version) if s.published_version >= 0 else "-",
            render.count(s.versions_behind),
            "-" if s.ahead is None else render.count(s.ahead),
            f"{s.seconds_behind:.0f}",
            str(s.checkpoint_version) if s.checkpoint_version >= 0 else "-",
            "paused" if s.paused and s.state == "active" else s.state,
            _why(s),
        )
        for s in found
    ]
    screen.table(headers, rows, right=headers[1:7])


def _why(status: MirrorStatus) -> str:
    reasons = []
    if status.ahead:
        commits = render.many(status.ahead, "commit")
        way = "resolve" if status.versions_behind else "recover"
        reasons.append(f"the log has {commits} of other writers: `deltasql mirror {way}`")
    if status.state_reason:
        reasons.append(status.state_reason)
    elif status.error is not None:
        again = f", next try in {status.retry_in:.0f} s" if status.backing_off else ""
        reasons.append(f"{status.error} ({render.many(status.attempts, 'attempt')}{again})")
    if status.checkpoint_error is not None:
        tries = render.many(status.checkpoint_attempts, "attempt")
        again = f", next try in {status.checkpoint_retry_in:.0f} s" if status.checkpoint_backing_off else ""
        reasons.append(f"no checkpoint: {status.checkpoint_error} ({tries}{again})")
    if status.checkpoint_holder is not None:
        ends = f"its lease ends in {status.checkpoint_lease:.0f} s"
        reasons.append(f"a checkpoint or clean-up is under way by {status.checkpoint_holder}, {ends}")
    if status.manifests_missing:
        lacks = f"no manifest of {render.many(status.manifests_missing, 'transaction')}"
        again = f" (next try in {status.manifest_retry_in:.0f} s)" if status.manifest_retry_in else ""
        reasons.append(f"{lacks}: {status.manifest_error}{again}")
    if status.alarm:
        reasons.append("ALARM: behind for more than a minute")
    return "; ".join(reasons) or "-"


@command("verify", short_help="Compare log and catalog at every version.")
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option(
    "--no-replay", is_flag=True, help="Compare commit files only: faster, blind to wrong checkpoints."
)
def verify(invocation: Invocation, tables: tuple[str, ...], no_replay: bool) -> int:
    """Compare log and catalog at every version: bytes, replay, checkpoints. Nothing is changed.

    This is `deltasql verify --level full`, and every checkpoint by itself. Without a table all are
    compared. Exit code 3 for drift, 5 if another writer's commit has the version of ours.

    \b
    Examples:
      deltasql mirror verify
      deltasql mirror verify sales.orders --json
    """
    address, names = invocation.one_catalog(tables)
    with invocation.open_catalog(address) as catalog:
        names = names or [t.name for t in catalog.tables()]
        reports = [catalog.mirror.verify(name, replay=not no_replay) for name in names]
    findings = [f for report in reports for f in report.differences]
    invocation.output.result(
        {"ok": not findings, "tables": [r.to_dict() for r in reports]},
        lambda screen: _view_reports(screen, reports),
        brief=[f"{r.table} {f.version} {f.kind}: {f.detail}" for r in reports for f in r.differences],
    )
    return code_of(findings)


def _view_reports(screen: Screen, reports: Sequence[VerifyReport]) -> None:
    for report in reports:
        versions = render.many(report.versions_checked, "version")
        if report.ok:
            screen.line(f"{report.table}: {versions}, the log is what the catalog says.")
            continue
        found = render.many(report.num_differences, "difference")
        screen.line(f"{report.table}: {versions}, {found}", "bold red")
        view_findings(screen, report.differences)
    if not reports:
        screen.line("The catalog holds no tables.")


def view_findings(screen: Screen, findings: Sequence[Difference]) -> None:
    """Draw what is not as it should be."""
    rows = [(str(f.version), f.kind, f"{f.path}: {f.detail}" if f.path else f.detail) for f in findings]
    screen.table(("VERSION", "KIND", "DETAIL"), rows, right=("VERSION",))


def code_of(findings: Sequence[Difference]) -> ExitCode:
    """The exit code that findings end a command with."""
    if any(f.kind == "foreign" for f in findings):
        return ExitCode.FROZEN
    return ExitCode.DRIFT if findings else ExitCode.OK


@command("run", short_help="Publish what waits, once or as a service.")
@click.argument("table", required=False)
@click.option("--watch", is_flag=True, help="Keep running until Ctrl-C or SIGTERM.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="With --watch, the pause between two rounds.",
)
def run(invocation: Invocation, table: str | None, watch: bool, interval: float) -> int:
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
    with invocation.open_optional(table) as (catalog, name):
        if watch:
            checked_interval(interval)
            invocation.output.note(f"Publishing the tables of {catalog.uri}; Ctrl-C ends it.")
            with stop_on_signal() as stop:
                done = catalog.mirror.run(stop=stop, interval=interval)
        else:
            done = catalog.mirror.run() if name is None else catalog.mirror.publish(name)
    return _tell_pass(invocation, done)


def _tell_pass(invocation: Invocation, done: Pass, **more: Any) -> int:
    failed, diverged = sorted(set(done.failed)), sorted(set(done.diverged))
    frozen = sorted(set(done.frozen) - set(diverged))

    def view(screen: Screen) -> None:
        made = f", {render.many(done.checkpoints, 'checkpoint')} written" if done.checkpoints else ""
        screen.line(f"{render.many(done.published, 'version')} published{made}.")
        for name in failed:
            screen.line(f"  ! {name} waits: `deltasql mirror status {name}` says why", "yellow")
        for name in diverged:
            screen.line(f"  ✗ {name} is frozen: another writer's commit has the version of ours", "red")
        for name in frozen:
            screen.line(f"  ✗ {name} is frozen: `deltasql mirror status {name}` says why", "red")
        for name in done.backing_off:
            screen.line(
                f"  ! {name} failed and waits for its next try: `deltasql mirror run {name}`", "yellow"
            )
        for name in done.no_checkpoint:
            why = f"`deltasql mirror status {name}` says why"
            screen.line(f"  ! the checkpoint of {name} cannot be written: {why}", "yellow")
        for name in done.no_manifest:
            why = f"`deltasql mirror status {name}` says why"
            screen.line(f"  ! the manifest of a transaction cannot be written beside {name}: {why}", "yellow")
        for name in done.paused:
            whole = "`deltasql mirror resume` if the whole catalog is"
            screen.line(f"  - {name} is paused: `deltasql mirror resume {name}`, {whole}")
        for name in done.late:
            screen.line(f"  ! {name} is behind for more than a minute", "red")

    document = {
        **more,
        "published": done.published,
        "checkpoints": done.checkpoints,
        "failed": failed,
        "diverged": diverged,
        "frozen": list(done.frozen),
        "backing_off": list(done.backing_off),
        "paused_tables": list(done.paused),
        "late": list(done.late),
        "no_checkpoint": list(done.no_checkpoint),
        "no_manifest": list(done.no_manifest),
    }
    invocation.output.result(document, view, brief=[*failed, *diverged, *frozen, *done.backing_off])
    if diverged or frozen:
        return ExitCode.FROZEN
    waits = failed or done.backing_off or done.late or done.no_checkpoint or done.no_manifest
    return ExitCode.TRY_AGAIN if waits else ExitCode.OK


@command("pause", short_help="Pause publishing.")
@click.argument("table", required=False)
def pause(invocation: Invocation, table: str | None) -> None:
    """Pause publishing, for a table or the whole catalog. Commits continue.

    Readers of _delta_log keep an older, consistent state.

    \b
    Examples:
      deltasql mirror pause sales.orders
      deltasql mirror pause
    """
    with invocation.open_optional(table) as (catalog, name):
        catalog.mirror.pause(name)
    what = name or "every table"
    command = "deltasql mirror resume" + (f" {name}" if name else "")
    invocation.output.result(
        {"table": name, "paused": True},
        lambda screen: screen.line(f"Publishing of {what} is paused until `{command}`."),
    )


@command("resume")
@click.argument("table", required=False)
def resume(invocation: Invocation, table: str | None) -> int:
    """Let publishing go on, and catch up.

    Without a table the pause of the whole catalog ends. Tables that were paused by name stay so, and are
    named: resume each by its name.

    \b
    Examples:
      deltasql mirror resume sales.orders
      deltasql mirror resume
    """
    with invocation.open_optional(table) as (catalog, name):
        done = catalog.mirror.resume(name)
    return _tell_pass(invocation, done, table=name, paused=False)


@command("repair", previewing, leasing, short_help="Rewrite lost or damaged log files.")
@click.argument("table")
@click.option(
    "--create-folder",
    is_flag=True,
    help="Write the log even if the table's folder is missing or empty; without it that is an error.",
)
def repair(invocation: Invocation, table: str, dry_run: bool, create_folder: bool) -> int:
    """Rewrite commit files that are missing or damaged, and broken checkpoints, from the catalog.

    Commits of other writers are left alone: exit code 5 if one has the version of ours, 3 if other drift
    is left.

    \b
    Examples:
      deltasql mirror repair sales.orders --dry-run
      deltasql mirror repair sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        done = catalog.mirror.repair(name, dry_run=dry_run, create_folder=create_folder)

    def view(screen: Screen) -> None:
        verb = "would be rewritten" if dry_run else "rewritten"
        which = f": {', '.join(map(str, done.rewritten))}" if done.rewritten else ""
        screen.line(f"{render.many(len(done.rewritten), 'commit file')} {verb}{which}.")
        if done.checkpoints:
            versions = ", ".join(map(str, done.checkpoints))
            screen.line(f"{render.many(len(done.checkpoints), 'checkpoint')} {verb}: {versions}.")
        if done.begins_at is not None:
            verb = "would begin" if dry_run else "begin"
            screen.line(
                f"Readers {verb} at a checkpoint of version {done.begins_at}: older commits are lost."
            )
        if done.unfrozen:
            screen.line("The table is not frozen any more; `deltasql mirror run` publishes what waits.")
        if done.left:
            screen.line("Left alone:")
            view_findings(screen, done.left)

    left = [{"kind": f.kind, "version": f.version, "detail": f.detail} for f in done.left]
    document = {
        "table": name,
        "dry_run": dry_run,
        "rewritten": list(done.rewritten),
        "checkpoints": list(done.checkpoints),
        "begins_at": done.begins_at,
        "unfrozen": done.unfrozen,
        "left": left,
    }
    invocation.output.result(document, view, brief=[str(v) for v in done.rewritten])
    return code_of(done.left)


@command("rebuild", leasing, short_help="Make the whole log in an empty place.")
@click.argument("table")
@click.argument("location")
def rebuild(invocation: Invocation, table: str, location: str) -> None:
    """Make the whole log of a table from the catalog, into a place without one.

    Data files are not copied: put the new _delta_log beside them. Where bytes of old commits were pruned, it
    begins with a checkpoint of the first version from which on they are there; readers and writers go on from
    it.

    \b
    Examples:
      deltasql mirror rebuild sales.orders /srv/lake/rebuilt
    """
    with invocation.open_table(table) as (catalog, name):
        first, last = catalog.mirror.rebuild(name, location)
    invocation.output.result(
        {"table": name, "location": location, "first_version": first, "version": last},
        lambda screen: screen.line(
            (f"Versions {first} to {last} of {name} are" if first < last else f"Version {last} of {name} is")
            + f" in {location}/_delta_log"
            + (f", beginning with a checkpoint of version {first}." if first else ".")
        ),
    )


@command("recover", short_help="Take over a log that is ahead.")
@click.argument("table")
def recover(invocation: Invocation, table: str) -> None:
    """Take over the commits of a log that is ahead of the catalog, and let the table be written again.

    That is the case after the database came back from an older backup, or after another engine wrote.

    \b
    Examples:
      deltasql mirror recover sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        adopted = catalog.mirror.recover(name).versions
        version = catalog.describe(name).head.version
    adopted_versions = render.many(len(adopted), "version")
    invocation.output.result(
        {"table": name, "adopted": list(adopted), "version": version},
        lambda screen: screen.line(
            f"{adopted_versions} adopted from the log; {name} is at version {version}."
        ),
        brief=[str(v) for v in adopted],
    )


@command("resolve", changing, leasing, short_help="Resolve a diverged log.")
@click.argument("table")
@click.option(
    "--keep-theirs", is_flag=True, required=True, help="Their commits stay; ours go on top with new versions."
)
@click.option(
    "--allow-split",
    is_flag=True,
    help="Drop part of a transaction although its other parts stay in other tables.",
)
def resolve(invocation: Invocation, table: str, keep_theirs: bool, allow_split: bool, dry_run: bool) -> int:
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
    with invocation.open_table(table) as (catalog, name):
        if not dry_run:
            (state,) = catalog.mirror.status(name)
            waiting = render.many(state.versions_behind, "commit")
            invocation.confirm(f"Take over the log of {name}, and make {waiting} of ours again on top?")
        done = catalog.mirror.resolve(name, allow_split=allow_split, dry_run=dry_run)
    every = {name: done, **done.also}

    def view(screen: Screen) -> None:
        for each, one in every.items():
            if done.also:
                screen.line(f"{each}:")
            _view_resolved(screen, one)

    invocation.output.result(
        _resolved_document(name, done) | {"also": [_resolved_document(n, r) for n, r in done.also.items()]},
        view,
        brief=[f"lost {v} of {n}: {why}" for n, one in every.items() for v, why in one.lost.items()],
    )
    return ExitCode.CONFLICT if any(one.lost for one in every.values()) else ExitCode.OK


def _resolved_document(name: str, done: Resolved) -> dict[str, Any]:
    return {
        "table": name,
        "dry_run": done.dry_run,
        "theirs": list(done.theirs),
        "ours": {str(old): new for old, new in done.ours.items()},
        "lost": {str(old): why for old, why in done.lost.items()},
        "commits": [asdict(c) | {"timestamp": render.iso(c.timestamp)} for c in done.commits],
        "split": {txn: list(tables) for txn, tables in done.split.items()},
    }


def _view_resolved(screen: Screen, done: Resolved) -> None:
    verb = "would be taken over" if done.dry_run else "taken over"
    screen.line(f"{render.many(len(done.theirs), 'commit')} of other writers {verb}.")
    for ours in done.commits:
        when = render.iso(ours.timestamp) or "at an unknown time"
        what = (
            f"our version {ours.version} ({ours.operation or 'unknown operation'}, {when}, {ours.txn_uuid})"
        )
        if (why := done.lost.get(ours.version)) is not None:
            screen.line(f"  ✗ {what} {'would be' if done.dry_run else 'is'} lost: {why}", "red")
        else:
            now = "would become" if done.dry_run else "is now"
            screen.line(f"  {what} {now} version {done.ours[ours.version]}")
    for txn, tables in done.split.items():
        screen.line(
            f"  ✗ Transaction {txn} stands in {', '.join(tables)}: "
            + ("needs --allow-split." if done.dry_run else "bring the tables into line by hand."),
            "red",
        )


@command("policy", short_help="Show or set the policy for foreign commits.")
@click.argument("table")
@click.argument("policy", required=False, type=click.Choice(["freeze", "adopt"]))
def policy(invocation: Invocation, table: str, policy: str | None) -> None:
    """Show or set what happens when another engine commits beyond the catalog's newest version.

    `freeze` refuses writes until a person decides, `adopt` takes such commits over before the next write. A
    commit in the place of one of ours always freezes the table.

    \b
    Examples:
      deltasql mirror policy sales.orders
      deltasql mirror policy sales.orders adopt
    """
    with invocation.open_table(table) as (catalog, name):
        if policy is not None:
            catalog.mirror.set_policy(name, cast('Literal["freeze", "adopt"]', policy))
        now = catalog.mirror.policy(name)
    invocation.output.result(
        {"table": name, "policy": now},
        lambda screen: screen.line(f"Commits of other writers to {name}: {now}."),
        brief=[now],
    )


@command("fence", short_help="Block writers that bypass the catalog.")
@click.argument("table")
@click.option("--remove", is_flag=True, help="Take the fence away.")
def fence(invocation: Invocation, table: str, remove: bool) -> None:
    """Keep writers out that do not go through the catalog. Readers go on reading.

    A commit adds the writer feature deltasqlManaged, which no other engine knows: by the rules of Delta it
    must then refuse to write.

    \b
    Examples:
      deltasql mirror fence sales.orders
      deltasql mirror fence sales.orders --remove
    """
    with invocation.open_table(table) as (catalog, name):
        version = catalog.mirror.unfence(name) if remove else catalog.mirror.fence(name)
    stands = "has no fence" if remove else "is fenced"
    since = "already" if version is None else f"since version {version}"
    invocation.output.result(
        {"table": name, "fenced": not remove, "version": version},
        lambda screen: screen.line(f"{name} {stands} {since}."),
        brief=[] if version is None else [str(version)],
    )


@command("prune", previewing, short_help="Delete old commit bytes in the catalog.")
@click.argument("table")
def prune(invocation: Invocation, table: str, dry_run: bool) -> None:
    """Delete the bytes of published commits that a published checkpoint covers from the catalog.

    Tables, history and time travel stay as they are. What goes is what repair and rebuild would write these
    commits from.

    \b
    Examples:
      deltasql mirror prune sales.orders --dry-run
      deltasql mirror prune sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        done = catalog.mirror.prune(name, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    invocation.output.result(
        {**done.to_dict(), "dry_run": dry_run},
        lambda screen: screen.line(
            f"The bytes of {render.many(done.commits, 'commit')} of {name} {verb}, up to version {done.upto}."
            if done.commits
            else f"There is nothing to delete: no published checkpoint of {name} covers more commits."
        ),
    )


@command("clean", previewing, leasing, short_help="Delete log files that are old and covered.")
@click.argument("table")
def clean(invocation: Invocation, table: str, dry_run: bool) -> None:
    """Delete log files whose retention has ended and that a published checkpoint covers.

    The retention is the table's delta.logRetentionDuration. Readers outside cannot travel to these versions
    any more; in the catalog they stay. Refused while the table is frozen or its log is ahead of the
    catalog (exit code 5).

    \b
    Examples:
      deltasql mirror clean sales.orders --dry-run
      deltasql mirror clean sales.orders
    """
    with invocation.open_table(table) as (catalog, name):
        done = catalog.mirror.clean(name, dry_run=dry_run)
    deleted = [meta.path for meta in done.delete]

    def view(screen: Screen) -> None:
        verb = "would be deleted" if dry_run else "deleted"
        why = f": {done.reason}" if done.reason else ""
        screen.line(f"{render.many(len(deleted), 'log file')} {verb}{why}.")
        for path in deleted if dry_run else ():
            screen.line(f"  {path}")

    document = {"table": name, "checkpoint": done.checkpoint, "deleted": deleted, "reason": done.reason}
    invocation.output.result({**document, "dry_run": dry_run}, view, brief=deleted)


@command("compact", previewing, leasing, short_help="Write one file for a range of versions.")
@click.argument("table")
@click.argument("start", type=click.IntRange(min=0))
@click.argument("end", type=click.IntRange(min=1))
def compact(invocation: Invocation, table: str, start: int, end: int, dry_run: bool) -> None:
    """Write one log compaction file over a range of published versions.

    Readers that know of such files read it instead of the single commits, which stay.

    \b
    Examples:
      deltasql mirror compact sales.orders 100 199 --dry-run
      deltasql mirror compact sales.orders 100 199
    """
    with invocation.open_table(table) as (catalog, name):
        path = catalog.mirror.compact(name, start, end, dry_run=dry_run)
    verb = "would be" if dry_run else "is"
    invocation.output.result(
        {"table": name, "start": start, "end": end, "path": path, "dry_run": dry_run},
        lambda screen: screen.line(
            f"{path} {verb} written." if path else f"Versions {start} to {end} are already compacted."
        ),
    )


for _command in (
    status, verify, run, pause, resume, repair, rebuild,
    recover, resolve, policy, fence, prune, clean, compact,
):  # fmt: skip
    mirror.add_command(_command)
