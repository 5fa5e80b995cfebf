"""The values: what is read out of PVE's texts, and what is refused."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestward.model.decision import Closure, Gate, GateReason
from guestward.model.events import Level, all_events
from guestward.model.guest import GuestConfig, GuestId, GuestKind, LiveStatus, Startup, same_guest, truthy
from guestward.model.reading import Unreadable
from guestward.model.task import (
    MAX_UPID,
    Error,
    Ok,
    Running,
    Task,
    TaskStatus,
    Unknown,
    Upid,
    UpidError,
    Warnings,
    bounded,
    exit_status,
    task_status,
)

GOOD = "UPID:pve1:0000A1B2:00C3D4E5:66AA0000:vzstart:101:root@pam:"


class TestUpid:
    """`UPID:node:pid:pstart:starttime:type:id:user:` (pve-facts D5)."""

    words = st.text(string.ascii_letters + string.digits + "-_.@!+äß", min_size=1, max_size=20)
    nodes = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,14}[a-zA-Z0-9])?", fullmatch=True)

    @given(
        node=nodes,
        pid=st.integers(0, 0xFFFFFFFF),
        pstart=st.integers(0, 0xFFFFFFFFF),
        starttime=st.integers(0, 0xFFFFFFFF),
        kind=words,
        id=st.one_of(st.just(""), words),
        user=words,
    )
    def test_what_pve_writes_is_read_back(self, node: str, pid: int, pstart: int, starttime: int, kind: str, id: str, user: str) -> None:
        """Every UPID that PVE's own format can write comes back part by part, and as the text that it was."""
        text = f"UPID:{node}:{pid:08X}:{pstart:08X}:{starttime:08X}:{kind}:{id}:{user}:"
        found = Upid.parse(text)
        assert (found.node, found.pid, found.pstart, found.starttime) == (node, pid, pstart, starttime)
        assert (found.type, found.id, found.user, str(found)) == (kind, id, user, text)
        assert found.started_boottime == pstart / 100

    @given(st.one_of(st.text(max_size=300), st.binary(max_size=60), st.integers(), st.none()))
    def test_anything_else_is_refused_with_a_short_reason(self, text: object) -> None:
        try:
            assert str(Upid.parse(text)) == text
        except UpidError as error:
            assert len(str(error)) < 300

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (GOOD.replace("00C3D4E5", "100C3D4E5"), "pstart of a host that has been up for more than 497 days"),
            (GOOD.replace(":101:", "::"), "a job of several guests has no id"),
            (GOOD.replace("root@pam", "guestward-pve1@pve!agent"), "a token's task"),
            (GOOD.replace("pve1", "a"), "a node's name of one letter"),
            (GOOD.replace("0000A1B2", "0000a1b2"), "PVE itself reads lower-case digits, though it never writes them"),
            (GOOD.replace(":101:", ":" + "9" * (MAX_UPID - len(GOOD) + 3) + ":"), "just as long as is allowed"),
        ],
        ids=lambda x: x if " " in str(x) else "",
    )
    def test_odd_but_right(self, text: str, why: str) -> None:
        assert Upid.parse(text).text == text, why

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (GOOD.replace("00C3D4E5", "0100C3D4E5"), "ten digits of pstart"),
            (GOOD.replace("00C3D4E5", "0C3D4E5"), "seven digits of pstart"),
            (GOOD.replace("0000A1B2", "00000A1B2"), "nine digits of pid"),
            (GOOD.replace("66AA0000", "166AA0000"), "nine digits of starttime"),
            (GOOD.replace("0000A1B2", "0000G1B2"), "a digit that is none"),
            (GOOD.replace("0000A1B2", "００００A1B2"), "full-width digits"),
            (GOOD.replace("0000A1B2", "+000A1B2"), "a sign"),
            (GOOD.replace("0000A1B2", "0x00A1B2"), "a prefix"),
            (GOOD.replace(":101:", ":" + "9" * (MAX_UPID - len(GOOD) + 4) + ":"), "one byte too long"),
            (GOOD.replace("root@pam", "ä" * 120), "short enough in characters, too long in bytes"),
            (GOOD + "x", "text behind"),
            (GOOD + "\n", "a newline behind"),
            ("\n" + GOOD, "a newline before"),
            (" " + GOOD, "a blank before"),
            (GOOD[:-1], "no colon at the end"),
            (GOOD.replace("66AA0000:", "0000000000000001:66AA0000:"), "PBS form: ten parts"),
            (GOOD.replace("66AA0000:", "00000001:66AA0000:"), "PBS form with a short task id"),
            (GOOD.replace("vzstart", ""), "no type"),
            (GOOD.replace("root@pam", ""), "no user"),
            (GOOD.replace("pve1", ""), "no node"),
            (GOOD.replace("pve1", "pve.1"), "a dot in the node"),
            (GOOD.replace("pve1", "pve_1"), "an underscore in the node"),
            (GOOD.replace("pve1", "-pve"), "a node that begins with a dash"),
            (GOOD.replace("pve1", "pve-"), "a node that ends with a dash"),
            (GOOD.replace(":101:", ":1 1:"), "a blank in the id"),
            (GOOD.replace(":101:", ":../1:"), "a slash in the id"),
            (GOOD.replace("vzstart", "vz/start"), "a slash in the type"),
            (GOOD.replace("root@pam", "root pam"), "a blank in the user"),
            (GOOD.replace("UPID", "upid"), "lower-case prefix"),
            ("", "nothing"),
            ("OK", "what vzdump answers when it has nothing to do"),
            (None, "no text: None"),
            (17, "no text: a number"),
            (GOOD.encode(), "no text: bytes"),
            ([GOOD], "no text: a list"),
        ],
        ids=lambda x: x if " " in str(x) and "UPID" not in str(x) else "",
    )
    def test_refused(self, text: object, why: str) -> None:
        with pytest.raises(UpidError) as error:
            Upid.parse(text)
        assert len(str(error.value)) < 300, why

    def test_an_empty_id_covers_every_guest_and_another_only_its_own(self) -> None:
        several, single = Upid.parse(GOOD.replace(":101:", "::")), Upid.parse(GOOD)
        assert (several.covers(101), single.covers(101), single.covers(10), single.covers(1010)) == (True, True, False, False)


