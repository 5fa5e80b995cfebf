"""Episodes: realistic and hostile pieces of a time line, drawn with weights and overlapping freely.

Each one that begins a fault ends it too, minutes to a day later. What is still there at the end of all faults is for `heal`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from guestward.sim.guest import LOCKS
from guestward.sim.verbs import REFUSALS
from tests.soak.plan import BAND, DAY, HOUR, MINUTE, NODE, Plan, seconds
from tests.soak.toml_text import value_text

Draw = Callable[[Plan, float], None]
USERS = ("root@pam", "alice@pve", "ops@pam", "restic@pve!restore", "guestward-pve1@pve!agent")
FAILURES = (
    "storage 'nas' is not online",
    "start failed: QEMU exited with code 1",
    "start failed: org.freedesktop.systemd1.NoSuchUnit: Unit 101.scope not found",
    "can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout",
    "hookscript error for 101 on pre-start: exit code 1",
    "received interrupt",
    "interrupted by signal",
    "unable to read tail (got 0 bytes)",
    "CT is locked (backup)",
    "already running",
    "startup for container '101' failed",
)
SAID = ("OK", "OK", '"start failed"', '"job errors"', '"unexpected status"')
STATES = ("paused", "io-error", "prelaunch", "frozen")
ROUTES = (
    *(f"GET /nodes/{NODE}/lxc", f"GET /nodes/{NODE}/qemu", "GET /pools", "GET /access/permissions", "GET /cluster/resources"),
    *(f"GET /nodes/{NODE}/tasks", f"GET /nodes/{NODE}/tasks?source=active", f"GET /nodes/{NODE}/tasks?source=archive"),
    *(f"GET /nodes/{NODE}/tasks/UPID", f"POST /nodes/{NODE}", "POST /", "GET /", "/", f"/nodes/{NODE}"),
)
STATUSES = (400, 401, 403, 404, 429, 500, 501, 502, 503, 504, 595, 596, 599)
PRIVILEGES = (
    *((name, "/pool/guestward") for name in ("VM.Audit", "VM.PowerMgmt", "Pool.Audit")),
    ("Sys.Audit", f"/nodes/{NODE}"),
    ("Datastore.Audit", "/storage"),
    *((name, f"/vms/{BAND[0]}") for name in ("VM.Audit", "VM.Allocate")),
)
STRANGERS = tuple(f"grant {name} /pool/other" for name in ("VM.Audit", "VM.PowerMgmt"))  # whom the token sees, and could start
HELPER_FAILURES = (
    "can't lock file '/run/lock/lxc/pve-config-101.lock' - got timeout",
    "zfs error: dataset is busy",
    "interrupted by signal",
)
TASKS = ("startall", "stopall", "migrateall", "suspendall", "bulkstart", "aptupdate", "imgcopy", "vzdump")
GUEST_TASKS = ("vzsnapshot", "qmsnapshot", "vzmigrate", "qmmove", "vncproxy", "vzdump", "vzstop", "qmreboot", "resize", "hamigrate")


@dataclass(frozen=True, slots=True)
class Episode:
    """One kind of episode. weight: how often it is drawn, against the others."""

    name: str
    weight: float
    draw: Draw


EPISODES: list[Episode] = []


def episode(weight: float) -> Callable[[Draw], Draw]:
    """Put a function into the list of all episodes. It is called with the plan and the second at which the episode begins."""

    def register(draw: Draw) -> Draw:
        EPISODES.append(Episode(draw.__name__, weight, draw))
        return draw

    return register


# ---------------------------------------------------------------------------------------------------- guests that go down


@episode(8)
def death(plan: Plan, t: float) -> None:
    """A guest dies, and again, before or after it has run stably."""
    guest = plan.guest()
    for _ in range(plan.rng.randint(1, 4)):
        plan.at(t, f"die {guest}")
        t = plan.within(t + plan.span(20, 2 * HOUR))


@episode(3)
def mass_death(plan: Plan, t: float) -> None:
    """Many die at once, and no task tells."""
    for guest in plan.some(50):
        plan.at(t + plan.pick((0.0, 0.0, 1.0, 30.0)), f"die {guest}")


@episode(4)
def operator(plan: Plan, t: float) -> None:
    """Somebody stops a guest through PVE; it may be started again."""
    guest, by = plan.guest(), plan.pick(USERS)
    plan.at(t, f"stop {guest} by {by}")
    if plan.chance(0.5):
        plan.then(t, f"start {guest} by {plan.pick(USERS)}", 5, 12 * HOUR)


@episode(2)
def mass_stop(plan: Plan, t: float) -> None:
    """A clean-up, or a UPS: several are stopped within a minute, or a little more."""
    guests, by = plan.some(8), plan.pick(USERS)
    for guest in guests:
        t = plan.within(t + plan.rng.uniform(0, 100 / len(guests)))
        plan.at(t, f"stop {guest} by {by}")


@episode(4)
def reboot(plan: Plan, t: float) -> None:
    """A guest reboots, perhaps in the middle of its start or of a stop."""
    guest = plan.guest()
    plan.at(t, f"reboot {guest} {plan.pick(('inside', 'api'))}")
    if plan.chance(0.3):
        plan.at(t + plan.pick((0.0, 0.5, 1.0, 1.1)), f"{plan.pick(('die', 'stop', 'start', 'unlock'))} {guest}")


@episode(8)
def scripted(plan: Plan, t: float) -> None:
    """A guest of which the starts go wrong."""
    guest = plan.guest()
    plan.at(t, f"set {guest} start={value_text(start_script(plan))}")
    if plan.chance(0.4):
        plan.at(t, f"set {guest} start_takes={seconds(plan.span(0.1, 90))}")
        plan.then(t, f"set {guest} start_takes=1s")
    plan.at(t + plan.pick((0.0, 5.0)), f"die {guest}")
    mended = plan.then(t, f'set {guest} start=["ok"]', 5 * MINUTE, DAY)
    plan.at(mended, f"task end vzstart {guest}")
    plan.at(mended, f"task end qmstart {guest} {plan.pick(SAID)}")
    if plan.chance(0.5):
        plan.at(mended + plan.pick((0.0, 1.0, 60.0)), f"rearm {guest}")


def start_script(plan: Plan) -> list[str]:
    """One to four starts, each of any kind."""
    kinds = (
        *("ok", "ok: stays stopped", "hang", "lost before", "lost after", f"warnings: {plan.rng.randint(1, 9)}"),
        *(*(f"fail: {plan.pick(FAILURES)}" for _ in range(5)), f"flap {seconds(plan.span(0.5, 700))}"),
    )
    return [plan.pick(kinds) for _ in range(plan.rng.randint(1, 4))]


@episode(1)
def failing(plan: Plan, t: float) -> None:
    """The next start fails, of whatever guest. Not too often: an order that nobody used is still there at the end."""
    if plan.failures < min(2, plan.watchdog.get("attempts", 3) - 1):
        plan.failures += 1
        plan.at(t, f'fail next start "{plan.pick(FAILURES)}"')
        plan.at(t, f"die {plan.guest()}")


@episode(2)
def not_working(plan: Plan, t: float) -> None:
    """A guest runs and does no work."""
    guest = plan.guest()
    plan.at(t, f"set {guest} state={plan.pick(STATES)}")
    plan.then(t, plan.pick((f"set {guest} state=running", f"die {guest}", f"stop {guest}")))


# ---------------------------------------------------------------------------------------------------- backups and locks


@episode(6)
def incident(plan: Plan, t: float) -> None:
    """The guest reboots, or goes down, in the middle of a backup that succeeds."""
    guest = plan.guest()
    if plan.chance(0.3):
        plan.at(t, f"set {guest} replication=true")
        plan.then(t, f"set {guest} replication=false", MINUTE, HOUR)
    plan.at(t, f"backup begin {plan.pick(('stop', 'snapshot'))} {guest}")
    again = plan.within(t + plan.pick((0.05, 0.1, 0.15, 0.2, 0.25, 1.3, 5.0, plan.span(1, HOUR))))
    plan.at(again, f"{plan.pick((f'reboot {guest} inside', f'reboot {guest} api', f'die {guest}', f'stop {guest}'))}")
    _backup_ends(plan, again, [guest])


@episode(5)
def backup(plan: Plan, t: float) -> None:
    """A job for some guests, perhaps two that queue."""
    for _ in range(plan.pick((1, 1, 1, 2, 3))):
        guests = plan.some(plan.pick((1, 4)))
        plan.at(t, f"backup begin {plan.pick(('stop', 'snapshot'))} {' '.join(map(str, guests))}")
        _backup_ends(plan, t, guests)
        if plan.chance(0.3):
            plan.then(t, f"die {plan.pick(guests)}", 0.5, HOUR)
        t = plan.within(t + plan.span(0.5, HOUR))


def _backup_ends(plan: Plan, t: float, guests: list[int]) -> None:
    """One after the other, all at once, or by a kill that leaves lock, pid file and perhaps the archive process."""
    kind = plan.rng.random()
    if kind < 0.25:
        archive = f"archive {seconds(min(plan.span(1, 6 * HOUR), max(1.0, plan.end - t)))} " if plan.chance(0.5) else ""
        killed = plan.within(t + plan.span(1, 5 * HOUR))
        plan.at(killed, f"backup kill {archive if killed < t + HOUR else ''}{plan.pick(guests)}")
        for guest in guests:
            plan.then(killed, f"unlock {guest}", 10, DAY)
            plan.then(killed, f"snapshot {guest} vzdump gone", 10, DAY)
    elif kind < 0.6:
        plan.then(t, f"backup end {plan.pick(guests)}", 1, 5 * HOUR)
        plan.then(t, "backup end", 5 * HOUR, 8 * HOUR)
    else:
        for guest in guests:
            t = plan.then(t, f"backup end {guest}", 1, 3 * HOUR)


def _killed(plan: Plan, t: float, guest: int) -> float:
    """A vzdump dies, and the guest with it, or before it. Returns when; nobody but the agent mends what it leaves."""
    mode = plan.pick(("stop", "snapshot"))
    plan.at(t, f"backup begin {mode} {guest}")
    killed = plan.within(t + plan.pick((0.15, 0.25, 2.0, plan.span(2, 10 * MINUTE))))
    if plan.chance(0.7):
        plan.at(plan.pick((t + 1.0, killed, killed + plan.span(0.1, 200))), plan.pick((f"die {guest}", f"reboot {guest} inside")))
    plan.at(killed, f"backup kill {guest}")
    return killed


@episode(3)
def left_behind(plan: Plan, t: float) -> None:
    """A vzdump dies; what recovery then asks of the helper may fail."""
    for step in ("unlock", "delete-snapshot", "delete-snapshot"):
        if plan.chance(0.25):
            plan.at(t, f'fail next {step} "{plan.pick(HELPER_FAILURES)}"')
    killed = _killed(plan, t, plan.guest())
    if plan.chance(0.3):
        plan.then(killed, plan.pick((f"rearm {plan.guest()}", "agent restart", "agent lose-state")), 10, HOUR)
    plan.then(killed, "agent restart", 10, 6 * HOUR)


@episode(2)
def left_without_help(plan: Plan, t: float) -> None:
    """A vzdump dies while the root helper is away, slow, silent, or refuses everything."""
    killed = _killed(plan, t, plan.guest())
    trouble = (f"helper refuse {plan.pick(REFUSALS)}", f"helper slow {seconds(plan.span(1, 700))}", "helper hang", "helper down")
    plan.at(plan.pick((t, killed + 20.0, killed + 61.0)), plan.pick(trouble))
    plan.then(killed, "helper up", 30, plan.pick((10 * MINUTE, 6 * HOUR)))


@episode(2)
def left_a_race(plan: Plan, t: float) -> None:
    """A vzdump dies, and something happens right after the agent has asked for the unlock, or for the delete of the snapshot."""
    guest, delay = plan.guest(), plan.pick((0.0, 0.1, 0.5, 1.0, 2.9, 5.0, 30.0))
    act = plan.pick(("unlock", "delete-snapshot"))
    pairs = (
        *(("agent kill", "agent restart"),) * 3,
        *(("agent restart", ""), ("agent lose-state", "agent restart"), ("api down", "api up"), ("helper hang", "helper up")),
        *((f"lock {guest} {plan.pick(LOCKS)}", f"unlock {guest}"), (f"hold {guest} for 60s", f"release {guest}")),
        *((f"backup begin {plan.pick(('stop', 'snapshot'))} {guest}", f"backup end {guest}"), (f"start {guest}", ""), (f"die {guest}", "")),
        *((f"migrate {guest} away", f"migrate {guest} here"), (f"set {guest} pool=other", f"set {guest} pool=guestward")),
        *((f"ha {guest} started", f"ha {guest} off"), ("quorum lost", "quorum back"), (f"rearm {guest}", "")),
        *((f"snapshot {guest} vzdump gone", ""), (f"snapshot {guest} auto1 prepare", f"snapshot {guest} auto1 gone")),
        *(
            (f"set {guest} replication=true", f"set {guest} replication=false"),
            (f"task begin vzmigrate {guest}", f"task end vzmigrate {guest}"),
        ),
    )
    first, second = plan.pick(pairs)
    plan.after(guest, first, delay, act)
    if second:
        plan.after(guest, second, delay + plan.span(0.5, 600), act)
    _killed(plan, t, guest)


@episode(1)
def left_by_a_cleanup(plan: Plan, t: float) -> None:
    """A vzdump ends well although it could not delete its snapshot, and leaves the lock of that."""
    guest = plan.guest()
    plan.at(t, 'fail next backup-cleanup "zfs error: dataset is busy"')
    plan.at(t, f"backup begin snapshot {guest}")
    ended = plan.then(t, f"backup end {guest}", 1, HOUR)
    if plan.chance(0.5):
        plan.at(ended + plan.pick((0.0, 1.0, 60.0)), f"die {guest}")


@episode(3)
def locked(plan: Plan, t: float) -> None:
    """A guest is locked, of whatever kind, and goes down before or under it."""
    guest = plan.guest()
    plan.at(t, f"lock {guest} {plan.pick(LOCKS)}")
    if plan.chance(0.7):
        plan.at(t + plan.pick((-1.0, 0.0, 1.0, 90.0)), f"{plan.pick(('die', 'die', 'stop'))} {guest}")
    ended = plan.then(t, f"unlock {guest}")
    if plan.chance(0.2):
        plan.at(ended, f"lock {guest} {plan.pick(LOCKS)}")
        plan.then(ended, f"unlock {guest}")


@episode(2)
def snapshot(plan: Plan, t: float) -> None:
    """A snapshot, with and without the lock that belongs to it."""
    guest, name = plan.guest(), plan.pick(("vzdump", "before_upgrade", "auto1"))
    state = plan.pick(("", " prepare", " delete", " rollback"))
    plan.at(t, f"snapshot {guest} {name}{state}")
    if plan.chance(0.4):
        plan.at(t, f"lock {guest} {plan.pick(('snapshot', 'snapshot-delete', 'rollback'))}")
        plan.then(t, f"unlock {guest}", 5, HOUR)
    plan.then(t, f"snapshot {guest} {name} gone", 5, DAY)


# ---------------------------------------------------------------------------------------------------- guests that come, go and change


@episode(3)
def created(plan: Plan, t: float) -> None:
    """A guest that is made while the agent watches: not to be started before somebody else did."""
    guest = plan.new_vmid()
    plan.at(t, f"create {guest} {plan.pick(('lxc', 'lxc', 'qemu'))}")
    plan.then(t, f"set {guest} pool=guestward", 0.5, HOUR)
    plan.then(t, f"set {guest} onboot=true", 0.5, HOUR)
    if plan.chance(0.6):
        t = plan.then(t, f"start {guest} by {plan.pick(USERS)}", 1, 6 * HOUR)
        t = plan.then(t, f"die {guest}", 1, 12 * HOUR)
    if plan.chance(0.4):
        plan.then(t, f"destroy {guest}", 1, DAY)


@episode(2)
def destroyed(plan: Plan, t: float) -> None:
    """A guest is destroyed, running or not; another may be made under its VMID, perhaps of the other kind."""
    guest = plan.guest()
    if plan.chance(0.5):
        plan.at(t - plan.pick((0.1, 1.0, 45.0, 300.0)), f"stop {guest}")
    plan.at(t, f"destroy {guest}")
    plan.at(t + plan.pick((0.5, 30.0, 70.0, 4000.0)), f"{plan.pick((f'restore {guest}', f'create {guest} lxc', f'create {guest} qemu'))}")
    plan.then(t, f"set {guest} pool=guestward", 1, 2 * HOUR)
    plan.then(t, f"set {guest} onboot=true", 1, 2 * HOUR)


@episode(3)
def restored(plan: Plan, t: float) -> None:
    """A backup is restored, over a guest or as a new one; the restore may be killed."""
    guest = plan.new_vmid()
    killed = plan.chance(0.3)
    plan.at(t - plan.pick((0.5, 20.0, 120.0)), f"stop {guest}")
    plan.at(t, f"restore {guest} by {plan.pick(USERS)}{' killed' if killed else ''}")
    if killed:
        t = plan.then(t, f"unlock {guest}", MINUTE, DAY)
    plan.at(t, f"set {guest} pool=guestward")
    plan.at(t, f"set {guest} onboot=true")
    if plan.chance(0.5):
        plan.then(t, f"start {guest} by {plan.pick(USERS)}", 1, DAY)


@episode(2)
def in_the_band(plan: Plan, t: float) -> None:
    """A scratch guest, with all that would have it started elsewhere."""
    guest = plan.pick(BAND)
    token = plan.pick(USERS)
    plan.at(t, plan.pick((f"create {guest} lxc", f"restore {guest} by {token}", f"restore {guest} by {token} killed")))
    for trait in ("pool=guestward", "onboot=true", "tags=guestward-scratch"):
        plan.at(t, f"set {guest} {trait}")
    if plan.chance(0.7):
        plan.at(t, f"start {guest}")
        plan.then(t, f"die {guest}", 1, 3 * HOUR)
    plan.then(t, f"destroy {guest}", 10 * MINUTE, DAY)


@episode(3)
def migrated(plan: Plan, t: float) -> None:
    """A guest moves away and comes back, running or not."""
    guest = plan.guest()
    plan.at(t, f"migrate {guest} away")
    if plan.chance(0.4):
        plan.then(t, f"die {guest}", 0.1, HOUR)
    plan.then(t, f"migrate {guest} here", 0.5, DAY)


@episode(3)
def changed(plan: Plan, t: float) -> None:
    """Somebody edits a configuration, while the guest runs or is down."""
    guest = plan.guest()
    key, now, back = plan.pick(
        (
            *(("onboot", word, "true") for word in ("false", '"0"', '"no"', '"off"', '"maybe"', '"yes"', '"On"', '"TRUE"')),
            *(("pool", word, "guestward") for word in ('""', "other", "guestward2")),
            *(("template", "true", "false"), ("protection", "true", "false")),
            *(("tags", '"a;b"', '""'), ("startup", '"order=1,up=3"', '""'), ("startup", '"up=7"', '"order=2"')),
            *(
                ("name", '"new name"', f"guest{guest}"),
                ("storage", '["nas", "local"]', "local"),
                ("identity", f"again{int(t)}", f"b{int(t)}"),
            ),
        )
    )
    plan.at(t, f"set {guest} {key}={now}")
    if plan.chance(0.6):
        plan.at(t + plan.pick((-40.0, -1.0, 0.0, 20.0)), f"die {guest}")
    plan.then(t, f"set {guest} {key}={back}", 1, DAY)


@episode(2)
def high_availability(plan: Plan, t: float) -> None:
    """HA takes a guest over, for a while."""
    guest = plan.guest()
    plan.at(t, f"ha {guest} {plan.pick(('started', 'stopped', 'ignored', 'null', 'disabled', 'error', 'fence'))}")
    plan.at(t + plan.pick((-31.0, 0.0, 1.0, 600.0)), f"die {guest}")
    plan.then(t, f"ha {guest} off")


@episode(2)
def storage(plan: Plan, t: float) -> None:
    """A storage goes away, and guests that need it go down with it."""
    name = plan.pick(plan.storages)
    for guest in plan.some(3):
        plan.at(t - plan.pick((0.0, 3600.0)), f'set {guest} storage=["{name}"]')
        plan.at(t + plan.pick((0.0, 10.0)), f"die {guest}")
    plan.at(t, f"storage {name} offline")
    plan.then(t, f"storage {name} online")


# ---------------------------------------------------------------------------------------------------- PVE and the host


@episode(5)
def api(plan: Plan, t: float) -> None:
    """The API is down, slow, silent, or says what it should not."""
    routes = (*ROUTES, f"GET /nodes/{NODE}/lxc/{plan.guest()}", f"GET /nodes/{NODE}/qemu/{plan.guest()}/config")
    route, once = plan.pick(routes), plan.pick(("", " once"))
    trouble = plan.pick(
        (
            *("api down", f"api slow {seconds(plan.span(0.1, 60))}", f"api slow {seconds(plan.span(1, 20))} {route}"),
            *("api hang", f"api hang {route}", f"api hang POST /nodes/{NODE}"),
            *(f"api fault {route} {plan.pick(STATUSES)}{once}",) * 4,
            *(f"api answer {route} {plan.pick(('null', 'html', 'empty'))}{once}",) * 2,
        )
    )
    if plan.chance(0.6):
        plan.at(t + plan.pick((-65.0, -31.0, -1.0, 0.0, 10.0)), f"die {plan.guest()}")
    plan.at(t, trouble)
    plan.then(t, "api up", 0.5, plan.pick((10 * MINUTE, DAY)))


@episode(3)
def grants(plan: Plan, t: float) -> None:
    """A privilege is taken away, or hidden by one on a deeper path; or other people's guests show."""
    if plan.chance(0.3):
        for do in STRANGERS:
            plan.at(t, do)
            if plan.chance(0.5):
                plan.then(t, do.replace("grant", "revoke"))
        return
    privilege, path = plan.pick(PRIVILEGES)
    who = plan.pick(("", " user", " token"))
    plan.at(t, f"revoke {privilege} {path}{who}")
    if plan.chance(0.2):
        plan.at(t, f"grant {privilege} / {plan.pick(('user', 'token'))} nopropagate")
    if plan.chance(0.5):
        plan.at(t + plan.pick((-50.0, 0.0, 1.0)), f"die {plan.guest()}")
    plan.then(t, f"grant {privilege} {path}{who}{' nopropagate' if path.startswith('/nodes') else ''}")


