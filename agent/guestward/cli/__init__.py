"""The command line. Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 unknown, 4 refused by a guard, 5 grants missing."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from guestward import __version__
from guestward.cli.output import USAGE, Answer, CommandError, say, say_error
from guestward.config import DEFAULT_FILE, Config, ConfigError, load

Command = Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage the way every other error is reported."""

    def error(self, message: str) -> NoReturn:
        raise CommandError("usage", message, f"{self.prog} --help", USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    output = _wanted_output(words)
    try:
        args = _parser().parse_args(words)
        if args.command is None:
            _parser().print_help()
            return USAGE
        command: Command = args.command
        return command(args)
    except CommandError as error:
        return say_error(error, output)
    except ConfigError as error:
        hint = "docs/configuration.md lists every key; `guestward check` reads everything that the agent will read"
        return say_error(CommandError("configuration", str(error), hint, USAGE), output)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 3


def _wanted_output(words: Sequence[str]) -> str:
    """Known before the words are understood, so that a program gets JSON even where they are not."""
    joined = " ".join(words)
    return "json" if "--output json" in joined or "--output=json" in joined else "table"


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument("--config", type=Path, metavar="FILE", help=f"configuration (default: $GUESTWARD_CONFIG or {DEFAULT_FILE})")
    common.add_argument("--output", choices=("table", "json"), default="table", help="for people or for programs")
    parser = _Parser(prog="guestward", description="Keeps the guests of an unattended Proxmox VE host up, and tells the truth about it.")
    parser.add_argument("--version", action="version", version=f"guestward {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)

    def add(name: str, command: Command, help: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, parents=[common], help=help, description=help)
        sub.set_defaults(command=command)
        return sub

    add("run", _run, "run the agent in the foreground (systemd does this)")
    add("check", _check, "read everything that the agent will read, and say what is wrong and what to do")
    add("status", _status, "what the agent saw last, for every guest")
    add("explain", _explain, "why a guest was started or not: every guard and what it saw").add_argument("vmid", type=_vmid, metavar="VMID")
    hold = add("hold", _hold, "start nothing for a while: one guest, or without a VMID the whole node")
    hold.add_argument("vmid", type=_vmid, metavar="VMID", nargs="?")
    hold.add_argument("--for", dest="how_long", default="2h", metavar="TIME", help='as in "30m", "2h" or "1d" (default: 2h)')
    hold.add_argument("--reason", default="", metavar="TEXT", help="shown wherever the hold is shown")
    add("release", _release, "end a hold").add_argument("vmid", type=_vmid, metavar="VMID", nargs="?")
    add("rearm", _rearm, "give a guest all its start attempts again").add_argument("vmid", type=_vmid, metavar="VMID")
    add("demo", _demo, "watch the agent at work on a stand-in PVE host; changes nothing on this one")
    return parser


def _vmid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 100 <= int(text) <= 999999999) or text != str(int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a VMID (100 to 999999999)")
    return int(text)


def _config(args: argparse.Namespace) -> Config:
    chosen = args.config or os.environ.get("GUESTWARD_CONFIG") or DEFAULT_FILE
    return load(Path(chosen).absolute())


def _answer(args: argparse.Namespace, make: Callable[[Config], Answer]) -> int:
    from guestward.cli.caller import become_service_user

    become_service_user()
    return say(make(_config(args)), args.output)


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

    become_service_user()
    return check(_config(args), args.output)


def _status(args: argparse.Namespace) -> int:
    from guestward.adapters.clock import HostClock
    from guestward.cli.show import status

    return _answer(args, lambda config: status(config, HostClock(config.host.root)))


def _explain(args: argparse.Namespace) -> int:
    from guestward.adapters.clock import HostClock
    from guestward.cli.show import explain

    return _answer(args, lambda config: explain(config, HostClock(config.host.root), args.vmid))


def _hold(args: argparse.Namespace) -> int:
    from guestward.adapters.clock import HostClock
    from guestward.cli.caller import caller
    from guestward.cli.orders import hold

    by = caller()
    return _answer(args, lambda config: hold(config, HostClock(config.host.root), args.vmid, args.how_long, args.reason, by))


def _release(args: argparse.Namespace) -> int:
    from guestward.adapters.clock import HostClock
    from guestward.cli.orders import release

    return _answer(args, lambda config: release(config, HostClock(config.host.root), args.vmid))


def _rearm(args: argparse.Namespace) -> int:
    from guestward.adapters.clock import HostClock
    from guestward.cli.orders import rearm

    return _answer(args, lambda config: rearm(config, HostClock(config.host.root), args.vmid))


def _demo(args: argparse.Namespace) -> int:
    from guestward.demo.play import play

    return play(args.output)