class TestTaskStatus:
    """I9: running, ok, error or unknown; unknown is never success or failure."""

    @pytest.mark.parametrize(
        ("status", "exitstatus", "right"),
        [
            ("running", None, Running()),
            ("running", "OK", Running()),
            ("stopped", "OK", Ok()),
            ("stopped", "WARNINGS: 1", Warnings(1)),
            ("stopped", "WARNINGS: 12", Warnings(12)),
            ("stopped", "CT is locked (backup)", Error("CT is locked (backup)")),
            ("stopped", "job errors", Error("job errors")),
        ],
    )
    def test_definite(self, status: object, exitstatus: object, right: TaskStatus) -> None:
        assert task_status(status, exitstatus) == right

    @pytest.mark.parametrize(
        ("status", "exitstatus"),
        [
            ("stopped", None),
            ("stopped", ""),
            ("stopped", 123),
            ("stopped", True),
            ("stopped", ["OK"]),
            ("stopped", "unexpected status"),
            ("stopped", "unable to read tail (got 0 bytes)"),
            ("stopped", "unable to get last line from task log - No such file or directory"),
            (None, "OK"),
            ("", "OK"),
            ("OK", "OK"),
            ("Running", None),
            (1, "OK"),
        ],
    )
    def test_unknown(self, status: object, exitstatus: object) -> None:
        """C59: a missing, strange or unreadable status says neither that it worked nor that it did not."""
        found = task_status(status, exitstatus)
        assert isinstance(found, Unknown)
        assert found.detail

    @pytest.mark.parametrize(
        "text", ["WARNINGS: x", "WARNINGS:1", "WARNINGS: ", "WARNINGS: 1 ", "WARNINGS: -1", "warnings: 1", "WARNINGS: １"]
    )
    def test_almost_warnings_is_an_error(self, text: str) -> None:
        """C60: exactly `WARNINGS: <digits>`."""
        assert isinstance(task_status("stopped", text), Error)

    @pytest.mark.parametrize("text", ["ok", "OK ", " OK", "OK\n", "TASK OK"])
    def test_almost_ok_is_an_error(self, text: str) -> None:
        assert isinstance(task_status("stopped", text), Error)

    @pytest.mark.parametrize(
        ("text", "kind"),
        [("OK", Ok), ("WARNINGS: 2", Warnings), ("unexpected status", Unknown), ("no space left", Error), ("", Unknown)],
    )
    def test_the_archives_last_line_is_judged_alike(self, text: str, kind: type) -> None:
        assert isinstance(exit_status(text), kind)

    @given(st.one_of(st.none(), st.text(max_size=400), st.integers(), st.booleans()), st.one_of(st.none(), st.text(max_size=400)))
    def test_success_has_exactly_two_forms(self, status: object, exitstatus: str | None) -> None:
        found = task_status(status, exitstatus)
        if isinstance(found, Ok | Warnings):
            assert status == "stopped"
            assert exitstatus == "OK" or (exitstatus or "").startswith("WARNINGS: ")

    def test_an_error_is_one_bounded_line(self) -> None:
        found = task_status("stopped", "start failed:\n\x1b[31m" + "x" * 1000)
        assert isinstance(found, Error)
        assert len(found.detail) <= 300
        assert found.detail.isprintable()

    def test_only_a_running_row_is_a_running_task(self) -> None:
        assert Task(Upid.parse(GOOD), Running()).running
        assert not Task(Upid.parse(GOOD), Unknown("no such task")).running


