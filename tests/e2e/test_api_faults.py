"""What the API does to the agent: no answer, wrong answers, lost answers, lost rights. Never a blind start, never silence."""

from __future__ import annotations

import pytest

from guestward.demo.pvehost import PveHost

from .agent import Agent, has, wait_until
from .side_by_side import Stage, scenario

START = "POST /nodes/pve1/lxc/101/status/start"
LIST = "GET /nodes/pve1/lxc"


def posts(host: PveHost) -> int:
    """How often a start was sent."""
    return sum(method == "POST" for method, _ in host.requests_seen())


def guarded(stage: Stage, *start: str, **settings: dict[str, object]) -> Agent:
    """An agent that guards one container."""
    stage.host.add_guest(101, start=start or ("ok",), start_takes=0.1)
    return stage.agent(**settings)


def aborts(agent: Agent, after: int = 0) -> list[tuple[str, int]]:
    return [(record["level"], record["aborted_in_a_row"]) for record in agent.events("sweep_aborted", after=after)]


# ------------------------------------------------------------------ lists


@scenario
def test_one_500_while_a_container_dies_aborts_nothing(stage: Stage) -> None:
    """Recorded, timelines summary 2."""
    agent = guarded(stage)
    stage.host.fault(LIST, 500, message="failed to read from command socket: Connection reset by peer", times=1)
    agent.sweeps(2)
    assert aborts(agent) == [] and agent.swept("aborted") == 0


@scenario
def test_a_list_that_stays_wrong_is_said_three_times_and_guards_nothing(stage: Stage) -> None:
    """WARN at the first, ERROR at the third, INFO at the end; the guest that died meanwhile comes back afterwards."""
    host = stage.host
    agent = guarded(stage)
    host.fault(LIST, 500)
    agent.wait_for("sweep_aborted")
    host.die(101)
    agent.wait_for("sweep_aborted", level="error")
    agent.sweeps(2, "aborted")
    assert aborts(agent) == [("warn", 1), ("error", 3)]
    assert host.effects() == [] and agent.events("guest_down") == [] and agent.events("guest_forgotten") == []
    status = agent.cli("status")
    assert status.code == 1 and "ABORTED" in status.out
    host.clear_faults()
    assert agent.wait_for("sweep_resumed")["level"] == "info"
    agent.wait_for("start_result", outcome="started")
    assert host.effects() == [("start", 101)]


WRONG_LISTS = (
    ("status", 500, "got timeout"),
    ("status", 595, "pvedaemon"),
    ("html", 200, "not PVE's JSON"),
    ("html", 502, "502"),
    ("empty", 200, "not PVE's JSON"),
    ("null", 200, "a list"),
    ("truncated", 200, "broke off"),
    ("reset", 200, "closed the connection"),
)


@pytest.mark.parametrize("half", [0, 1])
@scenario
def test_no_answer_that_is_not_pves_passes_for_a_list(stage: Stage, half: int) -> None:
    """C64: each aborts the sweep, says what came, and ends nothing."""
    host = stage.host
    agent = guarded(stage)
    for kind, status, words in WRONG_LISTS[half::2]:
        mark = agent.mark
        host.fault(LIST, status, kind=kind)
        assert has(words)(agent.wait_for("sweep_aborted", after=mark)["reason"]), kind
        host.clear_faults()
        agent.wait_for("sweep_resumed", after=mark)
    host.die(101)
    agent.wait_for("start_result", outcome="started")
    assert agent.events("guest_forgotten") == [] and host.effects() == [("start", 101)]


@scenario
def test_a_list_that_hangs_is_given_up_and_guests_are_served_later(stage: Stage) -> None:
    """C27: the process lives, no two sweeps at once, and what hangs does not hang for ever."""
    host = stage.host
    agent = guarded(stage, pve={"timeout": "1s"})
    host.fault(LIST, kind="hang")
    assert has("in time")(agent.wait_for("sweep_aborted")["reason"])
    host.die(101)
    agent.wait_for("sweep_aborted", level="error")
    assert agent.cli("status").code == 1
    host.clear_faults()
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", outcome="started")
    assert host.effects() == [("start", 101)]
    assert {record["event"] for record in agent.events(level="error")} == {"sweep_aborted"}


