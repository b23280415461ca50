#!/bin/sh
# What the package must do, inside a machine that has booted; /given has what is tested.
set -eu
cd /given

say() { echo "deb-test:   $*"; }
fail() { echo "deb-test: FAILED: $*"; exit 1; }
within() { # SECONDS WHAT COMMAND...
    seconds=$1 what=$2
    shift 2
    for _ in $(seq $((seconds * 5))); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    fail "$what"
}
# Front ends that weir has met for the first time, not taken over.
connected() { journalctl -q -u weir | grep -c 'front end connected' || true; }
# What goes wrong while WHAT is done under traffic; each ping waits for its answer in a ring, so none is lost.
under_traffic() { # WHAT COMMAND...
    what=$1
    shift
    before=$(main_pid) met=$(connected)
    guest web0 90 'ping -i 0.02 -c 400 -W 10 192.168.60.2' >/tmp/ping.log &
    ping=$!
    sleep 3
    "$@"
    within 20 "$what: weir does not answer" weir stats
    wait $ping || { cat /tmp/ping.log; fail "no ping over $what"; }
    [ "$(main_pid)" != "$before" ] || fail "$what: the same process serves"
    [ "$(connected)" = "$met" ] || fail "$what: a front end has connected again"
    result=$(grep -o '[0-9]* packets received.*loss' /tmp/ping.log)
    say "$what: of 400 packets $result; longest $(grep 'round-trip' /tmp/ping.log | cut -d/ -f5)"
    grep -q ' 0% packet loss' /tmp/ping.log || { cat /tmp/ping.log; fail "$what: frames are lost"; }
}
main_pid() { systemctl show --property MainPID --value weir; }
guest() { python3 /given/console.py "$(virsh --quiet ttyconsole "$1")" "$2" "$3"; }
quiet_apt() { apt-get -q -y "$@" </dev/null >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; fail "apt-get $*"; }; }

within 60 "systemd does not come up" sh -c 'systemctl is-system-running | grep -E "running|degraded"'
# A host's udev makes it so; a container has none.
mkdir -p /dev/net
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
chmod 666 /dev/net/tun

say "lintian"
runuser -u nobody -- lintian --fail-on error --tag-display-limit 0 weir_*.deb || fail "lintian finds errors"