@episode(2)
def quorum(plan: Plan, t: float) -> None:
    """The cluster loses quorum."""
    plan.at(t, "quorum lost")
    plan.at(t + plan.pick((-31.0, 0.0, 5.0)), f"die {plan.guest()}")
    plan.then(t, "quorum back", 1, DAY)


@episode(1)
def maintenance(plan: Plan, t: float) -> None:
    """The node is in maintenance."""
    plan.at(t, "maintenance on")
    plan.at(t + plan.pick((-31.0, 0.0, 5.0)), f"die {plan.guest()}")
    plan.then(t, "maintenance off", 1, DAY)


@episode(2)
def host(plan: Plan, t: float) -> None:
    """The host crashes, reboots, or begins to stop; it is up again a while later."""
    phase = plan.pick(("booting", "reboot", "stopping"))
    plan.at(t, f"host {phase}")
    if phase == "stopping" and plan.chance(0.7):
        t = plan.then(t, f"host {plan.pick(('reboot', 'booting'))}", 1, 10 * MINUTE)
    if plan.chance(0.3):
        plan.at(t + plan.span(1, 600), f"die {plan.guest()}")
    plan.then(t, "host up", 2, plan.pick((5 * MINUTE, 6 * HOUR)))


@episode(2)
def clock(plan: Plan, t: float) -> None:
    """The wall clock jumps by seconds to years, and often back."""
    delta = plan.span(1, plan.pick((120, DAY, 3 * 365 * DAY)))
    sign = plan.pick("+-")
    if abs(plan.wall + delta) > 10 * 365 * DAY:
        return
    delta = min(delta, 360 * DAY)
    plan.wall += delta
    plan.at(t, f"clock wall {sign}{seconds(delta)}")
    if plan.chance(0.5):
        plan.at(t + plan.pick((-45.0, 0.0, 3.0)), plan.pick((f"die {plan.guest()}", f"stop {plan.guest()}")))
    if plan.chance(0.6):
        plan.then(t, f"clock wall {'-' if sign == '+' else '+'}{seconds(delta)}", 1, 2 * DAY)