@scenario
def test_a_list_that_misses_a_pool_member_is_not_believed(stage: Stage) -> None:
    """C01: 200, and one guest too few."""
    host = stage.host
    host.add_guest(102)
    agent = guarded(stage)
    key = ("GET", "/nodes/{node}/lxc")
    whole = host._api._handlers[key]

    async def short(call: object) -> object:
        return [row for row in await whole(call) if row["vmid"] != 102]  # type: ignore[arg-type, attr-defined]

    host._do(host._api._handlers.__setitem__, key, short)
    assert has("lxc/102", "in no list")(agent.wait_for("sweep_aborted")["reason"])
    host.die(101)
    agent.sweeps(2, "aborted")
    assert host.effects() == [] and agent.events("guest_forgotten") == []
    host._do(host._api._handlers.__setitem__, key, whole)
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", vmid=101, outcome="started")
    assert agent.events("guest_forgotten") == []


@scenario
def test_pvedaemon_is_down_and_comes_back(stage: Stage) -> None:
    host = stage.host
    agent = guarded(stage)
    host.fault("/nodes", 595, message="Connection refused")
    assert has("pvedaemon")(agent.wait_for("sweep_aborted")["reason"])
    host.clear_faults()
    agent.wait_for("sweep_resumed")


@scenario
def test_pveproxy_is_down_at_the_start_and_the_agent_waits_for_it(stage: Stage) -> None:
    """C102: an API that is down is no reason to end."""
    host = stage.host
    host.add_guest(101, status="stopped", start_takes=0.1)
    host.pveproxy(False)
    agent = stage.agent()
    assert has("refuses connections", "pveproxy")(agent.wait_for("sweep_aborted")["reason"])
    agent.wait_for("sweep_aborted", level="error")
    host.pveproxy(True)
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", outcome="started")


@scenario
def test_pmxcfs_is_down_and_nobody_is_forgotten(stage: Stage) -> None:
    host = stage.host
    agent = guarded(stage)
    host.pmxcfs(False)
    assert has("pmxcfs")(agent.wait_for("sweep_aborted")["reason"])
    host.die(101)
    agent.sweeps(2, "aborted")
    host.pmxcfs(True)
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", outcome="started")
    assert agent.events("guest_forgotten") == [] and host.effects() == [("start", 101)]


# ----------------------------------------------------------------- logins


@scenario
def test_401_and_back(stage: Stage) -> None:
    host = stage.host
    agent = guarded(stage)
    host.auth(False)
    assert has("401")(agent.wait_for("sweep_aborted")["reason"])
    host.auth(True)
    agent.wait_for("sweep_resumed")
    host.die(101)
    agent.wait_for("start_result", outcome="started")


@scenario
def test_401_for_long_is_few_logins_and_a_new_secret_in_the_file_is_taken_up(stage: Stage) -> None:
    """C65: three failed logins, then silence, lest fail2ban shuts the host out; a restart is not needed."""
    host = stage.host
    host.add_guest(101, status="stopped", start_takes=0.1)
    agent = stage.agent_of()
    wrong = "0badc0de" * 4
    agent.secrets.add(wrong)
    host.token_file.write_text(wrong + "\n")
    with agent:
        agent.wait_for("sweep_aborted", level="error")
        agent.sweeps(4, "aborted")
        assert len(host.requests_seen()) == 3
        host.token_file.write_text(host.token_secret + "\n")
        agent.wait_for("sweep_resumed")
        agent.wait_for("start_result", outcome="started")


@scenario
def test_no_token_file_is_said_and_mended_without_a_restart(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101)
    agent = stage.agent_of()
    host.token_file.unlink()
    with agent:
        assert has(str(host.token_file), "does not exist")(agent.wait_for("sweep_aborted")["reason"])
        assert host.requests_seen() == []
        host.token_file.write_text(host.token_secret + "\n")
        agent.wait_for("sweep_resumed")


# ----------------------------------------------------------------- starts


@scenario
def test_403_on_start_is_a_failed_attempt_that_says_which_privilege(stage: Stage) -> None:
    host = stage.host
    agent = guarded(stage)
    host.fault(START, 403, message="Permission check failed (/vms/101, VM.PowerMgmt)", times=1)
    host.die(101)
    result = agent.wait_for("start_result", attempt=1)
    assert result["outcome"] == "failed" and has("403", "VM.PowerMgmt")(result["reason"])
    assert agent.wait_for("start_result", attempt=2)["outcome"] == "started"
    assert host.effects() == [("start", 101)] and posts(host) == 2