class TestBounded:
    """Text from outside is one printable line of bounded length."""

    @given(st.text(max_size=700), st.integers(10, 300))
    def test_any_text(self, text: str, limit: int) -> None:
        found = bounded(text, limit)
        assert len(found) <= limit
        assert found.isprintable()
        assert found == bounded(found, limit)

    def test_a_short_line_stays_as_it_is(self) -> None:
        assert bounded("storage 'nas' is not online") == "storage 'nas' is not online"

    def test_what_is_cut_says_so(self) -> None:
        assert bounded("x" * 400).endswith("...")

    def test_what_is_no_text_is_shown_as_python_has_it(self) -> None:
        assert (bounded(None), bounded({"a": 1})) == ("None", "{'a': 1}")


LXC = {
    "rootfs": "local-lvm:vm-101-disk-0,size=8G",
    "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:01,ip=dhcp,type=veth",
    "memory": "512",
    "onboot": "1",
}
QEMU = {
    "scsi0": "local-lvm:vm-201-disk-0,size=32G",
    "net0": "virtio=BC:24:11:00:00:02,bridge=vmbr0",
    "smbios1": "uuid=7f0c1a52-0000-4000-8000-000000000001",
    "vmgenid": "aaaaaaaa-0000-4000-8000-000000000001",
    "meta": "creation-qemu=9.0.2,ctime=1720000000",
    "onboot": "1",
}


def lxc(**values: str) -> GuestConfig:
    return GuestConfig.from_api(GuestKind.LXC, LXC | values)


def qemu(**values: str) -> GuestConfig:
    return GuestConfig.from_api(GuestKind.QEMU, QEMU | values)