@episode(1)
def suspend(plan: Plan, t: float) -> None:
    """The host sleeps."""
    plan.at(t, f"clock suspend {seconds(plan.span(1, 12 * HOUR))}")
    if plan.chance(0.5):
        plan.at(t + plan.pick((-20.0, 0.0)), f"die {plan.guest()}")


@episode(3)
def tasks(plan: Plan, t: float) -> None:
    """A task of somebody runs, on the node or on a guest."""
    guest = plan.guest()
    task = plan.pick((plan.pick(TASKS), f"{plan.pick(GUEST_TASKS)} {guest}"))
    plan.at(t, f"task begin {task}")
    if plan.chance(0.6):
        plan.at(t + plan.pick((-40.0, 0.0, 1.0)), f"die {guest}")
    plan.then(t, f"task end {task} {plan.pick(SAID)}")


@episode(2)
def helper(plan: Plan, t: float) -> None:
    """The root helper is away, slow, silent, lies, or refuses everything."""
    slow, refuses = f"helper slow {seconds(plan.span(1, 90))}", f"helper refuse {plan.pick(REFUSALS)}"
    plan.at(t, plan.pick(("helper down", slow, "helper hang", "helper lie", refuses)))
    plan.then(t, "helper up")


# ---------------------------------------------------------------------------------------------------- the agent and its operator