LOST_ANSWERS = {
    101: ("status", 595, "pvedaemon"),
    102: ("status", 596, "596"),
    103: ("reset", 200, "closed the connection"),
    104: ("html", 200, "not PVE's JSON"),
    105: ("null", 200, "something else than a task"),
    106: ("empty", 200, "not PVE's JSON"),
}


@scenario
def test_a_start_whose_answer_is_lost_is_unknown_and_is_not_sent_again_blindly(stage: Stage) -> None:
    """C20: it counts as one attempt, and the next one waits for its end and the back-off."""
    host = stage.host
    for vmid, (kind, status, _) in LOST_ANSWERS.items():
        host.add_guest(vmid, start_takes=0.1)
        host.fault(f"POST /nodes/pve1/lxc/{vmid}/status/start", status, kind=kind, times=1)
    agent = stage.agent(watchdog={"start_timeout": "10s", "parallel": 6})
    for vmid in LOST_ANSWERS:
        host.die(vmid)
    for vmid, (_, _, words) in LOST_ANSWERS.items():
        attempt = agent.wait_for("start_attempt", vmid=vmid, attempt=1)
        assert attempt["upid"] == "" and has(words)(attempt["message"])
    agent.sweeps(2)
    assert posts(host) == 6
    for vmid in LOST_ANSWERS:
        result = agent.wait_for("start_result", vmid=vmid, attempt=1)
        assert (result["outcome"], result["level"]) == ("unknown", "warn")
        assert agent.wait_for("start_result", vmid=vmid, attempt=2)["outcome"] == "started"
    assert sorted(host.effects()) == [("start", vmid) for vmid in LOST_ANSWERS] and posts(host) == 12


@pytest.mark.parametrize("kind", ["reset_after", "truncated"])
@scenario
def test_a_start_whose_answer_is_lost_after_its_effect_is_found_and_followed(stage: Stage, kind: str) -> None:
    host = stage.host
    agent = guarded(stage)
    host.fault(START, kind=kind, times=1)
    host.die(101)
    assert agent.wait_for("start_attempt")["upid"] == ""
    result = agent.wait_for("start_result")
    assert result["outcome"] == "started" and has("vzstart:101")(result["upid"])
    agent.sweeps(2)
    assert host.effects() == [("start", 101)] and posts(host) == 1


@scenario
def test_lost_before_and_lost_after_are_one_effect_each(stage: Stage) -> None:
    host = stage.host
    agent = guarded(stage, "lost before", "lost after", watchdog={"start_timeout": "5s"})
    host.die(101)
    assert agent.wait_for("start_result", attempt=1)["outcome"] == "unknown"
    assert agent.wait_for("start_result", attempt=2)["outcome"] == "started"
    assert host.effects() == [("start", 101)] and posts(host) == 2


@scenario
def test_a_start_that_hangs_delays_no_other_guest(stage: Stage) -> None:
    host = stage.host
    host.add_guest(102, start_takes=0.1)
    agent = guarded(stage, "hang", "ok", watchdog={"start_timeout": "15s"})
    host.die(101)
    agent.wait_for("start_attempt", vmid=101)
    host.die(102)
    agent.wait_for("start_result", vmid=102, outcome="started")
    assert agent.events("start_result", vmid=101) == []
    result = agent.wait_for("start_result", vmid=101, attempt=1)
    assert result["outcome"] == "unknown" and has("deadline")(result["reason"])
    agent.wait_for("guest_waiting", vmid=101, guard="task")  # as long as that task runs no other start is sent
    agent.sweeps(3)
    assert posts(host) == 2
    host.task_end("vzstart", "unexpected status", 101)
    assert agent.wait_for("start_result", vmid=101, attempt=2)["outcome"] == "started"


@scenario
def test_a_task_that_says_ok_is_no_running_guest(stage: Stage) -> None:
    """Effects are verified: what the task says is not believed."""
    host = stage.host
    agent = guarded(stage, "ok: stays stopped", "ok")
    host.die(101)
    result = agent.wait_for("start_result", attempt=1)
    assert result["outcome"] == "failed" and has("does not run")(result["reason"])
    assert agent.wait_for("start_result", attempt=2)["outcome"] == "started"


