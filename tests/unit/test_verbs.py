"""The verbs of a time line: each does what it says, and says what is wrong with its words."""

from __future__ import annotations

from typing import Any, cast

import pytest

from guestward.model.helper import HelperCode
from guestward.sim import verbs
from guestward.sim.run import Simulation
from guestward.sim.verbs import VERBS, VerbError, parse
from guestward.sim.world import World

Call = tuple[Any, ...]


class Recorder:
    """Stands for a simulation and everything in it: notes each call, and each attribute that is set, with the way to it."""

    node, wall, boottime = "pve1", 1.9e9, 1e5

    def __init__(self, calls: list[Call], way: str = "") -> None:
        self.__dict__.update(calls=calls, way=way)

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(self.calls, f"{self.way}.{name}".lstrip("."))

    def __setattr__(self, name: str, value: object) -> None:
        self.calls.append((f"{self.way}.{name}", value))

    def __call__(self, *args: object, **named: object) -> None:
        self.calls.append((self.way, *args, *([named] if named else [])))


def does(text: str) -> list[Call]:
    calls: list[Call] = []
    parse(text).run(cast(Simulation, Recorder(calls)))
    return calls


# Every form of every verb, and what becomes of it.
FORMS: dict[str, Call] = {
    "die 101": ("world.die", 101),
    "stop 101": ("world.stop", 101, "root@pam"),
    "stop 101 by ops@pve!cli": ("world.stop", 101, "ops@pve!cli"),
    "start 101": ("world.start", 101, "root@pam"),
    "start 101 by a.b@ldap-1": ("world.start", 101, "a.b@ldap-1"),
    "start 101 by x@ad": ("world.start", 101, "x@ad"),
    "start 101 by me@example.com@ad!ci": ("world.start", 101, "me@example.com@ad!ci"),
    "reboot 101 inside": ("world.reboot", 101, "inside"),
    "reboot 101 api": ("world.reboot", 101, "api"),
    "create 102 qemu": ("world.create", 102, "qemu"),
    "create 102 lxc": ("world.create", 102, "lxc"),
    "destroy 101": ("world.destroy", 101),
    "migrate 101 away": ("world.migrate", 101, "pve2"),
    "migrate 101 here": ("world.migrate", 101, "pve1"),
    "start 101 by me@pve!x": ("world.start", 101, "me@pve!x"),
    "restore 101": ("world.restore", 101, "root@pam", {"killed": False}),
    "restore 101 by t@pve!restore": ("world.restore", 101, "t@pve!restore", {"killed": False}),
    "restore 101 by t@pve!restore killed": ("world.restore", 101, "t@pve!restore", {"killed": True}),
    "restore 101 killed by t@pve!restore": ("world.restore", 101, "t@pve!restore", {"killed": True}),
    "restore 990003 killed": ("world.restore", 990003, "root@pam", {"killed": True}),
    "lock 101 snapshot-delete": ("world.lock", 101, "snapshot-delete"),
    "unlock 101": ("world.unlock", 101),
    "set 101 onboot=true": ("world.set", 101, "onboot", True),
    'set 101 onboot="yes"': ("world.set", 101, "onboot", "yes"),
    "set 101 onboot=yes": ("world.set", 101, "onboot", "yes"),
    "set 101  onboot = false # now": ("world.set", 101, "onboot", False),
    "set 101 'onboot=\"no\"'": ("world.set", 101, "onboot", "no"),
    'set 101 "onboot=false"': ("world.set", 101, "onboot", False),
    "set 101 onboot = 1": ("world.set", 101, "onboot", 1),
    "set 101 onboot=0": ("world.set", 101, "onboot", 0),
    'set 101 onboot="0"': ("world.set", 101, "onboot", "0"),
    'set 101 \'storage=["a", "b"]\'': ("world.set", 101, "storage", ["a", "b"]),
    'set 101 startup="order=1,up=5"': ("world.set", 101, "startup", "order=1,up=5"),
    'set 101 name="a b"': ("world.set", 101, "name", "a b"),
    "set 101 name='a b'": ("world.set", 101, "name", "a b"),
    "set 101 'name=a b'": ("world.set", 101, "name", "a b"),
    'set 101 "name"="a b"': ("world.set", 101, "name", "a b"),
    'set 101 name=a" "b': ("world.set", 101, "name", "a b"),
    "set 101 name=\"it\"'s a b'": ("world.set", 101, "name", "its a b"),
    "set 101 'start=fail: no space'": ("world.set", 101, "start", "fail: no space"),
    "set 101 startup=order=1,up=5": ("world.set", 101, "startup", "order=1,up=5"),
    'set 101 storage=["a","b"]': ("world.set", 101, "storage", ["a", "b"]),
    "set 101 storage=['a', 'b']": ("world.set", 101, "storage", ["a", "b"]),
    "set 101 storage=nas": ("world.set", 101, "storage", "nas"),
    'set 101 start=["fail: no space", "ok"]': ("world.set", 101, "start", ["fail: no space", "ok"]),
    'set 101 start="fail: it\'s full"': ("world.set", 101, "start", "fail: it's full"),
    'set 101 snapshots=[{name = "vzdump", state = "delete"}]': ("world.set", 101, "snapshots", [{"name": "vzdump", "state": "delete"}]),
    "set 101 start_takes=3s": ("world.set", 101, "start_takes", "3s"),
    "set 101 state=io-error": ("world.set", 101, "state", "io-error"),
    "set 101 state=frozen": ("world.set", 101, "state", "frozen"),
    "set 101 replication=true": ("world.set", 101, "replication", True),
    'set 101 lock=""': ("world.set", 101, "lock", ""),
    'set 101 lock="of a later PVE"': ("world.set", 101, "lock", "of a later PVE"),
    "set 101 status=stopped": ("world.set", 101, "status", "stopped"),
    "ha 101 started": ("world.ha", 101, "started"),
    "ha 101 off": ("world.ha", 101, None),
    "snapshot 101 vzdump": ("world.snapshot", 101, "vzdump", ""),
    "snapshot 101 vzdump prepare": ("world.snapshot", 101, "vzdump", "prepare"),
    "snapshot 101 vzdump gone": ("world.snapshot", 101, "vzdump", None),
    "task begin startall": ("world.task", "startall", ""),
    "task begin qmigrate 101": ("world.task", "qmigrate", "101"),
    "task begin vzdump 555": ("world.task", "vzdump", "555"),
    "task end startall": ("world.task_end", "startall", "", "OK"),
    "task end vzdump 101": ("world.task_end", "vzdump", "101", "OK"),
    'task end vzdump 101 "unexpected status"': ("world.task_end", "vzdump", "101", "unexpected status"),
    "task end stopall 'job errors'": ("world.task_end", "stopall", "", "job errors"),
    "backup begin stop 101": ("world.backup_begin", 101, {"mode": "stop"}),
    "backup begin snapshot 101 102 103": ("world.backup_begin", 101, 102, 103, {"mode": "snapshot"}),
    "backup end": ("world.backup_end", None),
    "backup end 101": ("world.backup_end", 101),
    "backup kill": ("world.backup_kill", None, 0.0),
    "backup kill 101": ("world.backup_kill", 101, 0.0),
    "backup kill archive 5m": ("world.backup_kill", None, 300.0),
    "backup kill archive 90s 101": ("world.backup_kill", 101, 90.0),
    "grant VM.Audit /pool/guestward": ("world.acl.grant", "VM.Audit", "/pool/guestward", "both", {"propagate": True}),
    "grant VM.Audit / token": ("world.acl.grant", "VM.Audit", "/", "token", {"propagate": True}),
    "grant NoAccess /vms/102": ("world.acl.grant", "NoAccess", "/vms/102", "both", {"propagate": True}),
    "grant Sys.Audit /nodes/pve1 user nopropagate": ("world.acl.grant", "Sys.Audit", "/nodes/pve1", "user", {"propagate": False}),
    "grant Sys.Audit /nodes/pve1 nopropagate": ("world.acl.grant", "Sys.Audit", "/nodes/pve1", "both", {"propagate": False}),
    "revoke VM.GuestAgent.Audit /vms/101": ("world.acl.revoke", "VM.GuestAgent.Audit", "/vms/101", "both"),
    "revoke VM.Allocate /vms/990000 token nopropagate": ("world.acl.revoke", "VM.Allocate", "/vms/990000", "token"),
    'fail next delete-snapshot "lvremove: in use"': ("world.fail_next", "delete-snapshot", "lvremove: in use"),
    'fail next backup-cleanup "dataset is busy"': ("world.fail_next", "backup-cleanup", "dataset is busy"),
    "api down": ("world.api.down",),
    "api up": ("world.api.up",),
    "api slow 5s": ("world.api.slow", 5.0, ""),
    "api slow 0.5s /cluster": ("world.api.slow", 0.5, "/cluster"),
    "api slow 5s GET /nodes/pve1/lxc": ("world.api.slow", 5.0, "GET /nodes/pve1/lxc"),
    "api slow 5s GET /api2/json/nodes/pve1/lxc": ("world.api.slow", 5.0, "GET /nodes/pve1/lxc"),
    "api hang /api2/json": ("world.api.hang", "/"),
    "api hang /api2/json/": ("world.api.hang", "/"),
    "api fault '/api2/json/pools?poolid=guestward' 403": ("world.api.fault", "/pools?poolid=guestward", 403, {"once": False}),
    "api hang": ("world.api.hang", ""),
    'api hang "POST /nodes"': ("world.api.hang", "POST /nodes"),
    "api fault /nodes/pve1/lxc 595": ("world.api.fault", "/nodes/pve1/lxc", 595, {"once": False}),
    "api fault GET /pools?poolid=guestward 403 once": ("world.api.fault", "GET /pools?poolid=guestward", 403, {"once": True}),
    "api answer /cluster/resources null": ("world.api.answer", "/cluster/resources", "null", {"once": False}),
    'api answer "GET /access/permissions" html once': ("world.api.answer", "GET /access/permissions", "html", {"once": True}),
    "api answer / empty": ("world.api.answer", "/", "empty", {"once": False}),
    "host booting": ("host", "booting"),
    "host up": ("host", "up"),
    "host stopping": ("host", "stopping"),
    "host reboot": ("host", "reboot"),
    "quorum lost": ("world.quorate", False),
    "quorum back": ("world.quorate", True),
    "maintenance on": ("world.maintenance", True),
    "maintenance off": ("world.maintenance", False),
    "storage nas-1 offline": ("world.storage", "nas-1", {"online": False}),
    "storage nas-1 online": ("world.storage", "nas-1", {"online": True}),
    "clock wall +3h": ("world.clock_wall", 10800.0),
    "clock wall -10m": ("world.clock_wall", -600.0),
    "clock suspend 2h": ("world.suspend", 7200.0),
    "agent kill": ("kill",),
    "agent restart": ("restart",),
    "agent lose-state": ("lose_state",),
    "hold": ("hold", None, 7200.0),
    "hold 101": ("hold", 101, 7200.0),
    "hold for 30m": ("hold", None, 1800.0),
    "hold 101 for 1d": ("hold", 101, 86400.0),
    "claim 990003": ("claim", 990003, 7200.0),
    "claim 990003 for 5h": ("claim", 990003, 18000.0),
    "release": ("release", None),
    "release 101": ("release", 101),
    "rearm 101": ("rearm", 101),
    "helper down": ("world.helper.down",),
    "helper up": ("world.helper.up",),
    "helper slow 3s": ("world.helper.slow", 3.0),
    "helper refuse busy": ("world.helper.refuse", HelperCode.BUSY),
    "helper lie": ("world.helper.lie",),
    "helper hang": ("world.helper.hang",),
}


