#!/bin/bash
# Puts Guestward on a Proxmox VE host, proves that its rights are exactly what they should be, mends them, and takes it away again.
# Safe to run again at any time, also after a failure at any step: every step looks first, and does only what is not so yet.
# What each step grants and why: docs/install.md.
set -euo pipefail
shopt -s inherit_errexit
export LC_ALL=C

# For the tests: every file is looked for below this folder, and programs are found by the caller's PATH. On a host that has a PVE of its
# own this is refused, so that nothing set by accident can make the script write one place and grant in another.
ROOT=${GUESTWARD_ROOT:-}
if [ -z "$ROOT" ]; then
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
elif [ -e /etc/pve/local ]; then
    echo 'GUESTWARD_ROOT is for the tests of this script, and this is a real PVE host: unset it' >&2
    exit 2
fi

PVE=$ROOT/etc/pve
PVE_CA=$PVE/pve-root-ca.pem
FOLDER=$ROOT/etc/guestward
CONFIG=$FOLDER/guestward.toml
SECRET=$FOLDER/token
STATE=$ROOT/var/lib/guestward
UNITS=(guestward-helper.socket guestward.service)
TOKEN=agent
ROLE_NAMES=(GuestwardPool GuestwardNode GuestwardStorage GuestwardScratch)
SEP=$'\x1f' # between the fields of a row: no text of PVE's holds it, and unlike a tab it keeps empty fields apart

ROLES='' USERS='' PVE_POOLS='' ACLS='' TOKENS='' # what PVE knows, as rows
THEIRS=() ABSENT=() # users and tokens of [scratch] grantees that need entries; grantees that PVE does not know
DRY=0 YES=0 PURGE=0 EXEC='' NODE='' BAND='' LISTEN='' DEB='' POOLS=() ADD=()

usage() {
    cat <<'END'
usage: host-install.sh install    put Guestward on this host: package, rights, token, configuration, units; then verify
       host-install.sh verify     prove the rights of token and user, and that they have no more; changes nothing
       host-install.sh repair     put back whatever is missing, as the configuration has it; then verify
       host-install.sh uninstall  take units, rights, token, user and package away; pool and guests stay

  --dry-run               say what would be done, and do nothing
  --yes                   do not ask
  --node NODE             this node's name, where /etc/pve does not tell it; with uninstall also that of a node that is gone
  --pool POOL             guests in this pool are guarded; may be given more than once    (default: as configured, or guestward)
  --band FIRST-LAST       VMIDs of scratch guests, for no other node          (default: as configured, or 990000-990009)
  --add-guests VMID...    put these guests into the (first) pool
  --metrics-listen ADDRESS:PORT   where Prometheus may ask                    (default: as configured, or 127.0.0.1:9612)
  --enable-exec           also grant what running commands in guests needs; install without it takes that away
  --deb FILE              the package; by default guestward_*_all.deb beside this script
  --purge                 with uninstall: configuration and state, too

exit codes: 0 done, 1 a step failed, 2 usage, 5 rights are missing or too many and nothing else is wrong
END
}

# ---------------------------------------------------------------------------------------------------------------- the grants

# What the agent's user and its token get, both of them: a token has what both have. Path, role, whether it is handed down.
grants() {
    local pool vmid
    for pool in "${POOLS[@]}"; do
        echo "/pool/$pool GuestwardPool 1"
        [ "$EXEC" != 1 ] || echo "/pool/$pool GuestwardExec 1"
    done
    echo "/nodes/$NODE GuestwardNode 0"
    echo "/storage GuestwardStorage 1"
    # One by one: at /vms the agent could destroy every guest of the cluster.
    for ((vmid = FIRST; vmid <= LAST; vmid++)); do
        echo "/vms/$vmid GuestwardScratch 1"
    done
}

privileges() { # ROLE
    case $1 in
    GuestwardPool) echo VM.Audit VM.PowerMgmt Pool.Audit ;;
    GuestwardNode) echo Sys.Audit ;;
    GuestwardStorage) echo Datastore.Audit ;;
    GuestwardScratch) echo VM.Audit VM.PowerMgmt VM.Allocate VM.Config.Disk VM.Config.Options ;;
    # A name that a version does not know fails the whole command: PVE 9 has no VM.Monitor.
    GuestwardExec) if ((MAJOR >= 9)); then echo VM.GuestAgent.Audit VM.GuestAgent.Unrestricted; else echo VM.Monitor; fi ;;
    esac
}

# ---------------------------------------------------------------------------------------------------------------- small tools

say() { printf '%-12s%s\n' "$1" "$2"; }
already() { say 'already so' "$1"; }

failed() { # WHAT REASON [WHAT-TO-DO]: say so, and go on
    printf '%-12s%s: %s\n' FAILED "$1" "$2" >&2
    [ -z "${3:-}" ] || printf '%-12swhat to do: %s\n' '' "$3" >&2
}

fail() { # the same, and end
    failed "$@"
    exit 1
}

wrong_usage() {
    echo "host-install.sh: $1 (host-install.sh --help)" >&2
    exit 2
}

reason() { # What a program said on stderr, in one line, without what PVE says at every call or while it waits for its lock.
    local line text=''
    while IFS= read -r line; do
        case $line in
        '' | 'user config - ignore'* | 'trying to acquire cfs lock'* | 'pveum '*' [OPTIONS]'*) continue ;;
        esac
        text+="${text:+; }$line"
    done <<<"$1"
    echo "${text:-no reason was given}"
}

act() { # WHAT COMMAND...: do it, or in a dry run only say so. The command's own words are shown when it fails.
    local what=$1 said
    shift
    if ((DRY)); then
        say 'would do' "$what"
    elif said=$("$@" 2>&1 >/dev/null); then
        say 'done' "$what"
    else
        said=$(reason "$said")
        case $said in
        *'no quorum'*) fail "$what" "$said" 'nothing can be granted before the cluster has quorum (pvecm status); then run this again' ;;
        *) fail "$what" "$said" 'mend that and run this again: it goes on where it ended' ;;
        esac
    fi
}

ask() { # VARIABLE COMMAND...: keep what it answers, or end with the reason.
    local -n answer=$1
    shift
    # shellcheck disable=SC2034 # the caller reads it, by its own name
    answer=$("$@" 2>"$WORK/said") || fail "$*" "$(reason "$(<"$WORK/said")")" 'systemctl status pve-cluster; then run this again'
}