@scenario
def test_pvedaemon_restarts_in_the_middle_of_a_start(stage: Stage) -> None:
    """Timelines 10a: it kills the task and refuses calls for 4 s. Nobody knows, so it is unknown, and the next attempt comes."""
    host = stage.host
    host.add_guest(101, start_takes=3)
    agent = stage.agent(watchdog={"start_timeout": "8s"})
    host.die(101)
    agent.wait_for("start_attempt", attempt=1, upid=has("vzstart"))
    host.pvedaemon_restart(2)
    result = agent.wait_for("start_result", attempt=1)
    assert result["outcome"] == "unknown"
    assert agent.wait_for("start_result", attempt=2)["outcome"] == "started"
    assert host.effects() == [("start", 101)] * 2 and posts(host) == 2


# ----------------------------------------------------------------- rights


@scenario
def test_a_lost_vm_audit_is_no_empty_host(stage: Stage) -> None:
    """C01: both lists are 200 and empty."""
    host = stage.host
    agent = guarded(stage)
    host.revoke("VM.Audit", "/pool/guestward")
    assert has("VM.Audit on /pool/guestward")(agent.wait_for("sweep_aborted")["reason"])
    host.die(101)
    agent.sweeps(3, "aborted")
    lost = agent.events("grant_lost")
    assert [(e["level"], e["path"], e["privilege"]) for e in lost] == [("error", "/pool/guestward", "VM.Audit")]
    assert agent.metrics()['permission_ok{path="/pool/guestward",privilege="VM.Audit"}'] == 0
    assert host.effects() == [] and agent.events("guest_forgotten") == []
    host.grant("VM.Audit", "/pool/guestward")
    agent.wait_for("grant_restored", privilege="VM.Audit")
    agent.wait_for("start_result", outcome="started")
    assert agent.metrics()['permission_ok{path="/pool/guestward",privilege="VM.Audit"}'] == 1


@scenario
def test_without_sys_audit_nobody_knows_of_backups_so_nothing_is_started(stage: Stage) -> None:
    """C02: the task list is short, and still a 200."""
    host = stage.host
    agent = guarded(stage, watchdog={"heartbeat_every": 1})
    host.revoke("Sys.Audit", "/nodes/pve1")
    assert agent.wait_for("grant_lost")["privilege"] == "Sys.Audit"
    agent.sweeps(1)
    blind = agent.mark
    host.backup_begin(101, "stop")  # a backup that the token cannot see; here the host's own witnesses can
    host.backup_kill()
    host.unlock(101)
    told = ("guest_down", "guest_waiting")  # a look may fall between two of the lines above
    wait_until(lambda: any(agent.events(event, vmid=101, guard="backup_unknown") for event in told))
    agent.sweeps(3)
    assert host.effects() == [] and agent.events("heartbeat", after=blind) == []
    assert len(agent.events("grant_lost")) == 1 and len(agent.events("sweep_incomplete")) == 1
    assert agent.swept("incomplete") >= 3 and agent.swept("aborted") == 0
    host.grant("Sys.Audit", "/nodes/pve1", propagate=False)
    agent.wait_for("grant_restored", privilege="Sys.Audit")
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", outcome="started")
    assert host.effects() == [("start", 101)]


# ----------------------------------------------------------- configuration


@scenario
def test_an_unknown_node_name_is_explained(stage: Stage) -> None:
    agent = guarded(stage, pve={"node": "pve7"})
    assert has("[pve] node")(agent.wait_for("sweep_aborted")["reason"])
    agent.wait_for("sweep_aborted", level="error")
    assert agent.events("guest_forgotten") == []


@scenario
def test_an_environment_that_wants_to_lead_it_astray_is_ignored(stage: Stage) -> None:
    """C69, C79: proxies, CA bundles and time zones of somebody else."""
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    nowhere = str(stage.folder / "nowhere.pem")
    agent = stage.agent(
        {
            "TZ": "Europe/Nowhere",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "ALL_PROXY": "http://127.0.0.1:9",
            "REQUESTS_CA_BUNDLE": nowhere,
            "CURL_CA_BUNDLE": nowhere,
            "SSL_CERT_FILE": nowhere,
            "NOTIFY_SOCKET": str(stage.folder / "nobody-listens"),
        }
    )
    host.die(101)
    agent.wait_for("start_result", outcome="started")
    assert agent.events("sweep_aborted") == []
