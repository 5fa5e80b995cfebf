#!/bin/sh
# Stand-ins for the other programs that host-install.sh changes a host with; the name it is called by says which. See programs.py.
name=${0##*/}
at=$STANDIN/standin

step() { # what was just done is counted; perhaps the power goes now
    echo "$name $*" >>"$at/steps"
    [ "${STANDIN_KILL:-}" != "$(wc -l <"$at/steps" | tr -d ' ')" ] || kill -KILL 0
}

may() { # or it fails
    [ "${STANDIN_FAIL:-}" != "$(($([ -e "$at/steps" ] && wc -l <"$at/steps" || echo 0) + 1))" ] || { echo "$name: it failed" >&2; exit 1; }
}

here() { case $1 in "$STANDIN"/*) return 0 ;; *) return 1 ;; esac; } # not in a temporary folder

for last; do :; done
case $name in
pveversion) cat "$at/pveversion" ;;
hostname) cat "$at/fqdn" ;;
id) if [ "$1" = -u ]; then cat "$at/uid"; else cat "$at/groups"; fi ;;
getent) [ -e "$at/user" ] ;;
adduser) may && touch "$at/user" && step "$@" ;;
usermod) may && echo 'guestward www-data' >"$at/groups" && step "$@" ;;
chown) may && { echo "$1" | tr -d '\n' >"$at/owner-$(basename "$2" .new)" && step "$@"; } ;;
stat)
    if [ "$2" = %a:%U:%G ]; then echo "$(/usr/bin/stat -c %a "$3"):$(cat "$at/owner-${3##*/}")"; else exec /usr/bin/stat "$@"; fi
    ;;
mv | rm)
    if here "$last"; then may; fi
    "/bin/$name" "$@" || exit
    if here "$last"; then step "$@"; fi
    ;;
dpkg-deb) echo 0.2.0-1 ;;
dpkg-query) [ -e "$at/installed" ] && cat "$at/installed" ;;
apt-get)
    may
    if [ "$1" = install ]; then
        cp "$at/guestward" "$STANDIN/bin/guestward" && echo 0.2.0-1 >"$at/installed"
    else
        /bin/rm -f "$STANDIN/bin/guestward" "$at/installed"
    fi
    step "$@"
    ;;
systemctl)
    unit=$at/units/$last
    case $1 in
    cat) [ -e "$unit" ] ;;
    is-enabled | is-active) [ -s "$unit" ] ;;
    enable) may && echo enabled >"$unit" && step "$@" ;;
    disable) may && : >"$unit" && step "$@" ;;
    *) may && step "$@" ;;
    esac
    ;;
esac