rows() { # VARIABLE=FIELD,FIELD...: each of the JSON lists on stdin, as rows of these fields, into its variable.
    local found name line
    found=$(python3 -IS -c '
import json, sys
text, decoder = sys.stdin.read().lstrip(), json.JSONDecoder()
for argument in sys.argv[1:]:
    name, _, fields = argument.partition("=")
    values, end = decoder.raw_decode(text)
    text = text[end:].lstrip()
    for value in values:
        print(name, "\x1f".join(" ".join(str(value.get(field, "")).split()) for field in fields.split(",")))' "$@")
    for name in "$@"; do printf -v "${name%%=*}" ''; done
    while IFS= read -r line; do
        name=${line%% *}
        [ -z "$name" ] || printf -v "$name" '%s%s\n' "${!name}" "${line#* }"
    done <<<"$found"
}

note_rights() { # MAP: {path: privileges} from stdin into MAP[path]. The key is the grant: PVE's value is only its propagate flag.
    local -n map=$1
    local path names found
    found=$(python3 -IS -c '
import json, sys
found = json.load(sys.stdin)
for path, privileges in found.get("data", {}).get("paths", found).items():
    print(path, *sorted(privileges))')
    while read -r path names; do
        # shellcheck disable=SC2034,SC2004 # the caller reads it, by its own name; the key is text
        [ -z "$path" ] || map[$path]=$names
    done <<<"$found"
}

has() { [[ $'\n'$1$'\n' == *$'\n'"$2"$'\n'* ]]; } # LINES LINE

row() { # ROWS FIRST-FIELD: that row, or nothing
    local line
    while IFS= read -r line; do
        [[ $line$SEP != "$2$SEP"* ]] || echo "$line"
    done <<<"$1"
}

lacking() { # WORDS OTHERS: the words that are not among the others
    local word found=''
    for word in ${1//,/ }; do
        [[ " ${2//,/ } " == *" $word "* ]] || found+="${found:+ }$word"
    done
    echo "$found"
}

confirm() { # QUESTION
    local answer
    ((DRY || YES)) && return
    [ -t 0 ] || wrong_usage 'nobody can be asked here; say --yes, or --dry-run to see what would be done'
    read -r -p "$1 [y/N] " answer
    [[ $answer == [yY]* ]] || { echo 'nothing was done'; exit 1; }
}

# ---------------------------------------------------------------------------------------------------------------- arguments

parse() {
    [ $# -gt 0 ] || { usage >&2; exit 2; }
    case $1 in
    install | verify | repair | uninstall) COMMAND=$1 ;;
    -h | --help) usage; exit 0 ;;
    *) wrong_usage "$1 is none of install, verify, repair, uninstall" ;;
    esac
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        --dry-run) DRY=1 ;;
        --yes) YES=1 ;;
        --purge) PURGE=1 ;;
        --enable-exec) EXEC=1 ;;
        -h | --help) usage; exit 0 ;;
        --node | --pool | --band | --metrics-listen | --deb)
            [ $# -gt 1 ] || wrong_usage "$1 needs a value"
            case $1 in
            --node) NODE=$2 ;;
            --pool) POOLS+=("$2") ;;
            --band) BAND=$2 ;;
            --metrics-listen) LISTEN=$2 ;;
            --deb) DEB=$2 ;;
            esac
            shift
            ;;
        --add-guests)
            while [ $# -gt 1 ] && [[ $2 != --* ]]; do
                ADD+=("$2")
                shift
            done
            [ ${#ADD[@]} -gt 0 ] || wrong_usage '--add-guests needs VMIDs'
            ;;
        *) wrong_usage "$1 is not known" ;;
        esac
        shift
    done
    check_arguments
}

check_arguments() {
    local item
    [[ -z $NODE || $NODE =~ ^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$ ]] || wrong_usage "--node $NODE is no node name"
    for item in "${POOLS[@]}"; do
        [[ $item =~ ^[A-Za-z][A-Za-z0-9._-]*(/[A-Za-z][A-Za-z0-9._-]*){0,2}$ ]] || wrong_usage "--pool $item is no name of a pool"
    done
    for item in "${ADD[@]}"; do
        [[ $item =~ ^[1-9][0-9]{2,8}$ ]] || wrong_usage "--add-guests: $item is no VMID"
    done
    [[ -z $LISTEN || $LISTEN =~ ^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})$ ]] || wrong_usage "--metrics-listen $LISTEN is not ADDRESS:PORT"
    [[ -z $LISTEN ]] || ((10#${BASH_REMATCH[2]} <= 65535)) || wrong_usage "--metrics-listen $LISTEN: there is no such port"
    [[ -z $BAND || $BAND =~ ^[1-9][0-9]{2,8}-[1-9][0-9]{2,8}$ ]] || wrong_usage "--band $BAND is not FIRST-LAST, as in 990000-990009"
    [ -z "$DEB" ] || [ -f "$DEB" ] || wrong_usage "--deb $DEB is no file"
    if ((PURGE)) && [ "$COMMAND" != uninstall ]; then wrong_usage '--purge belongs to uninstall'; fi
    if [ "$COMMAND" != install ] && [ ${#ADD[@]} -gt 0 ]; then wrong_usage '--add-guests belongs to install'; fi
}

# ---------------------------------------------------------------------------------------------------------------- the host

check_host() {
    local version here mode
    [ "$(id -u)" = 0 ] || fail user 'this is not root' "sudo $0 $COMMAND"
    exec 9>"$ROOT/run/guestward-install.lock"
    flock -w 10 9 || fail lock 'another run of this script is at work' 'wait for it'
    command -v pveversion >/dev/null || fail 'Proxmox VE' 'pveversion is not there' 'this script is for a Proxmox VE host'
    ask version pveversion
    [[ $version =~ ^pve-manager/(([0-9]+)[0-9.]*) ]] || fail 'Proxmox VE' "nobody knows this version: $version"
    MAJOR=${BASH_REMATCH[2]}
    case $MAJOR in 8 | 9) ;; *) fail 'Proxmox VE' "this is version ${BASH_REMATCH[1]}; Guestward knows 8 and 9" ;; esac
    version=${BASH_REMATCH[1]}
    # Without pmxcfs /etc/pve is an empty folder of the root file system; a file written there would keep pmxcfs from starting.
    [ -L "$PVE/local" ] || fail pmxcfs '/etc/pve/local is not there: the cluster file system is down' 'systemctl start pve-cluster'
    here=$(basename "$(readlink "$PVE/local")")
    HERE=1
    if [ -n "$NODE" ] && [ "$NODE" != "$here" ]; then
        [ "$COMMAND" = uninstall ] || fail node "this is $here, not $NODE" 'run this on that node, or leave --node out'
        HERE=0
    fi
    NODE=${NODE:-$here}
    # The mode and not `test -w`, which is true for root whatever the mode.
    mode=$(stat -L -c %a "$PVE/local")
    if [ "$COMMAND" != verify ] && (((8#$mode & 8#222) == 0)); then
        fail quorum '/etc/pve cannot be written: the cluster has no quorum' 'pvecm status; run this again when there is quorum'
    fi
    already "Proxmox VE $version, node $NODE$([ "$COMMAND" = verify ] || echo ', with quorum')"
    USER_ID=guestward-$NODE@pve
    TOKEN_ID=$USER_ID!$TOKEN
    MARK="Guestward on $NODE; to remove it run host-install.sh uninstall --node $NODE"
}

# Pools, band and trust as the configuration has them, where no option says otherwise.
read_config() {
    local key value found='' pools=()
    CA='' PIN='' NAME='' FIRST='' LAST='' GRANTEES=()
    if [ -e "$CONFIG" ]; then
        found=$(python3 -IS - "$CONFIG" 2>"$WORK/said" <<'PYTHON'
import re, sys, tomllib
with open(sys.argv[1], "rb") as file:
    values = tomllib.load(file)
pve, scope, scratch = (values.get(name, {}) for name in ("pve", "scope", "scratch"))
for pool in scope.get("pools", []):
    print("pool", pool)
# As narrow as agent and root helper have it: PVE would take a comma as the beginning of another user.
who = re.compile(r"(?![-@])[^\s:/!,;\x00-\x20\x7f]+@[A-Za-z][A-Za-z0-9.\-_]+(![A-Za-z][A-Za-z0-9.\-_]+)?")
grantees = scratch.get("grantees", [])
if not isinstance(grantees, list) or not all(isinstance(id, str) and who.fullmatch(id) for id in grantees):
    sys.exit("scratch.grantees must be a list of USER@REALM!TOKEN or USER@REALM")
for grantee in dict.fromkeys(grantees):
    print("grantee", grantee)
for section, keys in ((pve, ("ca_file", "fingerprint", "server_name")), (scratch, ("first", "last"))):
    for key in keys:
        if key in section:
            print(key, section[key])
PYTHON
        ) || {
            found=''
            [ "$COMMAND" = uninstall ] ||
                fail configuration "$CONFIG: $(tail -n 1 "$WORK/said")" "correct it (docs/configuration.md), or move it away"
            say note "$CONFIG cannot be read, and is not needed for this"
        }
    fi
    while read -r key value; do
        case $key in
        pool) pools+=("$value") ;;
        grantee) GRANTEES+=("$value") ;;
        ca_file) CA=$value ;;
        fingerprint) PIN=$value ;;
        server_name) NAME=$value ;;
        first) FIRST=$value ;;
        last) LAST=$value ;;
        esac
    done <<<"$found"
    [ ${#POOLS[@]} -gt 0 ] || POOLS=("${pools[@]}")
    [ ${#POOLS[@]} -gt 0 ] || POOLS=(guestward)
    FIRST=${FIRST:-990000} LAST=${LAST:-990009}
    if [ -n "$BAND" ]; then FIRST=${BAND%-*} LAST=${BAND#*-}; fi
    [[ $FIRST =~ ^[1-9][0-9]{2,8}$ && $LAST =~ ^[1-9][0-9]{2,8}$ ]] || fail band "$FIRST to $LAST are no VMIDs" "correct [scratch] in $CONFIG"
    ((FIRST <= LAST && LAST - FIRST <= 99)) || fail band "$FIRST to $LAST: a band has 1 to 100 VMIDs" 'as in --band 990000-990009'
}

# Everything that PVE knows of users and rights, once.
read_pve() {
    local roles users pools acls tokens=[]
    ask roles pveum role list --output-format json
    ask users pveum user list --output-format json
    ask pools pveum pool list --output-format json
    ask acls pveum acl list --output-format json
    if [[ $users == *"\"$USER_ID\""* ]]; then ask tokens pveum user token list "$USER_ID" --output-format json; fi
    rows ROLES=roleid,privs USERS=userid,enable,expire,comment PVE_POOLS=poolid ACLS=path,type,ugid,roleid,propagate \
        TOKENS=tokenid,privsep,expire <<<"$roles $users $pools $acls $tokens"
    # Whether commands may be run in guests is kept as it is, unless install says it anew.
    if [ "$COMMAND" != install ] && [ "$EXEC" != 1 ] && [[ $ACLS == *"$SEP$TOKEN_ID${SEP}GuestwardExec$SEP"* ]]; then EXEC=1; fi
    if [ "$COMMAND" != uninstall ]; then find_grantees; fi
}

# Who of the grantees is there. A token has at most what its user has, so both get entries; root@pam needs none, and ours are ours.
find_grantees() {
    local grantee who list theirs
    for grantee in "${GRANTEES[@]}"; do
        theirs=''
        if [[ $grantee == *!* ]] && knows_user "${grantee%%!*}"; then
            ask list pveum user token list "${grantee%%!*}" --output-format json
            rows theirs=tokenid <<<"$list"
        fi
        if ! knows_user "${grantee%%!*}" || { [[ $grantee == *!* ]] && ! has "$theirs" "${grantee#*!}"; }; then
            ABSENT+=("$grantee")
            continue
        fi
        for who in "${grantee%%!*}" "$grantee"; do
            [[ " root@pam $USER_ID $TOKEN_ID ${THEIRS[*]} " == *" $who "* ]] || THEIRS+=("$who")
        done
    done
}

knows_user() { [ "$1" = root@pam ] || [ -n "$(row "$USERS" "$1")" ]; } # USER

lack_of() { # GRANTEE: what PVE does not know of it
    if ! knows_user "${1%%!*}"; then echo "PVE knows no user ${1%%!*}"; else echo "PVE knows no token ${1#*!} of user ${1%%!*}"; fi
}

mend() { # GRANTEE: what makes it known
    local make=''
    local user=${1%%!*} token=${1#*!}
    knows_user "$user" || make="pveum user add ${user@Q}"
    [[ $1 != *!* ]] || make+="${make:+ && }pveum user token add ${user@Q} ${token@Q} --privsep 1"
    echo "$make && $0 repair --yes; or take it out of [scratch] grantees in $CONFIG"
}

read_acls() {
    local acls
    ask acls pveum acl list --output-format json
    rows ACLS=path,type,ugid,roleid,propagate <<<"$acls"
}

# The band is where this node's agent may destroy guests: two agents must never share one.
check_band() {
    local path ugid other
    while IFS=$SEP read -r path _ ugid _; do
        other=${ugid%%!*}
        [[ $path =~ ^/vms/([0-9]+)$ && $other == guestward-*@pve && $other != "$USER_ID" ]] || continue
        ((BASH_REMATCH[1] >= FIRST && BASH_REMATCH[1] <= LAST)) || continue
        fail band "$path belongs to $other, the agent of another node; a band is never shared" 'choose a free one: --band FIRST-LAST'
    done <<<"$ACLS"
}

check_guests() {
    local vmid found
    for vmid in "${ADD[@]}"; do
        ((vmid < FIRST || vmid > LAST)) || fail "guest $vmid" 'it is in the band of scratch guests, and those are never guarded'
        # PVE would put a VMID that does not exist into the pool without a word.
        found=$(compgen -G "$PVE/nodes/*/*/$vmid.conf" || true)
        [ -n "$found" ] || fail "guest $vmid" 'there is no such guest' 'pct list; qm list'
    done
}

# ---------------------------------------------------------------------------------------------------------------- steps of install

install_package() {
    local have new
    if [ -n "$DEB" ]; then
        new=$(dpkg-deb -f "$DEB" Version) || fail package "$DEB is no Debian package"
        have=$(dpkg-query -W -f '${Version}' guestward 2>/dev/null) || have=''
        if [ "$have" = "$new" ] && command -v guestward >/dev/null; then already "package guestward $new"; return; fi
    elif command -v guestward >/dev/null; then
        already 'package guestward'
        return
    else
        DEB=$(compgen -G "$(dirname "$0")/guestward_*_all.deb" | sort -V | tail -n 1) || true
        [ -n "$DEB" ] || fail package 'guestward is not installed, and no guestward_*_all.deb is beside this script' 'give one with --deb FILE'
    fi
    act "package $(basename "$DEB")" apt-get install -y "$(realpath "$DEB")"
    ((DRY)) || command -v guestward >/dev/null || fail package "$DEB was installed, but there is no guestward" 'is it the right package?'
}

make_service_user() {
    if getent passwd guestward >/dev/null; then
        already 'system user guestward'
    else
        act 'system user guestward' adduser --system --group --no-create-home --home /var/lib/guestward guestward
    fi
    # www-data may read /etc/pve and PVE's CA.
    if [[ " $(id -nG guestward 2>/dev/null || true) " == *' www-data '* ]]; then
        already 'system user guestward in group www-data'
    else
        act 'system user guestward in group www-data' usermod -aG www-data guestward
    fi
}

make_roles() {
    local role want have
    for role in "${ROLE_NAMES[@]}" $([ "$EXEC" != 1 ] || echo GuestwardExec); do
        want=$(privileges "$role")
        have=$(row "$ROLES" "$role")
        if [ -z "$have" ]; then
            act "role $role: $want" pveum role add "$role" --privs "$want"
            continue
        fi
        have=${have#*"$SEP"}
        if [ -z "$(lacking "$want" "$have")$(lacking "$have" "$want")" ]; then
            already "role $role: $want"
        else # never delete and add: that would leave every entry with this role dangling, on all nodes
            act "role $role: $want (it had: ${have//,/ })" pveum role modify "$role" --privs "$want"
        fi
    done
}

make_user() {
    local enable expire comment found
    found=$(row "$USERS" "$USER_ID")
    if [ -z "$found" ]; then
        act "user $USER_ID" pveum user add "$USER_ID" --comment "$MARK"
        return
    fi
    IFS=$SEP read -r _ enable expire comment <<<"$found"
    [[ $comment == Guestward* ]] || fail "user $USER_ID" 'it is there, and nothing says that it is Guestward'\''s' \
        "if it is: pveum user modify $USER_ID --comment 'Guestward on $NODE'; if not, it stands in the way"
    [ "$enable" != 0 ] || fail "user $USER_ID" 'somebody disabled it' "if that is over: pveum user modify $USER_ID --enable 1"
    ((expire == 0 || expire > EPOCHSECONDS)) || fail "user $USER_ID" 'it has expired' "pveum user modify $USER_ID --expire 0"
    already "user $USER_ID"
}

make_pools() {
    local pool
    for pool in "${POOLS[@]}"; do
        if [ -n "$(row "$PVE_POOLS" "$pool")" ]; then
            already "pool $pool"
        else
            act "pool $pool" pveum pool add "$pool" --comment 'Guests that Guestward keeps up'
            ((DRY)) || PVE_POOLS+=$pool$'\n'
        fi
    done
}

members() { # POOL: VMIDs of its guests
    local found
    ask found pvesh get /pools --poolid "$1" --output-format json
    python3 -IS -c '
import json, sys
for pool in json.load(sys.stdin):
    for member in pool.get("members", []):
        if "vmid" in member:
            print(member["vmid"])' <<<"$found"
}

add_guests() {
    local vmid inside='' missing=''
    [ ${#ADD[@]} -gt 0 ] || return 0
    [ -z "$(row "$PVE_POOLS" "${POOLS[0]}")" ] || inside=$(members "${POOLS[0]}")
    for vmid in "${ADD[@]}"; do
        if has "$inside" "$vmid"; then already "guest $vmid in pool ${POOLS[0]}"; else missing+="${missing:+,}$vmid"; fi
    done
    [ -z "$missing" ] || act "guest ${missing//,/, } in pool ${POOLS[0]}" pveum pool modify "${POOLS[0]}" --vms "$missing"
}

# PVE's own CA signs every certificate that PVE renews by itself. A custom or ACME certificate replaces it on all addresses, also on
# 127.0.0.1, and has a new leaf every few months: there only the system's CAs and its name last.
choose_trust() {
    local served=$PVE/local/pveproxy-ssl.pem how
    if [ -n "$CA" ] && [ "$CA" != "$PVE_CA" ]; then
        TRUST=() how="the CA in $CA, as configured"
    elif [ ! -e "$served" ] || [ ! -e "${served%.pem}.key" ]; then
        TRUST=("ca_file \"$PVE_CA\"" 'server_name -' 'fingerprint -') how="PVE's own CA"
    elif openssl verify -CAfile "$PVE_CA" "$served" >/dev/null 2>&1; then
        name_of "$served"
        TRUST=("ca_file \"$PVE_CA\"" "server_name \"$NAME\"" 'fingerprint -') how="PVE's own CA, for $NAME"
    elif openssl verify -untrusted "$served" "$served" >/dev/null 2>&1; then
        name_of "$served"
        TRUST=('ca_file -' "server_name \"$NAME\"" 'fingerprint -') how="the system's CAs, for $NAME"
    elif [ -n "$PIN" ]; then
        TRUST=() how='the pinned certificate, as configured'
    else
        fail trust "a custom certificate is served (pveproxy-ssl.pem), and no CA of this system signed it" \
            "put its CA into /usr/local/share/ca-certificates and run update-ca-certificates, or set [pve] ca_file in $CONFIG"
    fi
    already "trust in the API: $how"
}

name_of() { # CERTIFICATE: sets NAME to a name that it bears
    local names name first='' fqdn
    names=$(openssl x509 -in "$1" -noout -ext subjectAltName 2>/dev/null | grep -o 'DNS:[^, ]*' | cut -c5-) || names=''
    fqdn=$(hostname -f) || fqdn=''
    for name in "$NAME" "$fqdn"; do
        if [ -n "$name" ] && { has "$names" "$name" || has "$names" "*.${name#*.}"; }; then
            NAME=$name
            return
        fi
    done
    while read -r name; do
        [[ $name == \** || -n $first ]] || first=$name
    done <<<"$names"
    [ -n "$first" ] || fail trust "$1 bears no name that could be asked for" 'order one for the name of this host'
    NAME=$first
}

settings() { # section, key, value as in TOML; "-" takes the key out
    local line list=''
    echo "pve node \"$NODE\""
    echo "pve token_id \"$TOKEN_ID\""
    [ -z "$ROOT" ] || echo "pve token_file \"$SECRET\""
    for line in "${TRUST[@]}"; do echo "pve $line"; done
    for line in "${POOLS[@]}"; do list+="${list:+, }\"$line\""; done
    echo "scope pools [$list]"
    echo "scratch first $FIRST"
    echo "scratch last $LAST"
    [ -z "$LISTEN" ] || echo "metrics listen \"$LISTEN\""
}

# What is not ours in the file stays as it is, comments too.
new_config() {
    python3 -IS -c '
import os, re, sys, tomllib
file = sys.argv[1]
start = "# Guestward on this host; every key is in docs/configuration.md. host-install.sh changes the keys that it needs, and no others.\n"
text = open(file, encoding="utf-8").read() if os.path.exists(file) else start
before, lines, wanted = tomllib.loads(text), text.splitlines(), [line.split(" ", 2) for line in sys.stdin.read().splitlines()]
for section, key, value in wanted:
    want = None if value == "-" else tomllib.loads("x = " + value)["x"]
    if before.get(section, {}).get(key) == want:
        continue
    heads = [i for i, line in enumerate(lines) if re.match(r"\s*\[", line)]
    head = next((i for i in heads if re.match(r"\s*\[\s*" + section + r"\s*\]", lines[i])), None)
    if head is None:
        lines += ["", f"[{section}]"]
        head = len(lines) - 1
    end = next((i for i in heads if i > head), len(lines))
    at = next((i for i in range(head + 1, end) if re.match(r"\s*" + key + r"\s*=", lines[i])), None)
    if at is None:
        while not lines[end - 1].strip():
            end -= 1
        lines.insert(end, f"{key} = {value}")
    elif want is None:
        del lines[at]
    else:
        lines[at] = f"{key} = {value}"
text = "\n".join(lines) + "\n"
try:
    after = tomllib.loads(text)
except tomllib.TOMLDecodeError:
    after = {}
missing = [words for words in wanted if after.get(words[0], {}).get(words[1]) != (None if words[2] == "-" else tomllib.loads("x = " + words[2])["x"])]
if missing:
    keys = "; ".join(f"in [{section}] {key} = {value}" for section, key, value in missing).replace("= -", "taken out")
    sys.exit(f"a program cannot change it as it is written; set by hand {keys}")
sys.stdout.write(text)' "$CONFIG"
}

write_config() {
    CHANGED=0
    settings | new_config >"$WORK/config" 2>"$WORK/said" || fail configuration "$CONFIG: $(tail -n 1 "$WORK/said")"
    if [ -e "$CONFIG" ] && cmp -s "$WORK/config" "$CONFIG"; then
        already "configuration $CONFIG"
    else
        act "configuration $CONFIG" put_config
        CHANGED=1
    fi
}

put_config() { # Only root may write it: the root helper believes it.
    mkdir -p "$FOLDER" && chmod 0755 "$FOLDER" && cp "$WORK/config" "$CONFIG.new" &&
        chmod 0644 "$CONFIG.new" && chown root:root "$CONFIG.new" && mv -f "$CONFIG.new" "$CONFIG"
}

make_token() {
    local found privsep expire
    found=$(row "$TOKENS" "$TOKEN")
    if [ -z "$found" ]; then
        act "token $TOKEN_ID, its secret in $SECRET" put_token
    else
        IFS=$SEP read -r _ privsep expire <<<"$found"
        ((expire == 0 || expire > EPOCHSECONDS)) || fail "token $TOKEN_ID" 'it has expired' "pveum user token modify $USER_ID $TOKEN --expire 0"
        if [ "$privsep" != 1 ]; then
            act "token $TOKEN_ID with rights of its own" pveum user token modify "$USER_ID" "$TOKEN" --privsep 1
        fi
        keep_token
    fi
}

# A secret that PVE knows is kept. One that is lost cannot be shown again, and one that PVE refuses is of no use to anybody.
keep_token() {
    local why answer
    if [ ! -s "$SECRET" ]; then
        why='its secret is nowhere on this host'
    elif answer=$(guestward check --config "$CONFIG" --output json --rights / 2>"$WORK/said"); then
        already "token $TOKEN_ID: it works, and is kept"
        [ "$(stat -c %a:%U:%G "$SECRET")" = 640:root:guestward ] || act "$SECRET for root and group guestward only" guard_secret "$SECRET"
        return
    else
        why=$(token_fault <<<"$answer") || fail "token $TOKEN_ID" "nobody can say whether its secret works: $why" \
            'it was left as it is; mend that and run this again'
    fi
    act "old token $TOKEN_ID taken away: $why" pveum user token remove "$USER_ID" "$TOKEN"
    act "new token $TOKEN_ID, its secret in $SECRET" put_token
    ((DRY)) || read_acls # its old entries went with it
}

token_fault() { # What `guestward check` says on stdin is wrong with the token. Fails where it says something else.
    python3 -IS -c '
import json, sys
try:
    error = json.load(sys.stdin)["error"]
except (ValueError, LookupError):
    sys.exit(print("guestward check gave no proper answer") or 1)
print(error["message"])
sys.exit(error["code"] not in ("token_refused", "secret"))'
}

# The secret goes from PVE into the file and nowhere else: no variable, no argument, no environment, no log.
put_token() {
    (
        umask 077 && pveum user token add "$USER_ID" "$TOKEN" --privsep 1 --comment "$MARK" --output-format json |
            python3 -IS -c 'import json, sys; text = sys.stdin.read(); print(json.loads(text)["value"]) if text else sys.exit(1)' >"$SECRET.new"
    ) && guard_secret "$SECRET.new" && sync "$SECRET.new" && mv -f "$SECRET.new" "$SECRET"
}

guard_secret() { chown root:guestward "$1" && chmod 0640 "$1"; } # FILE; in this order it is at no time open to others

make_grants() {
    local path role propagate wanted=''
    while read -r path role propagate; do
        wanted+="$path$SEP$role"$'\n'
        if has "$ACLS" "$path${SEP}user$SEP$USER_ID$SEP$role$SEP$propagate" &&
            has "$ACLS" "$path${SEP}token$SEP$TOKEN_ID$SEP$role$SEP$propagate"; then
            already "$role at $path"
        else
            act "$role at $path" pveum acl modify "$path" --users "$USER_ID" --tokens "$TOKEN_ID" --roles "$role" --propagate "$propagate"
        fi
    done < <(grants)
    take_back "$wanted"
}

# Entries with our roles that the table does not have: of another band, another pool, or of exec.
take_back() { # "PATH<SEP>ROLE" lines that stay
    local path ugid role seen=''
    while IFS=$SEP read -r path _ ugid role _; do
        if [[ $role != Guestward* || ($ugid != "$USER_ID" && $ugid != "$TOKEN_ID") ]] || has "$1$seen" "$path$SEP$role"; then continue; fi
        seen+=$'\n'"$path$SEP$role"$'\n'
        act "$role at $path taken back" pveum acl delete "$path" --users "$USER_ID" --tokens "$TOKEN_ID" --roles "$role"
    done <<<"$ACLS"
}

# To restore testers, after our own. The root helper puts the same entries back whenever a destroy has taken them away.
grant_grantees() {
    local grantee who vmid path missing users tokens
    for grantee in "${ABSENT[@]}"; do
        failed "grantee $grantee" "$(lack_of "$grantee"), so it gets no rights in the band; all else is done all the same" "$(mend "$grantee")"
    done
    [ ${#THEIRS[@]} -gt 0 ] || return 0
    for ((vmid = FIRST; vmid <= LAST; vmid++)); do
        path=/vms/$vmid missing='' users='' tokens=''
        for who in "${THEIRS[@]}"; do
            if [[ $who == *!* ]]; then
                has "$ACLS" "$path${SEP}token$SEP$who${SEP}GuestwardScratch${SEP}1" || tokens+=${tokens:+,}$who
            else
                has "$ACLS" "$path${SEP}user$SEP$who${SEP}GuestwardScratch${SEP}1" || users+=${users:+,}$who
            fi
        done
        missing=$users${users:+${tokens:+,}}$tokens
        if [ -z "$missing" ]; then already "GuestwardScratch at $path for the grantees"; continue; fi
        set -- ${users:+--users "$users"} ${tokens:+--tokens "$tokens"}
        act "GuestwardScratch at $path for ${missing//,/, }" pveum acl modify "$path" "$@" --roles GuestwardScratch --propagate 1
    done
}

enable_units() {
    local unit
    for unit in "${UNITS[@]}"; do
        if ! systemctl cat "$unit" >/dev/null 2>&1; then
            if ((DRY)); then say 'would do' "unit $unit"; continue; fi
            fail "unit $unit" 'systemd does not know it: the package that is installed brings none' \
                'install a package with units; rights, token and configuration are done, and are kept'
        fi
        if systemctl is-enabled --quiet "$unit" && systemctl is-active --quiet "$unit"; then
            already "unit $unit enabled and active"
            if ((CHANGED)) && [[ $unit == *.service ]]; then
                act "unit $unit reads the new configuration" systemctl reload-or-restart "$unit"
            fi
        else
            act "unit $unit enabled and started" systemctl enable --now "$unit"
        fi
    done
}

put_in_place() { # What install and repair have in common.
    make_service_user
    make_roles
    make_user
    make_pools
    add_guests
    choose_trust
    write_config
    make_token
    make_grants
    grant_grantees
    enable_units
}

# ---------------------------------------------------------------------------------------------------------------- verify

# Asks PVE what token and user may do, and compares. Nothing is ever tried out: a probe that changes something is one that can go wrong.
verify() {
    local path role pool found guest json who lack vmid must_they asked=() band=() needed=() forbidden=(/ /access "/nodes/$NODE" /vms)
    local -A must=() token_may=() user_may=() they_may=() they_lack=()
    command -v guestward >/dev/null || fail verify 'guestward is not installed' "$0 install"
    [ -e "$CONFIG" ] || fail verify "there is no $CONFIG" "$0 repair"
    while read -r path role _; do
        [ -n "${must[$path]+set}" ] || needed+=("$path")
        must[$path]+="${must[$path]+ }$(privileges "$role")"
    done < <(grants)
    ((FIRST == 100)) || forbidden+=("/vms/$((FIRST - 1))")
    ((LAST == 999999999)) || forbidden+=("/vms/$((LAST + 1))")
    for pool in "${POOLS[@]}"; do
        [ -n "$(row "$PVE_POOLS" "$pool")" ] || continue
        found=$(members "$pool")
        guest=$(outside_band "$found")
        if [ -n "$guest" ]; then forbidden+=("/vms/$guest"); else say note "no guest is in pool $pool yet: nothing is guarded"; fi
    done
    for ((vmid = FIRST; vmid <= LAST; vmid++)); do band+=("/vms/$vmid"); done
    asked=("${needed[@]}" "${forbidden[@]}")
    # As the token, over HTTPS, with the secret and the trust that the agent uses.
    json=$(guestward check --config "$CONFIG" --output json --rights "${asked[@]}" 2>"$WORK/said") ||
        fail verify "the token could not be used: $(token_fault <<<"$json" || true)" "$0 repair; guestward check"
    note_rights token_may <<<"$json"
    rights_of "$USER_ID" user_may "${asked[@]}"
    must_they=$(privileges GuestwardScratch)
    for who in "${THEIRS[@]}"; do
        they_may=()
        rights_of "$who" they_may "${band[@]}"
        for path in "${band[@]}"; do
            lack=$(lacking "$must_they" "${they_may[$path]:-}")
            they_lack[$who$SEP$path]=$lack
        done
    done
    note_strays
    compare
}

# As root. PVE lists every path that an entry or a pool names, if anything is held there: so one that is not listed can hold something
# only by inheriting it from one that is, and is asked for only then.
rights_of() { # USER-OR-TOKEN MAP PATH...: what it may do, into the map
    local said path name=$2 call=(pveum user permissions "$1")
    [[ $1 != *!* ]] || call=(pveum user token permissions "${1%%!*}" "${1#*!}")
    shift 2
    ask said "${call[@]}" --output-format json
    note_rights "$name" <<<"$said"
    for path; do
        inherits "$name" "$path" || continue
        ask said "${call[@]}" --path "$path" --output-format json
        note_rights "$name" <<<"$said"
    done
}

inherits() { # MAP PATH: not listed there, but something above it is
    local -n listed=$1
    local above=$2
    [ -z "${listed[$above]+set}" ] || return 1
    while [ "$above" != / ]; do
        above=${above%/*}
        above=${above:-/}
        [ -z "${listed[$above]+set}" ] || return 0
    done
    return 1
}

# Others with our role, in our band or in nobody's: grantees of before, or somebody's own doing. Nobody can say which, so they are only told.
note_strays() {
    local path type ugid role vmid key
    local -A agents=() vmids=()
    while IFS=$SEP read -r path _ ugid _; do
        if [[ $ugid == guestward-*@pve* && ${ugid%%!*} != "$USER_ID" ]]; then agents[$path]=1; fi
    done <<<"$ACLS"
    while IFS=$SEP read -r path type ugid role _; do
        [[ $role = GuestwardScratch && $type != group && $path =~ ^/vms/([0-9]+)$ ]] || continue
        vmid=${BASH_REMATCH[1]}
        if [[ ${ugid%%!*} == "$USER_ID" || -n ${agents[$path]+set} ]] || is_grantee "$path" "$ugid" "$role"; then continue; fi
        vmids["--${type}s ${ugid@Q}"]+=" $vmid"
    done <<<"$ACLS"
    while read -r key; do
        [ -n "$key" ] || continue
        say note "${key#* } has GuestwardScratch at VMID${vmids[$key]} and is no grantee there; it is left. To take it away:"
        say '' "for vmid in${vmids[$key]}; do pveum acl delete /vms/\$vmid $key --roles GuestwardScratch; done"
    done < <(printf '%s\n' "${!vmids[@]}" | sort)
}

outside_band() { # VMIDS: the first that is not in the band
    local vmid
    for vmid in $1; do
        if ((vmid < FIRST || vmid > LAST)); then echo "$vmid"; return; fi
    done
}

excess() { # PATH PRIVILEGES: those that neither token nor user may have there
    local name found=''
    for name in $2; do
        case $name in
        Permissions.Modify | Sys.Modify) ;;
        VM.Allocate) if [[ $1 =~ ^/vms/([0-9]+)$ ]] && ((BASH_REMATCH[1] >= FIRST && BASH_REMATCH[1] <= LAST)); then continue; fi ;;
        *) continue ;;
        esac
        found+="${found:+ }$name"
    done
    echo "$found"
}

# A row for each path. Uses what verify gathered: needed, must, forbidden, token_may, user_may, band, must_they, they_lack.
compare() {
    local path who fault faults='' cell cells shown
    printf '\n%-24s%-69s%-10s%s\n' path 'must have' token user
    for path in "${needed[@]}"; do
        cells=()
        for who in token user; do
            local -n may=${who}_may
            cell=ok
            for fault in $(lacking "${must[$path]}" "${may[$path]:-}"); do
                cell=MISSING faults+="missing for the $who: $fault at $path"$'\n'
            done
            cells+=("$cell")
        done
        printf '%-24s%-69s%-10s%s\n' "$path" "${must[$path]}" "${cells[@]}"
    done
    # Every path that PVE lists is looked at; one that is as it should be is shown only where it was asked for on purpose.
    shown=" ${forbidden[*]} "
    printf '\n%-24s%-69s%-10s%s\n' path 'must not have' token user
    while read -r path; do
        cells=()
        for who in token user; do
            local -n may=${who}_may
            cell=ok
            for fault in $(excess "$path" "${may[$path]:-}"); do
                cell='TOO MUCH' faults+="too much for the $who: $fault at $path"$'\n'
            done
            cells+=("$cell")
        done
        if [ "${cells[*]}" != 'ok ok' ] || [[ $shown == *" $path "* ]]; then
            printf '%-24s%-69s%-10s%s\n' "$path" 'VM.Allocate Permissions.Modify Sys.Modify' "${cells[@]}"
        fi
    done < <(printf '%s\n' "${!token_may[@]}" "${!user_may[@]}" | sort -Vu)
    [ ${#GRANTEES[@]} -eq 0 ] || compare_grantees
    echo
    if [ -z "$faults" ]; then
        echo 'verified: token and user have what they need, and no more'
        [ ${#GRANTEES[@]} -eq 0 ] || echo 'verified: the grantees have what they need in the band'
        return
    fi
    printf '%s' "$faults" >&2
    say_repair "$faults" >&2
    exit 5
}

# The same for each grantee. root@pam may do everything; a plain user has no token.
compare_grantees() {
    local grantee path who cell cells
    printf '\n%-24s%-69s%-10s%-10s%s\n' path 'must have' token user grantee
    for grantee in "${GRANTEES[@]}"; do
        if [[ " ${ABSENT[*]} " == *" $grantee "* ]]; then
            printf '%-24s%-69s%-10s%-10s%s\n' "/vms/$FIRST-$LAST" "$must_they" UNKNOWN UNKNOWN "$grantee"
            faults+="missing for the grantee $grantee: all in the band, since $(lack_of "$grantee")"$'\n'
            continue
        fi
        for path in "${band[@]}"; do
            cells=()
            for who in "$grantee" "${grantee%%!*}"; do
                cell=ok
                if [[ ${#cells[@]} = 0 && $grantee != *!* ]]; then
                    cell=-
                elif [ -n "${they_lack[$who$SEP$path]:-}" ]; then
                    cell=MISSING
                    has "$faults" "missing for the grantee $who: ${they_lack[$who$SEP$path]} at $path" ||
                        faults+="missing for the grantee $who: ${they_lack[$who$SEP$path]} at $path"$'\n'
                fi
                cells+=("$cell")
            done
            printf '%-24s%-69s%-10s%-10s%s\n' "$path" "$must_they" "${cells[@]}" "$grantee"
        done
    done
}

say_repair() { # FAULTS
    local path type ugid role grantee
    read_acls
    for grantee in "${ABSENT[@]}"; do echo "repair it:  $(mend "$grantee")"; done
    if [[ $1 =~ 'missing for '[^$'\n']*' at /' ]]; then
        echo "repair it:  $0 repair --yes"
        while IFS=$SEP read -r path type ugid role _; do
            if [[ $role != NoAccess || " $USER_ID $TOKEN_ID ${THEIRS[*]} " != *" $ugid "* || $1$'\n' != *" at $path"$'\n'* ]]; then continue; fi
            echo "repair it:  pveum acl delete $path --${type}s ${ugid@Q} --roles NoAccess"
        done <<<"$ACLS"
    fi
    [[ $1 == *'too much for'* ]] || return 0
    while IFS=$SEP read -r path type ugid role _; do
        if [[ $ugid != "$USER_ID" && $ugid != "$TOKEN_ID" ]] || [[ $'\n'$(grants) == *$'\n'"$path $role "* ]]; then continue; fi
        echo "repair it:  pveum acl delete $path --${type}s '$ugid' --roles $role"
    done <<<"$ACLS"
    echo "            if that is not it, one of our roles was widened ($0 repair --yes), or the user is in a group (pveum user list)"
}

# ---------------------------------------------------------------------------------------------------------------- uninstall

# Entries before the token and the user that they name, and both before the roles: the other way round PVE leaves them dangling.
uninstall() {
    if ((HERE)); then stop_units; fi
    remove_grants
    remove_tokens
    remove_user
    remove_roles
    remove_leftovers
    if ((HERE)); then
        remove_files
        remove_package
    fi
    check_clean
    say '' 'pool and guests were left as they are'
}

stop_units() {
    local unit
    for ((unit = ${#UNITS[@]} - 1; unit >= 0; unit--)); do
        stop_unit "${UNITS[unit]}"
    done
}

stop_unit() { # UNIT
    if ! systemctl cat "$1" >/dev/null 2>&1; then
        already "unit $1 is not there"
    elif systemctl is-active --quiet "$1" || systemctl is-enabled --quiet "$1" 2>/dev/null; then
        act "unit $1 stopped and disabled" systemctl disable --now "$1"
    else
        already "unit $1 stopped and disabled"
    fi
}

remove_grants() {
    local path type ugid role key keys=()
    local -A users=() tokens=()
    while IFS=$SEP read -r path type ugid role _; do
        if [[ $ugid != "$USER_ID" && $ugid != "$USER_ID!"* ]] && ! is_grantee "$path" "$ugid" "$role"; then continue; fi
        key=$path$SEP$role
        [ -n "${users[$key]+set}${tokens[$key]+set}" ] || keys+=("$key")
        if [ "$type" = user ]; then users[$key]+=${users[$key]+,}$ugid; else tokens[$key]+=${tokens[$key]+,}$ugid; fi
        GONE+="$path$SEP$type$SEP$ugid$SEP$role"$'\n'
    done <<<"$ACLS"
    for key in "${keys[@]}"; do
        path=${key%"$SEP"*} role=${key#*"$SEP"}
        set -- ${users[$key]:+--users "${users[$key]}"} ${tokens[$key]:+--tokens "${tokens[$key]}"}
        act "$role at $path taken from ${users[$key]:-}${users[$key]+${tokens[$key]+, }}${tokens[$key]:-}" pveum acl delete "$path" "$@" --roles "$role"
    done
    [ ${#keys[@]} -gt 0 ] || already 'no entries of ours'
}

is_grantee() { # PATH UGID ROLE: granted by our helper, to a restore tester that the configuration names
    local grantee
    [[ $HERE = 1 && $3 = GuestwardScratch && $1 =~ ^/vms/([0-9]+)$ ]] || return 1
    ((BASH_REMATCH[1] >= FIRST && BASH_REMATCH[1] <= LAST)) || return 1
    for grantee in "${GRANTEES[@]}"; do
        [ "$2" != "$grantee" ] && [ "$2" != "${grantee%%!*}" ] || return 0
    done
    return 1
}

remove_tokens() { # Before the user: with the user alone PVE would leave the secret behind.
    local id
    [ -n "$TOKENS" ] || already "no token of $USER_ID"
    while IFS=$SEP read -r id _; do
        [ -z "$id" ] || act "token $USER_ID!$id with its secret" pveum user token remove "$USER_ID" "$id"
    done <<<"$TOKENS"
}

remove_user() {
    if [ -n "$(row "$USERS" "$USER_ID")" ]; then
        act "user $USER_ID" pveum user delete "$USER_ID"
    else
        already "no user $USER_ID"
    fi
}

remove_roles() { # Other nodes use them, too.
    local role path type ugid used by
    for role in "${ROLE_NAMES[@]}" GuestwardExec; do
        used=''
        while IFS=$SEP read -r path type ugid by _; do
            if [ "$by" = "$role" ] && ! has "$GONE" "$path$SEP$type$SEP$ugid$SEP$role"; then used="$ugid at $path"; fi
        done <<<"$ACLS"
        if [ -z "$(row "$ROLES" "$role")" ]; then
            already "no role $role"
        elif [ -n "$used" ]; then
            already "role $role stays: $used uses it"
        else
            act "role $role" pveum role delete "$role"
        fi
    done
}

# What an earlier deletion in another order left: PVE drops entries that mean nothing at its next write, and a secret only with its token.
remove_leftovers() {
    local id
    for id in $(leftover_secrets); do
        act "secret of $id that PVE had kept" forget_secret "$id"
    done
    if leftover_entries; then act 'entries that mean nothing any more' pveum user delete "$USER_ID"; fi
}

leftover_entries() { grep -qE "^acl:.*[:,]${USER_ID}[!,:]" "$PVE/user.cfg" 2>/dev/null && [ "$DRY" = 0 ]; }

leftover_secrets() { # Ids of tokens whose secret is there though the token is not; read only.
    [ "$DRY" = 1 ] || sed -n "s/^\($USER_ID![^ ]*\) .*/\1/p" "$PVE/priv/token.cfg" 2>/dev/null || true
}

forget_secret() { # TOKEN-ID: a token of the same name replaces the secret, and removing it removes that.
    pveum user add "$USER_ID" --comment "$MARK" && pveum user token add "$USER_ID" "${1#*!}" --privsep 1 >/dev/null &&
        pveum user token remove "$USER_ID" "${1#*!}" && pveum user delete "$USER_ID"
}

remove_files() {
    local file
    remove_file "$SECRET" 'which opens nothing any more'
    remove_file "$SECRET.new" 'left by a run that was interrupted'
    if ((!PURGE)); then
        already "configuration and state stay (--purge takes them away): $FOLDER, $STATE"
        return
    fi
    for file in "$CONFIG" "$CONFIG.new" "$FOLDER/hold"; do remove_file "$file"; done
    if [ -d "$FOLDER" ]; then
        if ((DRY)) || [ -z "$(ls -A "$FOLDER")" ]; then act "folder $FOLDER" rmdir "$FOLDER"; else already "folder $FOLDER stays: it holds other files"; fi
    fi
    if [ -d "$STATE" ]; then act "state $STATE" rm -rf "$STATE"; else already "no state $STATE"; fi
}

remove_file() { # FILE [WHY]
    if [ -e "$1" ]; then act "file $1${2:+, $2}" rm -f "$1"; fi
}

remove_package() {
    if dpkg-query -W guestward >/dev/null 2>&1 && command -v guestward >/dev/null; then
        act 'package guestward' apt-get "$([ "$PURGE" = 1 ] && echo purge || echo remove)" -y guestward
    else
        already 'no package guestward'
    fi
}

check_clean() {
    ((!DRY)) || return 0
    read_acls
    if [[ $ACLS == *"$SEP$USER_ID"[!"$SEP"]* || $ACLS == *"$SEP$USER_ID$SEP"* ]] || leftover_entries; then
        fail 'clean' "entries of $USER_ID are still there" 'run this again; see pveum acl list'
    fi
    if [ -n "$(leftover_secrets)" ]; then
        fail 'clean' "PVE still keeps a secret of $USER_ID (/etc/pve/priv/token.cfg)" 'run this again'
    fi
    say 'checked' "no entry, token or secret of $USER_ID is left"
}

# ---------------------------------------------------------------------------------------------------------------- what is done

main() {
    parse "$@"
    WORK=$(mktemp -d)
    trap 'rm -rf "$WORK"' EXIT
    trap 'echo "interrupted; run it again, it goes on where it ended" >&2; exit 1' INT TERM HUP
    GONE=''
    check_host
    read_config
    read_pve
    case $COMMAND in
    install | repair)
        check_band
        check_guests
        confirm "$COMMAND on $NODE: pool ${POOLS[*]}, band $FIRST-$LAST, user $USER_ID${GRANTEES[*]:+, grantees ${GRANTEES[*]}}?"
        [ "$COMMAND" = repair ] || install_package
        put_in_place
        if ((DRY)); then say 'would do' 'verify'; else verify; fi
        ;;
    verify) verify ;;
    uninstall)
        confirm "take Guestward away from $NODE: $USER_ID, its token and rights$( ((PURGE)) && echo ', configuration and state')?"
        uninstall
        ;;
    esac
}

main "$@"