@pytest.mark.parametrize(("text", "call"), FORMS.items(), ids=FORMS.keys())
def test_a_verb_does_what_it_says(text: str, call: Call) -> None:
    assert does(text) == [call]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_in_these_tests(name: str) -> None:
    assert any(text == name or text.startswith(f"{name} ") for text in FORMS)


@pytest.mark.parametrize("text", FORMS)
def test_every_verb_can_be_said_to_a_real_simulation_twice(text: str) -> None:
    world = World()
    for vmid in (101, 102, 103):
        world.add(vmid)
    sim = Simulation(world)
    deed = parse(text)
    for moment in (10.0, 20.0):
        if all(vmid in world.guests for vmid in deed.needs):
            deed.run(sim)
        sim.run(moment)
    sim.run(200.0)


@pytest.mark.parametrize(
    ("text", "names", "needs", "makes"),
    [
        ("die 101", (101,), (101,), ()),
        ("destroy 101", (101,), (), ()),
        ("release 101", (101,), (), ()),
        ("create 101 lxc", (), (), (101,)),
        ("restore 101", (), (), (101,)),
        ("task begin vzdump 101", (), (), ()),
        ("backup begin stop 101 102", (101, 102), (101, 102), ()),
        ("hold", (), (), ()),
    ],
)
def test_which_guests_a_verb_is_about(text: str, names: tuple[int, ...], needs: tuple[int, ...], makes: tuple[int, ...]) -> None:
    deed = parse(text)
    assert (deed.text, deed.names, deed.needs, deed.makes) == (text, names, needs, makes)


