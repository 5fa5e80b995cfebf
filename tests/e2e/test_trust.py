"""The token is shown to nobody but the API that the configuration names."""

from __future__ import annotations

from .agent import has
from .side_by_side import Stage, scenario


@scenario
def test_a_renewed_certificate_of_the_same_ca_goes_unnoticed(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent()
    host.renew_certificate()
    agent.sweeps(2)
    host.die(101)
    agent.wait_for("start_result", outcome="started")
    assert agent.events("sweep_aborted") == []


@scenario
def test_a_new_ca_in_the_ca_file_is_read_again(stage: Stage) -> None:
    """C69: `pvecm updatecerts` replaces both."""
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent()
    host.renew_certificate(new_ca=True)
    agent.sweeps(2)
    host.die(101)
    agent.wait_for("start_result", outcome="started")
    assert agent.events("sweep_aborted") == []


@scenario
def test_a_pinned_fingerprint_is_enough(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, start_takes=0.1)
    agent = stage.agent(pve={"ca_file": None, "fingerprint": host.fingerprint})
    host.die(101)
    agent.wait_for("start_result", outcome="started")
    assert agent.events("sweep_aborted") == []
    host.renew_certificate()  # a pin knows no successor: said, and mended by the new pin
    assert has("pinned", "expected", "seen")(agent.wait_for("sweep_aborted")["reason"])
    agent.configure(pve={"fingerprint": host.fingerprint})
    agent.hup()
    agent.wait_for("config_reloaded")
    agent.wait_for("sweep_resumed")


@scenario
def test_an_untrusted_api_never_sees_the_token_and_the_agent_stays_up(stage: Stage) -> None:
    host = stage.host
    host.add_guest(101, status="stopped", start_takes=0.1)
    other = str(stage.another_host("other").ca_file)
    agent = stage.agent(pve={"ca_file": other})
    assert has("not signed by", other)(agent.wait_for("sweep_aborted")["reason"])
    agent.wait_for("sweep_aborted", level="error")
    for words, settings in (
        ("cannot be read", {"ca_file": str(stage.folder / "missing.pem")}),
        ("holds no certificate", {"ca_file": str(host.token_file)}),
        ("not the pinned one", {"ca_file": None, "fingerprint": "ab" * 32}),
        ("not signed by a CA that this system trusts", {"ca_file": None, "fingerprint": None}),
        ("does not bear the name", {"ca_file": str(host.ca_file), "server_name": "elsewhere.example"}),
    ):
        mark = agent.mark
        agent.configure(pve=settings)
        agent.hup()
        agent.wait_for("config_reloaded", after=mark)
        agent.sweeps(1, "aborted")
        assert has(words)(agent.cli("status", "--output", "json").data["agent"]["aborted"])
    assert agent.alive and host.requests_seen() == []
    agent.configure(pve={"ca_file": str(host.ca_file), "server_name": None})
    agent.hup()
    agent.wait_for("sweep_resumed")
    agent.wait_for("start_result", outcome="started")
