"""The command line. Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 unknown, 4 refused by a guard, 5 grants missing."""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from guestward import __version__
from guestward.cli.output import FAILED, UNKNOWN, USAGE, Answer, CommandError, put, say, say_error
from guestward.config import DEFAULT_FILE, Config, ConfigError, load
from guestward.model.task import bounded

if TYPE_CHECKING:
    from guestward.ports import Clock

Command = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage the way every other error is reported."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise CommandError("usage", bounded(message), f"{self.prog} --help", USAGE)

    def _print_message(self, message: str, file: Any = None) -> None:
        put(message.rstrip("\n"), file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    output = _wanted_output(words)
    try:
        args = _parser().parse_args(words, argparse.Namespace(command=_no_command, config=None, output="table"))
        command: Command = args.command
        return command(args)
    except CommandError as error:
        return say_error(error, output)
    except ConfigError as error:
        hint = "docs/configuration.md lists every key; another file is chosen with --config or $GUESTWARD_CONFIG"
        return say_error(CommandError("configuration", str(error), hint, USAGE), output)
    except KeyboardInterrupt:
        hint = "`guestward status` shows what is in force"
        return say_error(CommandError("interrupted", "interrupted before the end; what was begun may be done", hint, UNKNOWN), output)
    except Exception as error:  # noqa: BLE001 - the one edge at which a defect of ours is caught, so that a program gets its JSON
        if output == "table":
            traceback.print_exc()
        message = f"a defect in guestward: {type(error).__name__}: {bounded(str(error))}"
        return say_error(CommandError("defect", message, "please report it", FAILED), output)


def _wanted_output(words: Sequence[str]) -> str:
    """Known before the words are understood, so that a program gets JSON even where they are not."""
    found = "table"
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--":
            break
        if word == "--output" or word.startswith("--output="):
            found = following if word == "--output" else word.removeprefix("--output=")
    return "json" if found == "json" else "table"


def _parser() -> argparse.ArgumentParser:
    # Both may stand before or after the command; without a default here the later one does not undo the earlier.
    common = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--config", type=Path, metavar="FILE", help=f"configuration (default: $GUESTWARD_CONFIG or {DEFAULT_FILE})")
    common.add_argument("--output", choices=("table", "json"), help="for people (the default) or for programs")
    about = "Keeps the guests of an unattended Proxmox VE host up, and tells the truth about it."
    codes = "exit codes: 0 done, 1 failed, 2 usage, configuration or unknown VMID, 3 unknown, 4 refused by a guard, 5 grants missing"
    parser = _Parser(prog="guestward", description=about, epilog=codes, parents=[common])
    parser.add_argument("--version", action="version", version=f"guestward {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    def add(name: str, command: Command, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, parents=[common], help=help, description=help)
        sub.set_defaults(command=command)
        return sub

    add("run", _run, "run the agent in the foreground, for a systemd unit or a trial")
    check = add("check", _check, "read everything that the agent will read, and say what is wrong and what to do")
    check.add_argument(
        "--rights", nargs="+", metavar="PATH", help="only this: what the token may do, on these paths and wherever PVE lists something"
    )
    add("status", _status, "what the agent saw last, for every guest; exit code 1 when nobody guards them")
    add("explain", _explain, "why a guest was started or not: every guard and what it saw").add_argument("vmid", type=_vmid, metavar="VMID")
    locks = add("locks", _locks, "every lock of a guest of ours: whose it is, since when, and what recovery thinks of it")
    locks.add_argument("--dry-run", action="store_true", help="also the proof of each, and what is done next or would be; nothing is done")
    hold = add("hold", _hold, "start nothing for a while: one guest, or without a VMID the whole node")
    hold.add_argument("vmid", type=_vmid, metavar="VMID", nargs="?")
    hold.add_argument("--for", dest="how_long", default="2h", metavar="TIME", help='as in "30m", "2h" or "1d" (default: 2h)')
    hold.add_argument("--reason", default="", metavar="TEXT", help="shown wherever the hold is shown")
    add("release", _release, "end a hold or a claim: of one guest, or without a VMID of the whole node").add_argument(
        "vmid", type=_vmid, metavar="VMID", nargs="?"
    )
    add("rearm", _rearm, "give a guest all its start attempts again").add_argument("vmid", type=_vmid, metavar="VMID")
    _add_scratch(add("scratch", _no_command, "scratch guests, which restore tests leave behind: what is there, claims, teardown"), common)
    simulate = add("simulate", _simulate, "what the agent would do in a scenario of your own; touches nothing on this host")
    simulate.add_argument("file", type=Path, metavar="FILE", nargs="?", help="the scenario (docs/simulate.md)")
    simulate.add_argument("--verbs", action="store_true", help="list what may happen in a scenario, and end")
    add("demo", _demo, "watch the agent at work on a stand-in PVE host; changes nothing on this one")
    return parser


def _add_scratch(parser: argparse.ArgumentParser, common: _Parser) -> None:
    parser.set_defaults(command=lambda args: _missing(parser, args))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    def add(name: str, command: Command, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, parents=[common], help=help, description=help)
        sub.set_defaults(command=command)
        return sub

    add("list", _scratch_list, "every guest in the band, whether it is torn down, and why or why not")
    claim = add("claim", _scratch_claim, "say that a VMID of the band is in use for a while, and that what is there is ours")
    claim.add_argument("vmid", type=_vmid, metavar="VMID")
    claim.add_argument("--for", dest="how_long", default="2h", metavar="TIME", help='as in "30m", "2h" or "1d" (default: 2h)')
    claim.add_argument("--reason", default="", metavar="TEXT", help="shown wherever the claim is shown")
    teardown = add("teardown", _scratch_teardown, "have the agent look now, not in some minutes, and tear down what is left over")
    teardown.add_argument("vmid", type=_vmid, metavar="VMID", nargs="?")
    teardown.add_argument("--all", dest="everything", action="store_true", help="every guest in the band")
    teardown.add_argument("--dry-run", action="store_true", help="only say what is thought of each; nothing is changed")


def _vmid(text: str) -> int:
    if re.fullmatch(r"[1-9][0-9]{2,8}", text) is None:
        raise argparse.ArgumentTypeError(f"{bounded(ascii(text), 40)} is not a VMID (100 to 999999999)")
    return int(text)


def _config(args: argparse.Namespace) -> Config:
    chosen = args.config or os.environ.get("GUESTWARD_CONFIG") or DEFAULT_FILE
    return load(Path(chosen).absolute())


def _answer(args: argparse.Namespace, make: Callable[[Config, Clock], Answer]) -> int:
    from guestward.adapters.clock import HostClock
    from guestward.cli.caller import become_service_user

    become_service_user()
    config = _config(args)
    return say(make(config, HostClock(config.host.root)), args.output)


def _no_command(args: argparse.Namespace) -> int:
    return _missing(_parser(), args)


def _missing(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.output == "table":
        put(parser.format_help(), sys.stderr)
    raise CommandError("usage", "a command is missing", f"{parser.prog} --help", USAGE)


# Imports stand inside the commands: `status` starts in a fraction of the time without requests and APScheduler.


def _run(args: argparse.Namespace) -> int:
    from guestward import daemon
    from guestward.cli.caller import become_service_user

    become_service_user()
    try:
        config = _config(args)
    except ConfigError as error:
        return daemon.reject(error)
    return daemon.run(config)


def _check(args: argparse.Namespace) -> int:
    from guestward.cli.caller import become_service_user
    from guestward.cli.check import check
    from guestward.cli.rights import rights

    note = become_service_user()
    return rights(_config(args), args.rights, args.output) if args.rights else check(_config(args), args.output, note)


def _status(args: argparse.Namespace) -> int:
    from guestward.cli.show import status

    return _answer(args, status)


def _explain(args: argparse.Namespace) -> int:
    from guestward.cli.show import explain

    return _answer(args, lambda config, clock: explain(config, clock, args.vmid))


def _locks(args: argparse.Namespace) -> int:
    from guestward.cli.locks import locks

    return _answer(args, lambda config, clock: locks(config, clock, proof=args.dry_run))


def _hold(args: argparse.Namespace) -> int:
    from guestward.cli.caller import caller
    from guestward.cli.orders import hold

    by = caller()
    return _answer(args, lambda config, clock: hold(config, clock, args.vmid, args.how_long, args.reason, by))


def _release(args: argparse.Namespace) -> int:
    from guestward.cli.orders import release

    return _answer(args, lambda config, clock: release(config, clock, args.vmid))


def _rearm(args: argparse.Namespace) -> int:
    from guestward.cli.orders import rearm

    return _answer(args, lambda config, clock: rearm(config, clock, args.vmid))


def _scratch_list(args: argparse.Namespace) -> int:
    from guestward.cli.scratch import scratch_list

    return _answer(args, scratch_list)


def _scratch_claim(args: argparse.Namespace) -> int:
    from guestward.cli.caller import caller
    from guestward.cli.scratch import claim

    by = caller()
    return _answer(args, lambda config, clock: claim(config, clock, args.vmid, args.how_long, args.reason, by))


def _scratch_teardown(args: argparse.Namespace) -> int:
    from guestward.cli.scratch import teardown

    return _answer(args, lambda config, clock: teardown(config, clock, args.vmid, everything=args.everything, dry_run=args.dry_run))


def _simulate(args: argparse.Namespace) -> int:
    from guestward.cli.simulate import list_verbs, simulate

    if args.verbs:
        return list_verbs(args.output)
    if args.file is None:
        raise CommandError("usage", "FILE is missing", "guestward simulate --help", USAGE)
    return simulate(args.file, args.output)


def _demo(args: argparse.Namespace) -> int:
    from guestward.demo.play import play

    return play(args.output)