def test_another_node_is_never_our_own() -> None:
    calls: list[Call] = []
    recorder = Recorder(calls)
    recorder.__dict__["world"] = world = Recorder(calls, "world")
    world.__dict__["node"] = "pve2"
    parse("migrate 101 away").run(cast(Simulation, recorder))
    assert calls == [("world.migrate", 101, "pve1")]


# Words that do not fit, and what is said of them. `usage: ...` follows where there is such a verb.
WRONG = {
    "": "a verb is missing",
    "''": "there is no verb",
    "dye 101": "there is no verb dye; did you mean die?",
    "DIE 101": "there is no verb DIE",
    "frobnicate": "there is no verb frobnicate",
    "stop '101": "a quote is not closed",
    "backup": "after backup comes one of begin, end, kill",
    "backup kil": "after backup comes one of begin, end, kill; did you mean kill?",
    "api": "after api comes one of down, up, slow, hang, fault, answer",
    "clock forward 3h": "after clock comes one of wall, suspend",
    "die": "VMID is missing; usage: die VMID",
    "die 101 102": '"102" is too much; usage: die VMID',
    "die ct101": '"ct101" is not a VMID (100 to 999999999); usage: die VMID',
    "die 99": '"99" is not a VMID (100 to 999999999)',
    "die 0101": '"0101" is not a VMID (100 to 999999999)',
    "die 1000000000": '"1000000000" is not a VMID (100 to 999999999)',
    "die １０１": '"１０１" is not a VMID (100 to 999999999)',
    "die -101": '"-101" is not a VMID (100 to 999999999)',
    "stop 101 root@pam": '"root@pam" is too much; usage: stop VMID [by USER]',
    "stop 101 by": "USER, as in root@pam or name@pve!token (a realm has 2 characters or more) is missing",
    "stop 101 by root": '"root" is not USER, as in root@pam or name@pve!token (a realm has 2 characters or more); usage: stop',
    "stop 101 by 'a b@pam'": '"a b@pam" is not USER',
    "stop 101 by ab@pve!": '"ab@pve!" is not USER',
    f"stop 101 by {'ü' * 50}@pam": f'"{"ü" * 50}@pam" is longer than 100 characters',
    "restore 101 by ab@p": '"ab@p" is not USER, as in root@pam or name@pve!token (a realm has 2 characters or more)',
    "reboot 101": "way to reboot is missing; usage: reboot VMID inside|api",
    "reboot 101 outside": '"outside" is no way to reboot; did you mean inside?; usage: reboot VMID inside|api',
    "create 102": "kind of guest is missing; usage: create VMID lxc|qemu",
    "create 102 kvm": '"kvm" is no kind of guest',
    "migrate 101 pve2": '"pve2" is no direction',
    "restore 101 dead": '"dead" is too much; usage: restore VMID [by TOKEN] [killed]',
    "lock 101": "KIND of lock is missing",
    "lock 101 bakcup": '"bakcup" is no KIND of lock; did you mean backup?',
    "unlock": "VMID is missing",
    "set": "VMID is missing; usage: set VMID KEY=VALUE",
    "set 101": "KEY=VALUE is missing",
    "set 101 onboot": "VALUE is missing",
    "set 101 onboot=": "VALUE is missing",
    "set 101 =true": 'there is no guest key ""',
    "set 101 on_boot=true": 'there is no guest key "on_boot"; did you mean onboot?',
    "set 101 vmid=102": "a guest's vmid cannot be changed",
    "set 101 kind=qemu": "a guest's kind cannot be changed",
    "set 101 onboot=2": "onboot: must be true or false, 1 or 0, or text as it stands in the file",
    "set 101 onboot='\"no\"'": 'onboot: has quotes in its quotes: "no"',
    "set 101 onboot=flase": 'onboot: there is no "flase"; did you mean false?',
    "set 101 'onboot=1' now": "\"'onboot=1' now\" is not one KEY=VALUE",
    "set 101 'onboot=1": "a quote is not closed",
    "set 101 template=no": "template: must be true or false, without quotes",
    "set 101 lock=bakcup": 'lock: there is no "bakcup"; did you mean backup?',
    "set 101 startup=soon": 'startup: must be as PVE has it, like "order=1,up=5"',
    "set 101 onboot=true, false": '"true, false" is no TOML value, and no single word',
    "set 101 storage=[nas]": '"[nas]" is no TOML value, and no single word',
    'set 101 name="web': '""web" is no TOML value, and no single word',
    "set 101 onboot=true\nname='x'": "VALUE must be one value, on one line",
    "set 101 state=asleep": "state: must be one of running, paused",
    "set 101 start=nope": 'start: "nope" is none of ok',
    f"set 101 start={'x' * 5000}": f'start: "{"x" * 77}..." is none of ok',
    "set 101 name=a b": '"a b" is no TOML value, and no single word',
    "set 101 name=\"a\" 'b c'": '""a" \'b c\'" is no TOML value, and no single word',
    "set 101 'name= '": "VALUE is missing",
    "set 101 name=' '": "name: must not be blank",
    'set 101 pool="a b"': 'pool: "a b" is no name of a pool: letters, digits, . - and _, a letter first',
    "set 1 state=paused": '"1" is not a VMID',
    "ha 101": "STATE is missing; usage: ha VMID STATE|off",
    "ha 101 Started": '"Started" is not STATE',
    "ha 101 start": '"start" is no STATE of HA; did you mean started?',
    "snapshot 101": "NAME is missing",
    "snapshot 101 vzdump half": '"half" is too much; usage: snapshot VMID NAME [prepare|delete|rollback|gone]',
    "task begin": "TYPE of a task, as in vzdump (40 characters at most) is missing; usage: task begin TYPE [VMID]",
    "task begin a:b": '"a:b" is not TYPE of a task, as in vzdump (40 characters at most)',
    f"task begin {'x' * 41}": f'"{"x" * 41}" is not TYPE of a task, as in vzdump (40 characters at most)',
    "task begin vzdump 101 OK": '"OK" is too much',
    "task end vzdump 101 ''": "STATUS must be printable text, and not empty",
    "task end vzdump 101 unexpected status": '"status" is too much',
    "backup begin 101": '"101" is no mode; usage: backup begin stop|snapshot VMID...',
    "backup begin stop": "VMID is missing",
    "backup begin stop 101 101": "a VMID stands there twice",
    "backup begin suspend 101": '"suspend" is no mode',
    "backup end OK": '"OK" is too much',
    "backup kill archive": "DURATION is missing",
    "backup kill archive 101": '"101": a duration is a number with a unit',
    "backup kill 101 archive 5m": '"archive" is too much; usage: backup kill [archive DURATION] [VMID]',
    "grant VM.Audits /pool/x": '"VM.Audits" is no privilege of PVE; did you mean VM.Audit?',
    "grant VM.Audit pool/x": '"pool/x" is not PATH of PVE\'s access control, as in /pool/guestward',
    "revoke VM.Audit /pools/x": '"/pools/x" is not PATH of PVE\'s access control, as in /pool/guestward or /vms/101',
    "revoke VM.Audit /vms/lxc/101": '"/vms/lxc/101" is not PATH of PVE\'s access control',
    "grant VM.Audit": "PATH of PVE's access control, as in /pool/guestward or /vms/101 is missing",
    "revoke VM.Audit / both": '"both" is too much',
    "fail next": "VERB is missing; there are start, stop, ",
    "fail next begin x": '"begin" is no VERB; there are start, stop, ',
    "fail next unlok x": '"unlok" is no VERB; did you mean unlock?',
    "fail next start": "TEXT is missing",
    "fail next start no space": '"space" is too much; usage: fail next VERB "TEXT"',
    "fail start x": "after fail comes one of next",
    "api down now": '"now" is too much; usage: api down',
    "api slow": "DURATION is missing",
    "api slow 5": '"5": a duration is a number with a unit',
    "api slow 400d": '"400d": must be from 0s to 366d',
    "api slow 5s GET": "the path of ROUTE is missing",
    "api slow 5s nodes": '"nodes" is no ROUTE: a path like /nodes/pve1/lxc, optionally after GET, POST, PUT, DELETE',
    "api hang PATCH /nodes": '"PATCH" is no ROUTE',
    "api hang GET /api2/extjs/nodes": '"GET /api2/extjs/nodes" is no ROUTE: what follows /api2/json is one, like /nodes/pve1/lxc',
    "api hang https://pve1:8006/api2/json/nodes": '"https://pve1:8006/api2/json/nodes" is no ROUTE',
    "api fault /nodes": "STATUS (400 to 599) is missing",
    "api fault /nodes 200": '"200" is not STATUS (400 to 599)',
    "api fault 500": '"500" is no ROUTE',
    "api fault /nodes 500 twice": '"twice" is too much; usage: api fault ROUTE STATUS [once]',
    "api answer /nodes": "answer is missing",
    "api answer /nodes nothing": '"nothing" is no answer',
    "helper": "after helper comes one of down, up, slow, refuse, lie, hang",
    "helper refuse": "code of a refusal is missing; there are bad_request, ",
    "helper refuse ok": '"ok" is no code of a refusal; there are bad_request, ',
    "helper slow": "DURATION is missing",
    "host": "phase of a host is missing",
    "host down": '"down" is no phase of a host',
    "quorum gone": '"gone" is no state of quorum',
    "maintenance": "state of maintenance is missing",
    "storage nas": "state of a storage is missing",
    "storage nas off": '"off" is no state of a storage',
    "clock wall 3h": '"3h" is not +DURATION or -DURATION, as in +3h or -10m',
    "clock wall +3": '"3": a duration is a number with a unit',
    "clock suspend +3h": '"+3h": a duration is a number with a unit',
    "agent stop": '"stop" is no thing to do to the agent',
    "hold 101 30m": '"30m" is too much; usage: hold [VMID] [for DURATION]',
    "hold for": "DURATION is missing",
    "claim": "VMID is missing",
    "hold for 0s": '"0s": must be from 1s to 366d',
    "hold 12": '"12" is not a VMID',
    "release node": '"node" is too much',
    "rearm": "VMID is missing; usage: rearm VMID",
    "die \x1b[2J": '"[2J" is not a VMID',
    f"die {'9' * 5000}": f'"{"9" * 77}..." is not a VMID',
}


@pytest.mark.parametrize(("text", "reason"), WRONG.items(), ids=[text[:40] for text in WRONG])
def test_words_that_do_not_fit_are_refused(text: str, reason: str) -> None:
    with pytest.raises(VerbError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith(reason.rstrip()), message
    assert message.isprintable()
    assert len(message) < 400


def test_an_error_ends_with_the_usage() -> None:
    for found in VERBS.values():
        with pytest.raises(VerbError) as caught:
            parse(f"{found.name} 101 102 103 stop stop stop stop" if not found.raw else f"{found.name} x y")
        assert str(caught.value).endswith(f"; usage: {found.form}")


def test_adding_a_verb_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "VERBS", dict(VERBS))

    @verbs.verb("hibernate", "VMID", "It sleeps.")
    def hibernate(words: verbs.Words) -> verbs.Act:
        guest = words.guest()
        return lambda sim: sim.world.lock(guest, "suspended")

    assert does("hibernate 101") == [("world.lock", 101, "suspended")]
    with pytest.raises(VerbError, match="usage: hibernate VMID"):
        parse("hibernate")