@episode(4)
def agent(plan: Plan, t: float) -> None:
    """The agent ends, or loses all that it knew, and comes back."""
    kind = plan.pick(("kill", "kill", "restart", "lose-state", "storm"))
    if kind == "storm":
        for _ in range(plan.rng.randint(3, 12)):
            plan.at(t, "agent restart")
            t = plan.within(t + plan.span(0.5, 300))
        return
    plan.at(t, f"agent {kind}")
    if plan.chance(0.5):
        plan.at(
            t + plan.pick((-31.0, -1.0, 0.0, 5.0)), plan.pick((f"die {plan.guest()}", f"stop {plan.guest()}", f"destroy {plan.guest()}"))
        )
    plan.then(t, "agent restart", 1, plan.pick((10 * MINUTE, DAY)))


@episode(2)
def holds(plan: Plan, t: float) -> None:
    """An operator holds a guest or the node."""
    scope = plan.pick(("", f" {plan.guest()}"))
    plan.at(t, f"hold{scope} for {seconds(plan.span(1, DAY))}")
    plan.at(t + plan.pick((-31.0, 0.0, 60.0)), f"die {plan.guest() if not scope else scope.strip()}")
    if plan.chance(0.5):
        plan.then(t, f"release{scope}", 1, DAY)


@episode(1)
def rearms(plan: Plan, t: float) -> None:
    """An operator re-arms guests, whether they need it or not."""
    for guest in plan.some(3):
        plan.at(t, f"rearm {guest}")