class TestIdentity:
    """A VMID alone is no identity (C29)."""

    def test_every_guest_has_one(self) -> None:
        assert lxc().identity
        assert qemu().identity

    @pytest.mark.parametrize(
        "changed",
        [
            {"rootfs": "local-lvm:vm-101-disk-1,size=8G"},
            {"net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:99:00:01,ip=dhcp,type=veth"},
        ],
        ids=["another volume", "another MAC address"],
    )
    def test_another_container_with_the_same_vmid_differs(self, changed: dict[str, str]) -> None:
        assert lxc(**changed).identity != lxc().identity

    @pytest.mark.parametrize(
        "changed",
        [
            {"smbios1": "uuid=7f0c1a52-0000-4000-8000-00000000ffff"},
            {"meta": "creation-qemu=9.0.2,ctime=1730000000"},
        ],
        ids=["another uuid", "created at another time"],
    )
    def test_another_vm_with_the_same_vmid_differs(self, changed: dict[str, str]) -> None:
        assert qemu(**changed).identity != qemu().identity

    def test_a_vm_that_was_rolled_back_is_the_same_guest(self) -> None:
        """A rollback, like a restore, draws a new vmgenid; of a restore the task history tells."""
        assert qemu(vmgenid="bbbbbbbb-0000-4000-8000-000000000001").identity == qemu().identity

    def test_the_vmgenid_stands_in_where_a_vm_has_nothing_else(self) -> None:
        one, other = (GuestConfig.from_api(GuestKind.QEMU, {"vmgenid": value}).identity for value in ("a", "b"))
        assert one != other
        assert GuestConfig.from_api(GuestKind.QEMU, {"memory": "512"}).identity == ""

    @pytest.mark.parametrize(
        "changed",
        [
            {"net1": "name=eth1,bridge=vmbr0,hwaddr=BC:24:11:99:00:02,ip=dhcp,type=veth"},
            {"rootfs": "other:vm-101-disk-0,size=8G"},
            {"net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:99:00:01,ip=dhcp,type=veth"},
        ],
        ids=["one card more", "its root moved", "another card"],
    )
    def test_a_container_stays_the_same_guest_while_one_mark_stays(self, changed: dict[str, str]) -> None:
        assert same_guest(GuestKind.LXC, lxc().identity, lxc(**changed).identity)

    def test_a_container_with_no_mark_in_common_is_another(self) -> None:
        other = lxc(rootfs="other:vm-101-disk-0", net0="name=eth0,hwaddr=BC:24:11:99:00:01").identity
        assert not same_guest(GuestKind.LXC, lxc().identity, other)
        assert same_guest(GuestKind.LXC, "", "")

    def test_a_vm_with_one_mark_changed_is_another(self) -> None:
        assert not same_guest(GuestKind.QEMU, qemu().identity, qemu(meta="ctime=1").identity)

    @pytest.mark.parametrize(
        "changed",
        [
            {"memory": "1024"},
            {"onboot": "0"},
            {"hostname": "web"},
            {"lock": "backup"},
            {"rootfs": "local-lvm:vm-101-disk-0,size=64G"},
            {"rootfs": "volume=local-lvm:vm-101-disk-0,size=8G"},
            {"net0": "name=eth0,bridge=vmbr9,hwaddr=bc:24:11:00:00:01,ip=10.0.0.5/24,type=veth"},
            {"mp0": "local-lvm:vm-101-disk-1,mp=/data,size=8G"},
        ],
        ids=str,
    )
    def test_a_container_stays_the_same_through_changes_of_its_configuration(self, changed: dict[str, str]) -> None:
        assert lxc(**changed).identity == lxc().identity

    @pytest.mark.parametrize("changed", [{"memory": "1024"}, {"scsi1": "nas:vm-201-disk-1"}, {"net1": "virtio=BC:24:11:00:00:09"}], ids=str)
    def test_a_vm_stays_the_same_through_changes_of_its_configuration(self, changed: dict[str, str]) -> None:
        assert qemu(**changed).identity == qemu().identity

    def test_a_configuration_that_names_nothing_has_none(self) -> None:
        assert GuestConfig.from_api(GuestKind.LXC, {"lock": "create"}).identity == ""
        assert GuestConfig.from_api(GuestKind.QEMU, {}).identity == ""


class TestFingerprint:
    """Changes with every change of configuration, and with nothing else."""

    @pytest.mark.parametrize("key", ["lock", "parent", "digest", "snapstate", "snaptime", "vmstate", "runningmachine", "runningcpu"])
    def test_locks_and_snapshots_are_no_change(self, key: str) -> None:
        assert lxc(**{key: "x"}).fingerprint == lxc().fingerprint

    @pytest.mark.parametrize("key", ["memory", "onboot", "net1", "description", "startup", "hookscript"])
    def test_all_else_is(self, key: str) -> None:
        assert lxc(**{key: "x"}).fingerprint != lxc().fingerprint

    def test_a_key_that_goes_is_a_change_and_the_order_of_keys_is_none(self) -> None:
        less = {key: value for key, value in LXC.items() if key != "memory"}
        turned = dict(reversed(LXC.items()))
        assert GuestConfig.from_api(GuestKind.LXC, less).fingerprint != lxc().fingerprint
        assert GuestConfig.from_api(GuestKind.LXC, turned).fingerprint == lxc().fingerprint

    def test_any_text_can_be_digested(self) -> None:
        assert lxc(description="\ud800 lone surrogate").fingerprint