say "install, libvirt, two domains that ping: the commands of install.md"
awk '/<!-- tests\/deb\/steps.sh/ { here = 1 } here && /^```$/ { exit } here && !/^```|<!--/' install.md >/tmp/commands
count=$(grep -c . /tmp/commands)
[ "$count" -ge 4 ] && [ "$count" -le 6 ] || fail "install.md has $count commands"
while read -r command; do
    printf "      # %s\n" "$command"
    case $command in
    apt\ install\ *) quiet_apt install ./weir_*.deb
        within 10 "the service does not start" systemctl is-active weir
        [ -e /dev/kvm ] || sed -i "s/type='kvm'/type='qemu'/" /usr/share/doc/weir/examples/libvirt/*.xml ;;
    virsh\ console\ *)
        name=$(printf %s "$command" | awk "{ print \$3 }")
        guest "$name" 180 "ping -c 5 $(printf %s "$command" | grep -o '192[.0-9]*')" || fail "no ping" ;;
    *) sh -e -c "$command" </dev/null || fail "$command" ;;
    esac
done </tmp/commands

say "what is installed works"
weir stats
[ "$(ps -o user= -p "$(main_pid)")" = weir ] || fail "weir does not run as weir"
[ "$(stat -c '%U:%G %a' /run/weir/web0.sock)" = 'weir:kvm 660' ] || fail "$(stat /run/weir/web0.sock)"
[ "$(stat -c '%U %a' /run/weir/control.sock)" = 'weir 600' ] || fail "$(stat /run/weir/control.sock)"
for process in $(pgrep -x weir) $(pgrep -x weir-helper || true); do
    grep -q '^NoNewPrivs:.*1$' "/proc/$process/status" || fail "process $process may have new privileges"
done
grep -q '^CapEff:.*0000000000000000$' "/proc/$(main_pid)/status" || fail "weir has capabilities"
for page in weir.1 weir-run.1 weir-vif-add.1 weir-lab-run.1 weir-vhost-user-net.8 weir-keeper.8 weir-agent.8; do
    MANROFFOPT=-wall man --warnings "$(man --where "${page#*.}" "${page%.*}")" 2>&1 >/dev/null | tee /tmp/man.log
    [ ! -s /tmp/man.log ] || fail "man page $page"
done
bash -c 'for f in /usr/share/bash-completion/completions/weir*; do . "$f" || exit 1; done
    complete -p weir weir-agent weir-keeper weir-vhost-user-net' >/dev/null || fail "bash does not know weir"
zsh -c 'autoload -U compinit && compinit -u && [[ ${_comps[weir]} = _weir ]]' || fail "zsh does not know weir"
[ -n "$(fish -c 'complete -C "weir qemu"')" ] || fail "fish does not complete weir"
description=/usr/share/qemu/vhost-user/50-weir-net.json
program=$(python3 -c "import json; print(json.load(open('$description'))['binary'])")
"$program" --print-capabilities | python3 -c 'import json, sys; assert json.load(sys.stdin)["type"] == "net"'
apparmor_parser --skip-kernel-load --skip-cache /etc/apparmor.d/weir
[ "$(systemctl is-enabled weir weir-keeper weir-agent || true)" = "$(printf 'enabled\nenabled\ndisabled')" ] ||
    fail "what is enabled"
systemd-analyze verify /lib/systemd/system/weir.service /lib/systemd/system/weir-keeper.service 2>&1 | grep weir &&
    fail "systemd does not like the units"
systemd-analyze security --no-pager weir | tail -n 1
systemd-analyze security --no-pager weir-keeper | tail -n 1
[ "$(systemctl show -P WatchdogUSec weir)" = 1min ] || fail "no watchdog"
systemctl reload weir || fail "systemctl reload"
within 5 "not reloaded" sh -c 'journalctl -q -u weir | grep -i "reload"'

say "a TAP"
printf '[uplink.lan]\nkind = "tap"\nname = "weir0"\n' >>/etc/weir/weir.toml
systemctl restart weir
within 10 "no TAP" ip link show weir0
ip address add 192.168.60.254/24 dev weir0
within 60 "no ping through the TAP" ping -c 1 -W 1 192.168.60.1

say "nothing that happens to weir is noticed by a guest"
under_traffic "a restart" systemctl restart weir
under_traffic "SIGKILL" sh -c 'kill -KILL "$(systemctl show -P MainPID weir)"'
under_traffic "an upgrade" quiet_apt install ./later/weir_*.deb
journalctl -q -u weir | grep 'another weir has taken' | tail -n 1 | grep -o 'gap_ms.*' || fail "not by weir upgrade"
under_traffic "weir upgrade" weir upgrade
grep -q 'vif.web0' /etc/weir/weir.toml || fail "the upgrade has changed the configuration"
dpkg-query --show weir | grep -q later || fail "not upgraded"
systemctl restart weir-keeper
within 10 "the next keeper is not filled" sh -c 'journalctl -q -u weir | grep "a keeper is there"'
under_traffic "a restart with another keeper" systemctl restart weir

say "a stop disconnects, for good"
systemctl stop weir
[ ! -e /run/weir ] || fail "something is left in /run/weir"
met=$(connected)
systemctl start weir
within 30 "front ends do not come back" sh -c "[ \$(journalctl -q -u weir | grep -c 'front end connected') -ge $((met + 2)) ]"
guest web0 60 'ping -c 3 192.168.60.2' >/dev/null || fail "no ping after a stop"

say "a wrong configuration is told, and not tried again and again"
cp /etc/weir/weir.toml /tmp/good.toml
echo 'nonsense = 1' >>/etc/weir/weir.toml
! systemctl restart weir 2>/dev/null || sleep 1
within 10 "weir has not ended" systemctl is-failed weir
[ "$(systemctl show -P ExecMainStatus weir)" = 3 ] || fail "not exit code 3"
[ "$(systemctl show -P NRestarts weir)" -le 1 ] || fail "systemd has tried again"
cp /tmp/good.toml /etc/weir/weir.toml
systemctl reset-failed weir
systemctl start weir

say "remove"
quiet_apt remove weir
! systemctl is-active weir >/dev/null || fail "it still runs"
! pgrep 'weir' >/dev/null || fail "a process is left"
[ -e /etc/weir/weir.toml ] || fail "the configuration is gone"
[ ! -e /usr/bin/weir ] && [ ! -e /run/weir ] && [ ! -e /run/weir-keeper ] || fail "something is left"

say "purge"
quiet_apt purge weir
for left in /etc/weir /etc/apparmor.d/weir /etc/apparmor.d/local/weir /usr/share/doc/weir \
    /etc/systemd/system/multi-user.target.wants/weir.service /var/lib/systemd/deb-systemd-helper-enabled/weir.service.dsh-also; do
    [ ! -e $left ] || fail "$left is left"
done
getent passwd weir >/dev/null || fail "the user is gone"