@episode(2)
def repairs(plan: Plan, t: float) -> None:
    """Somebody goes through all guests and mends what stands still."""
    for guest in plan.vmids:
        t = plan.within(t + plan.pick((0.0, 0.5, 20.0)))
        for do in (f"unlock {guest}", f'set {guest} start=["ok"]', f"rearm {guest}", f"start {guest} by {plan.pick(USERS)}"):
            if plan.chance(0.8):
                plan.at(t, do)


@episode(3)
def races(plan: Plan, t: float) -> None:
    """Something happens right after the agent's own start of a guest, whenever it starts it."""
    guest, delay = plan.guest(), plan.pick((0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 30.0))
    pairs = (
        *(("agent kill", "agent restart"),) * 3,
        *(("agent lose-state", "agent restart"), ("agent restart", "agent restart"), ("api down", "api up")),
        *(("quorum lost", "quorum back"), ("maintenance on", "maintenance off"), (f"hold {guest} for 60s", f"release {guest}")),
        *((f"lock {guest} backup", f"unlock {guest}"), (f"migrate {guest} away", f"migrate {guest} here")),
        *((f"ha {guest} started", f"ha {guest} off"), (f"backup begin stop {guest}", f"backup end {guest}")),
        *((f"set {guest} onboot=false", f"set {guest} onboot=true"), (f"stop {guest}", ""), (f"die {guest}", "")),
        *((f"reboot {guest} api", ""), (f"restore {guest}", ""), (f"clock suspend {seconds(plan.span(1, 600))}", "")),
        *((f"api fault GET /nodes/{NODE}/tasks 500", "api up"), (f"api hang GET /nodes/{NODE}", "api up")),
    )
    first, second = plan.pick(pairs)
    plan.after(guest, first, delay)
    if second:
        plan.after(guest, second, delay + plan.span(0.5, 600))
    plan.at(t, f"die {guest}")


@episode(1)
def vanishing(plan: Plan, t: float) -> None:
    """A guest that is destroyed right after the agent has started it, perhaps because the host goes down: so that happens once."""
    guest = 390 + len(plan.fragile)
    plan.fragile.add(guest)
    traits = {"vmid": guest, "kind": plan.pick(("lxc", "qemu")), "onboot": True, "pool": "guestward", "status": "stopped"}
    plan.guests.append({**traits, "start_takes": seconds(plan.span(0.1, 30))})
    delay = plan.pick((0.0, 0.5, 1.0, 10.0))
    if plan.chance(0.4):
        plan.after(guest, f"host {plan.pick(('reboot', 'booting', 'stopping'))}", delay)
        plan.after(guest, "host up", delay + plan.span(1, 300))
    plan.after(guest, f"destroy {guest}", delay)
    if plan.chance(0.5):
        plan.at(t, f"restore {guest} by {plan.pick(USERS)}")
