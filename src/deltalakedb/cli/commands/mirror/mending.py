"""``deltasql mirror repair``, ``rebuild``, ``recover``, ``resolve``, ``policy`` and ``fence``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from deltalakedb.cli import render
from deltalakedb.cli.commands.mirror.looking import code_of, view_findings
from deltalakedb.cli.errors import ExitCode
from deltalakedb.cli.options import changing, common

if TYPE_CHECKING:
    from deltalakedb.cli.context import Invocation
    from deltalakedb.cli.output import Screen
    from deltalakedb.mirror.rebase import Resolved


@click.command("repair", short_help="Rewrite lost or damaged log files.")
@click.argument("table")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and change nothing.")
@click.option(
    "--create-folder",
    is_flag=True,
    help="Write the log even if the table's folder is missing or empty; without it that is an error.",
)
@common
@click.pass_obj
def repair(invocation: Invocation, table: str, dry_run: bool, create_folder: bool) -> int:
    """Rewrite commit files that are missing or damaged, and broken checkpoints, from the catalog.

    Commits of others are left alone: exit code 5 where one stands in the place of ours, 3 where other drift
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
            told = ", ".join(map(str, done.checkpoints))
            screen.line(f"{render.many(len(done.checkpoints), 'checkpoint')} {verb}: {told}.")
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


@click.command("rebuild", short_help="Make the whole log in an empty place.")
@click.argument("table")
@click.argument("location")
@common
@click.pass_obj
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


@click.command("recover", short_help="Take over a log that is ahead.")
@click.argument("table")
@common
@click.pass_obj
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
    told = render.many(len(adopted), "version")
    invocation.output.result(
        {"table": name, "adopted": list(adopted), "version": version},
        lambda screen: screen.line(f"{told} taken over from the log; {name} is at version {version}."),
        brief=[str(v) for v in adopted],
    )


@click.command("resolve", short_help="Decide where both sides committed.")
@click.argument("table")
@click.option(
    "--keep-theirs", is_flag=True, required=True, help="Their commits stay; ours go on top with new versions."
)
@click.option(
    "--allow-split",
    is_flag=True,
    help="Lose part of a transaction although its other parts stand in other tables.",
)
@changing
@common
@click.pass_obj
def resolve(invocation: Invocation, table: str, keep_theirs: bool, allow_split: bool, dry_run: bool) -> int:
    """Decide a divergence: somebody else's commit stands in the log where we committed too.

    Only commits of ours that nobody outside ever saw move. Those that cannot stand beside theirs are lost
    and named: exit code 4. With --dry-run every commit is named, with what would become of it.

    Other tables that diverged and share a transaction with this one are resolved with it. A transaction that
    would be lost here and stand in another table is refused, unless --allow-split is given.

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
            if not invocation.confirm(
                f"Take over the log of {name}, and make {waiting} of ours again on top?"
            ):
                invocation.output.note("Nothing was changed.")
                return ExitCode.ERROR
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
    screen.line(f"{render.many(len(done.theirs), 'commit')} of others {verb}.")
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


@click.command("policy", short_help="Show or set what others may commit.")
@click.argument("table")
@click.argument("policy", required=False, type=click.Choice(["freeze", "adopt"]))
@common
@click.pass_obj
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
        lambda screen: screen.line(f"Commits of others to {name}: {now}."),
        brief=[now],
    )


@click.command("fence", short_help="Keep writers out that bypass the catalog.")
@click.argument("table")
@click.option("--remove", is_flag=True, help="Take the fence away.")
@common
@click.pass_obj
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