class TestSettings:
    """onboot, template, lock, startup, storages."""

    @pytest.mark.parametrize("text", ["1", "on", "On", "yes", "YES", "true", " 1 "])
    def test_pves_yes(self, text: str) -> None:
        assert truthy(text)
        assert lxc(onboot=text).onboot
        assert lxc(template=text).template

    @pytest.mark.parametrize("text", ["0", "off", "no", "false", "", "2", "ja"])
    def test_anything_else_is_no(self, text: str) -> None:
        assert not lxc(onboot=text).onboot

    def test_absent_is_no(self) -> None:
        """I1."""
        absent = GuestConfig.from_api(GuestKind.LXC, {})
        assert (absent.onboot, absent.template, absent.lock, absent.startup, absent.storages) == (
            False,
            False,
            None,
            Startup(),
            frozenset(),
        )

    def test_a_lock_is_its_kind_and_an_empty_one_is_none(self) -> None:
        assert (lxc(lock="backup").lock, lxc(lock="").lock) == ("backup", None)

    @pytest.mark.parametrize(
        ("text", "order", "up"),
        [
            ("", None, 0),
            ("1", 1, 0),
            ("order=2", 2, 0),
            ("order=2,up=30", 2, 30),
            ("order=2,up=30,down=60", 2, 30),
            ("up=30", None, 30),
            ("down=60", None, 0),
            ("down=9,up=5,3", 3, 5),
            ("nonsense", None, 0),
            ("order=-1", None, 0),
            ("up=x", None, 0),
        ],
    )
    def test_startup(self, text: str, order: int | None, up: int) -> None:
        assert Startup.parse(text) == lxc(startup=text).startup == Startup(order, up)

    @pytest.mark.parametrize(
        ("kind", "values", "storages"),
        [
            ("lxc", {"rootfs": "local-lvm:vm-101-disk-0,size=8G"}, {"local-lvm"}),
            ("lxc", {"rootfs": "volume=nas:101/vm-101-disk-0.raw"}, ("nas",)),
            ("lxc", {"mp0": "nas:101/vm-101-disk-1.raw,mp=/data"}, ("nas",)),
            ("lxc", {"mp0": "/mnt/bind,mp=/data", "mp1": "/dev/disk/by-id/usb:x,mp=/usb"}, ()),
            ("lxc", {"unused0": "nas:101/vm-101-disk-9.raw"}, ()),
            ("lxc", {"description": "nas:x", "hookscript": "local:snippets/x.pl"}, ()),
            ("qemu", {"scsi0": "a:vm-1-disk-0", "virtio1": "b:x", "sata2": "c:x", "ide3": "d:x"}, ("a", "b", "c", "d")),
            ("qemu", {"efidisk0": "e:x", "tpmstate0": "f:x"}, ("e", "f")),
            ("qemu", {"scsi0": "file=nas:201/vm-201-disk-0.qcow2,size=9G"}, ("nas",)),
            ("qemu", {"ide2": "none,media=cdrom"}, ()),
            ("qemu", {"ide2": "cdrom,media=cdrom"}, ()),
            ("qemu", {"ide2": "iso:iso/debian.iso,media=cdrom"}, ("iso",)),
            ("qemu", {"scsi0": "/dev/disk/by-id/ata:x"}, ()),
            ("qemu", {"scsihw": "virtio-scsi-single", "unused0": "nas:x", "hostpci0": "0000:01:00.0"}, ()),
        ],
        ids=str,
    )
    def test_storages_without_which_it_cannot_start(self, kind: str, values: dict[str, str], storages: tuple[str, ...]) -> None:
        """`none`, bind mounts, devices and disks that are not attached need no storage; an inserted ISO does."""
        assert GuestConfig.from_api(GuestKind(kind), values).storages == set(storages)


class TestScratchTraits:
    """tags, protection, base: what speaks for and against a teardown."""

    @pytest.mark.parametrize(
        ("text", "tags"),
        [
            ("guestward-scratch", {"guestward-scratch"}),
            ("web;guestward-scratch;db", {"web", "guestward-scratch", "db"}),
            ("web,db test", {"web", "db", "test"}),
            (" web ;; db ,", {"web", "db"}),
            ("GuestWard-Scratch", {"guestward-scratch"}),
            ("web.x", {"web.x"}),
            ("", set()),
            (" ; ", set()),
        ],
    )
    def test_tags(self, text: str, tags: set[str]) -> None:
        """PVE takes all three separators, and does not tell capitals apart."""
        assert lxc(tags=text).tags == qemu(tags=text).tags == tags

    @pytest.mark.parametrize("text", ["1", "on", "yes", "TRUE"])
    def test_protection(self, text: str) -> None:
        assert lxc(protection=text).protection
        assert not lxc(protection="0").protection

    def test_absent_is_none_of_them(self) -> None:
        for plain in (lxc(), qemu(), GuestConfig.from_api(GuestKind.LXC, {}), GuestConfig("", "", onboot=False)):
            assert (plain.tags, plain.protection, plain.base) == (frozenset(), False, False)

    @pytest.mark.parametrize(
        ("kind", "values", "base"),
        [
            ("qemu", {"scsi0": "local-lvm:base-201-disk-0,size=8G"}, True),
            ("qemu", {"virtio3": "file=nas:201/base-201-disk-0.qcow2"}, True),
            ("qemu", {"scsi0": "local-lvm:vm-201-disk-0", "efidisk0": "local-lvm:base-201-disk-1"}, True),
            ("lxc", {"rootfs": "local-zfs:basevol-101-disk-0,size=8G"}, True),
            ("lxc", {"rootfs": "nas:101/base-101-disk-0.raw"}, True),
            ("lxc", {"rootfs": "volume=local-zfs:subvol-101-disk-0", "mp1": "local-zfs:basevol-101-disk-1,mp=/data"}, True),
            ("qemu", {"scsi0": "local-zfs:base-9000-disk-0/vm-201-disk-0"}, False),
            ("qemu", {"scsi0": "nas:9000/base-9000-disk-0.qcow2/201/vm-201-disk-0.qcow2"}, False),
            ("lxc", {"rootfs": "local-zfs:basevol-9000-disk-0/subvol-101-disk-0"}, False),
            ("lxc", {"rootfs": "base-nas:subvol-101-disk-0"}, False),
            ("lxc", {"rootfs": "local-lvm:vm-101-base-0"}, False),
            ("lxc", {"description": "base-1", "hostname": "base-2"}, False),
            ("qemu", {"ide2": "none,media=cdrom"}, False),
        ],
        ids=str,
    )
    def test_a_volume_that_linked_clones_may_live_on(self, kind: str, values: dict[str, str], base: bool) -> None:
        """A linked clone names its base before its own volume. A container's base on ZFS is a `basevol`."""
        assert GuestConfig.from_api(GuestKind(kind), values).base is base


class TestGuestId:
    """The join label of logs and metrics."""

    @pytest.mark.parametrize("text", ["lxc/100", "qemu/999999999"])
    def test_read_back(self, text: str) -> None:
        assert str(GuestId.parse(text)) == text

    @pytest.mark.parametrize(
        "text", ["", "lxc/", "lxc/99", "lxc/0101", "LXC/101", "vm/101", "lxc/1000000000", "lxc/101\n", "lxc/１０１", "lxc/-10"]
    )
    def test_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a guest id"):
            GuestId.parse(text)


@pytest.mark.parametrize(
    ("status", "really"),
    [
        (LiveStatus(True, 4711), True),
        (LiveStatus(True, 4711, qmpstatus="running"), True),
        (LiveStatus(True, None), False),
        (LiveStatus(False, None), False),
        (LiveStatus(False, 4711), False),
        (LiveStatus(True, 4711, qmpstatus="prelaunch"), False),
        (LiveStatus(True, 4711, qmpstatus="paused"), False),
        (LiveStatus(True, 4711, qmpstatus="io-error"), False),
    ],
)
def test_really_running_needs_a_process_at_work(status: LiveStatus, really: bool) -> None:
    """pve-facts K."""
    assert status.really_running is really


def test_an_unreadable_witness_can_not_be_used_as_a_yes_or_no() -> None:
    with pytest.raises(TypeError, match="permission denied"):
        bool(Unreadable("permission denied"))


def test_a_gate_tells_all_its_reasons_in_one_line() -> None:
    shut = Gate((Closure(GateReason.HOLD, "held by alice"), Closure(GateReason.NO_QUORUM, "read-only")))
    assert (shut.open, Gate().open, shut.evidence) == (False, True, "hold: held by alice; no_quorum: read-only")


def test_the_events_of_the_design_are_there_with_their_levels() -> None:
    """DESIGN.md, Events, as far as this version has the duties."""
    levels = {event.name: set(event.levels) for event in all_events()}
    info, warn, error = {Level.INFO}, {Level.WARN}, {Level.ERROR}
    expected: dict[str, Any] = {
        "daemon_started": info,
        "daemon_stopping": info,
        "config_rejected": error,
        "sweep_aborted": warn | error,
        "sweep_resumed": info,
        "heartbeat": info,
        "host_gate_closed": info | warn,
        "host_gate_opened": info,
        "guest_down": info,
        "guest_waiting": info,
        "start_attempt": info,
        "start_result": info | warn,
        "given_up": error,
        "rearmed": info,
        "guest_forgotten": info,
        "held": info,
        "released": info,
        "not_working": warn,
        "backup_wait_long": warn,
        "grant_lost": error,
        "grant_restored": info,
        "store_failed": error,
        "metrics_failed": error,
    }
    assert {name: levels.get(name) for name in expected} == expected
    assert len(levels) == len(all_events())
