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
    event=$1
    shift
    before=$(main_pid) met=$(connected)
    guest web0 90 'ping -i 0.05 -c 200 -W 10 192.168.60.2' >/tmp/ping.log &
    ping=$!
    sleep 3
    "$@"
    within 20 "$event: weir does not answer" weir stats
    wait $ping || { cat /tmp/ping.log; fail "no ping over $event"; }
    [ "$(main_pid)" != "$before" ] || fail "$event: the same process serves"
    [ "$(connected)" = "$met" ] || fail "$event: a front end has connected again"
    result=$(grep -o '[0-9]* packets received.*loss' /tmp/ping.log)
    say "$event: of 200 packets $result; longest $(grep 'round-trip' /tmp/ping.log | cut -d/ -f5)"
    # Of one in 200 ping says 0%. Its socket takes a dozen answers at once: more would not tell of weir.
    grep -q '^200 packets transmitted, 200 packets received' /tmp/ping.log ||
        { cat /tmp/ping.log; weir stats; fail "$event: frames are lost"; }
}
main_pid() { systemctl show --property MainPID --value weir; }
# The next block of lines of a document that says that this script runs it.
block() { # DOCUMENT NUMBER
    echo "$1 $2" >>/tmp/blocks
    awk -v wanted="$2" '/^<!-- tests\/deb\/steps.sh runs these lines/ { marked = 1 }
        /^```/ { inside = !inside; if (inside) { number += marked; ours = marked; marked = 0 }; next }
        inside && ours && number == wanted && NF' "$1" | tee /tmp/block
    [ -s /tmp/block ] || fail "$1 has no block $2 for this script"
}
# Has a line of a document done as it says, and shows it.
typed() { # LINE [COMMAND...]
    printf "      # %s\n" "$1"
    if [ $# = 1 ]; then set -- "$1" sh -e -c "$1"; fi
    what=$1
    shift
    "$@" </dev/null || fail "$what"
}
pings() { within 240 "no answer from $1" ping -c 1 -W 1 "$1"; }
guest() { python3 /given/console.py "$(virsh --quiet ttyconsole "$1")" "$2" "$3"; }
# `virsh console NAME     # there: COMMAND`
console() { # LINE
    typed "$1" guest "$(printf %s "$1" | cut -d " " -f 3)" 180 "$(printf %s "$1" | sed "s/.*there: //; s/^ping 1/ping -c 5 1/")"
}
quiet_apt() { apt-get -q -y "$@" </dev/null >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; fail "apt-get $*"; }; }

within 60 "systemd does not come up" sh -c 'systemctl is-system-running | grep -E "running|degraded"'
# A host's udev makes it so; a container has none.
mkdir -p /dev/net
[ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200
chmod 666 /dev/net/tun

say "lintian"
runuser -u nobody -- lintian --fail-on error --tag-display-limit 0 weir_*.deb weir-lab_*.deb || fail "lintian finds errors"

say "install, libvirt, two domains that ping: the commands of install.md"
block install.md 1 >/tmp/commands
count=$(grep -c . /tmp/commands)
[ "$count" -ge 4 ] && [ "$count" -le 6 ] || fail "install.md has $count commands"
while read -r command; do
    case $command in
    apt\ install\ *) typed "$command" quiet_apt install ./weir_*.deb
        within 10 "the service does not start" systemctl is-active weir
        [ -e /dev/kvm ] || sed -i "s/type='kvm'/type='qemu'/" /usr/share/doc/weir/examples/libvirt/*.xml ;;
    virsh\ console\ *) console "$command" ;;
    *) typed "$command" ;;
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
# FRR's sockets are this group's: weir sees FRR end by connections to them.
frrvty=$(getent group frrvty | cut -d: -f3)
for process in $(pgrep -x weir) $(pgrep -x weir-helper || true); do
    grep '^Groups:' "/proc/$process/status" | grep -qw "$frrvty" || fail "process $process is not in FRR's group"
done
ss -Hlun | grep -q '192\.168\.77\.1:53 ' || fail "the host cannot ask weir for names"
! weir lab list 2>/tmp/lab.log || fail "weir has the lab"
grep -q 'package weir-lab' /tmp/lab.log || fail "weir does not say where the lab is"
quiet_apt install ./weir-lab_*.deb
weir lab list | grep -q dong-fig11 || fail "no lab"
weir demo --json --seconds 1 >/dev/null || fail "no demo"
for page in $(dpkg --listfiles weir weir-lab | grep '/man/man[18]/.'); do
    MANROFFOPT=-wall man --warnings "$page" 2>&1 >/dev/null | tee /tmp/man.log
    [ ! -s /tmp/man.log ] || fail "man page $page"
    name=$(basename "$page" .gz)
    [ "$(man --where "${name##*.}" "${name%.*}")" = "$page" ] || fail "man does not find $name"
done
[ "$(dpkg --listfiles weir | grep -c '/man/man[18]/.')" -ge 35 ] || fail "not a page for each command"
bash -c 'for f in /usr/share/bash-completion/completions/weir*; do . "$f" || exit 1; done
    complete -p weir weir-agent weir-bench weir-keeper weir-lab weir-vhost-user-net' >/dev/null || fail "bash does not know weir"
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
echo 'nonsense = 1' >>/etc/weir/weir.toml
! systemctl reload weir 2>/dev/null || fail "systemctl reload says nothing of a wrong file"
journalctl -q -u weir | grep 'unknown key .nonsense' || fail "the log does not say what is wrong"
sed -i '$d' /etc/weir/weir.toml

say "the host knows guests by name, by systemd-resolved, as network.md has it"
knows() { resolvectl flush-caches && [ "$(getent hosts web0.internal | awk '{ print $1 }')" = 192.168.77.10 ]; }
sed -i 's/^nat = true$/&\nfixed = "web0 192.168.77.10"/' /etc/weir/weir.toml
systemctl restart weir
cat >/tmp/resolver.py <<'P'
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.9", 53))
while True:
    asked, who = server.recvfrom(512)
    end = asked.index(0, 12) + 5
    has = asked[end - 4 : end - 2] == b"\0\1"
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\xcb\0\x71\x09" if has else b""
    server.sendto(asked[:2] + b"\x81\x80\0\1\0" + bytes([has]) + bytes(4) + asked[12:end] + answer, who)
P
# Without an interface that is up systemd-resolved asks nobody.
ip link add way0 type veth peer name way1
for way in way0 way1; do ip link set $way up; done
ip address add 192.0.2.1/24 dev way0
python3 /tmp/resolver.py >/dev/null 2>&1 &
resolver=$!
mkdir -p /etc/systemd/resolved.conf.d
printf '[Resolve]\nDNS=127.0.0.9\n' >/etc/systemd/resolved.conf.d/test.conf
quiet_apt install systemd-resolved
# In an overlay dbus-daemon does not see the policy that came with the package before apt tells it.
systemctl restart systemd-resolved
within 20 "systemd-resolved does not start" getent ahostsv4 example.org
! knows || fail "systemd-resolved knows web0 before it is told"
typed "weir tell-resolved"
knows || fail "the host does not know web0: $(resolvectl status)"
[ "$(getent hosts web0 | awk '{ print $1 }')" = 192.168.77.10 ] || fail "web0 takes its domain"
getent ahostsv4 example.org | grep -q '^203\.0\.113\.9 ' || fail "other names are not asked where they were"
resolvectl status weir-lan | grep -e -DefaultRoute | grep -e -LLMNR | grep -qe -mDNS || fail "$(resolvectl status weir-lan)"
for event in "systemctl restart weir" 'kill -KILL "$(systemctl show -P MainPID weir)"' "systemctl restart systemd-resolved"; do
    sh -c "$event"
    within 20 "$event: the host does not know web0" knows
done
systemctl stop weir
! knows && ! resolvectl status | grep -q 192.168.77.1 || fail "weir has stopped, and $(resolvectl status)"
getent ahostsv4 example.org | grep -q '^203\.0\.113\.9 ' || fail "without weir there are no names"
systemctl stop systemd-resolved
systemctl start weir
! systemctl is-active systemd-resolved || fail "weir has started systemd-resolved"
kill $resolver
ip link delete way0

say "an uplink, the guide's first lines"
sed '/^# The way to the host/,$d' /etc/weir/weir.toml >/tmp/default.toml
(cat /tmp/default.toml && block first-vm.md 1) >/etc/weir/weir.toml
block first-vm.md 2 >/tmp/commands
while read -r command; do
    case $command in ip\ addr*) within 10 "no TAP" ip link show weir0 ;; esac
    typed "$command"
done </tmp/commands
pings 192.168.60.1

say "nothing that happens to weir is noticed by a guest"
under_traffic "a restart" systemctl restart weir
under_traffic "SIGKILL" sh -c 'kill -KILL "$(systemctl show -P MainPID weir)"'
block keeper.md 1 >/tmp/commands
kept=$(sed 's/ *#.*//' /tmp/commands)
[ "$kept" = 'apt install ./weir_*.deb
systemctl reload weir
weir upgrade
systemctl restart weir
systemctl restart weir-keeper' ] || fail "keeper.md has other lines: $kept"
under_traffic "an upgrade" quiet_apt install ./later/weir_*.deb
journalctl -q -u weir | grep 'another weir has taken' | tail -n 1 | grep -o 'gap_ms.*' || fail "not by weir upgrade"
under_traffic "weir upgrade" weir upgrade
grep -q 'vif.web0' /etc/weir/weir.toml || fail "the upgrade has changed the configuration"
dpkg-query --show weir | grep -q later || fail "not upgraded"
systemctl restart weir-keeper
within 10 "the next keeper is not filled" sh -c 'journalctl -q -u weir | grep "a keeper is there"'
under_traffic "a restart with another keeper" systemctl restart weir

say "to the network, as the README does"
ip link add eth0 type veth peer name behind && ip link set eth0 up
block README.md 1 >/tmp/commands
while read -r command; do typed "$command"; done </tmp/commands
ip link set behind up && ip address add 192.168.60.253/24 dev behind
[ "$(ls /sys/class/net/br0/brif | sort | xargs)" = 'eth0 weir0' ] || fail "br0 has $(ls /sys/class/net/br0/brif)"
ip link set weir0 nomaster && ip link delete br0 && ip link delete eth0
ip address delete 192.168.50.1/24 dev weir0
pings 192.168.60.1

say "a machine under QEMU, as the guide has it"
virsh --quiet destroy web0
block first-vm.md 3 >/tmp/machine
grep 'qemu-system' /tmp/machine || fail "first-vm.md starts no QEMU"
sed -i 's/^qemu-system/exec &/' /tmp/machine
sh -e /tmp/machine </dev/null >/dev/null &
qemu=$!
block first-vm.md 4 >/tmp/commands
while read -r command; do
    case $command in ping*) pings 192.168.60.1 ;; esac
    typed "$command"
done </tmp/commands
kill $qemu
wait $qemu || true

say "a machine as a unit of systemd, as the example has it"
cp /usr/share/doc/weir/examples/systemd/vm@.service /etc/systemd/system/
[ -e /dev/kvm ] || sed -i 's/-accel kvm/-accel tcg/' /etc/systemd/system/vm@.service
mkdir /etc/vms
printf 'DISK=/var/lib/libvirt/images/web0.qcow2\nMEMORY=512M\n' >/etc/vms/web0.env
systemctl daemon-reload
systemctl start vm@web0
pings 192.168.60.1
systemctl stop vm@web0

say "a machine of libvirt's, as the guide has it"
# One that has neither shared memory nor an interface.
sed '/<memoryBacking>/,/<\/memoryBacking>/d; /<interface/,/<\/interface>/d' /usr/share/doc/weir/examples/libvirt/web0.xml \
    >/tmp/web0.xml
[ -e /dev/kvm ] || sed -i "s/type='kvm'/type='qemu'/" /tmp/web0.xml
virsh --quiet define /tmp/web0.xml
# What a person does in the editor.
cat >/tmp/editor <<'P'
#!/usr/bin/python3
import subprocess, sys
printed = subprocess.run(["weir", "qemu-args", "web0", "--for", "libvirt"], check=True, capture_output=True, text=True)
domain, devices = printed.stdout.split("<!-- in <devices> -->")
text = open(sys.argv[1]).read()
text = text.replace("<os>", domain + "<os>", 1).replace("</devices>", devices + "</devices>", 1)
open(sys.argv[1], "w").write(text)
P
chmod +x /tmp/editor
block first-vm.md 5 >/tmp/commands
while read -r command; do
    case $command in
    virsh\ edit\ *) typed "$command" env EDITOR=/tmp/editor sh -e -c "$command" ;;
    virsh\ console\ *) console "$command" ;;
    *) typed "$command" ;;
    esac
done </tmp/commands

say "the API over TCP, for Prometheus"
block monitoring.md 1 >/tmp/keys
grep -v '^\[switch\]' /tmp/keys >/tmp/switch.toml
sed -i '/^\[switch\]/r /tmp/switch.toml' /etc/weir/weir.toml
block monitoring.md 2 >/tmp/commands
while read -r command; do
    # The kernel's answer to a restart under a keeper.
    case $command in curl*) within 20 "weir does not answer" weir stats ;; esac
    typed "$command"
done </tmp/commands
asks() { curl -s -o /dev/null -w '%{http_code}' "$@"; }
token=$(cat /etc/prometheus/weir.token)
[ "$(asks http://127.0.0.1:9101/metrics)" = 401 ] || fail "without the token: $(asks http://127.0.0.1:9101/metrics)"
[ "$(asks -H "Authorization: Bearer $token" http://127.0.0.1:9101/metrics)" = 200 ] || fail "with the token"
[ "$(asks -H "Authorization: Bearer $token" -X DELETE http://127.0.0.1:9101/v1/vifs/db0)" = 403 ] || fail "TCP may write"
cp /usr/share/doc/weir/examples/prometheus/prometheus.yml /usr/share/doc/weir/examples/prometheus/weir-alerts.yml /etc/prometheus/
systemctl restart prometheus
up='http://127.0.0.1:9090/api/v1/query?query=up%7Bjob%3D%22weir%22%7D'
within 60 "Prometheus does not scrape weir" sh -c "curl -s '$up' | grep -F ',\"1\"]'"
systemctl stop prometheus

say "a group, and who of it may write"
groupadd --system operators
for user in reader writer; do useradd --system --groups kvm,operators $user; done
useradd --system stranger
asked() { # USER COMMAND...
    user=$1
    shift
    runuser -u "$user" -- weir --control /run/weir/control.sock "$@" >/tmp/asked.log 2>&1
}
served_to() { # GROUP
    printf 'group = "%s"\nadmin = ["writer"]\n' "$1" >/tmp/switch.toml
    sed -i '/^group = /d; /^admin = /d' /etc/weir/weir.toml
    sed -i '/^\[switch\]/r /tmp/switch.toml' /etc/weir/weir.toml
    systemctl restart weir || fail "weir does not start with group = $1"
    within 20 "weir does not answer" weir stats
    [ "$(stat -c '%G %a' /run/weir/control.sock)" = "$1 660" ] || fail "$(stat /run/weir/control.sock)"
    asked reader stats || fail "a member of $1 may not read: $(cat /tmp/asked.log)"
    asked writer vif set db0 weight=2 || fail "an admin may not write: $(cat /tmp/asked.log)"
    ! asked reader vif set db0 weight=3 || fail "somebody else may write"
    ! asked stranger stats || fail "a stranger may read"
    [ "$(asks -H "Authorization: Bearer $token" http://127.0.0.1:9101/metrics)" = 200 ] || fail "no TCP with group = $1"
}
# The keys in a row of install.md's last table.
keys() { # ROW
    grep -F "| $1 |" install.md | cut -d '|' -f 3 | grep -o '`[A-Za-z]*=[^`]*`' | tr -d '`'
}
edited() { # what `systemctl edit weir` would save
    mkdir -p /etc/systemd/system/weir.service.d
    printf '%s\n' '[Service]' "$@" >/etc/systemd/system/weir.service.d/override.conf
    systemctl daemon-reload
}
served_to kvm
# As install.md has it, for another group.
edited $(keys 'let a group other than `kvm` use `weir` (`group`)')
served_to operators
[ "$(ps -o user= -p "$(main_pid)")" = weir ] || fail "weir does not run as weir"
# As install.md has it for Xen.
later=
[ "$(systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p')" -lt 257 ] || later='the same, with systemd 257 or later'
edited RuntimeDirectoryMode=0755 $(keys 'serve Xen (`[xen]`)') ${later:+$(keys "$later")}
grep -q ^User=root /etc/systemd/system/weir.service.d/override.conf || fail "install.md has no keys for Xen"
systemctl stop weir
served_to operators
[ "$(ps -o user= -p "$(main_pid)")" != root ] || fail "weir stays root"
# A socket is a user's as long as the file says so.
printf '\n[vif.own0]\nsocket_user = "stranger"\n' >>/etc/weir/weir.toml
systemctl restart weir || fail "weir does not start with a socket_user"
within 20 "weir does not answer" weir stats
[ "$(stat -c %U /run/weir/own0.sock)" = stranger ] || fail "$(stat /run/weir/own0.sock)"
sed -i '/^socket_user = /d' /etc/weir/weir.toml
weir upgrade || fail "no upgrade without a socket_user"
[ "$(stat -c %U /run/weir/own0.sock)" = root ] || fail "$(stat /run/weir/own0.sock)"
sed -i '/^\[vif.own0\]/d' /etc/weir/weir.toml
systemctl stop weir
rm -r /etc/systemd/system/weir.service.d
systemctl daemon-reload
sed -i '/^group = /d; /^admin = /d' /etc/weir/weir.toml
systemctl start weir
within 30 "front ends do not come back" sh -c '[ "$(weir vif list | grep -c running)" = 2 ]'

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
quiet_apt purge weir weir-lab
for left in /etc/weir /etc/apparmor.d/weir /etc/apparmor.d/local/weir /usr/share/doc/weir \
    /etc/systemd/system/multi-user.target.wants/weir.service /var/lib/systemd/deb-systemd-helper-enabled/weir.service.dsh-also; do
    [ ! -e $left ] || fail "$left is left"
done
getent passwd weir >/dev/null || fail "the user is gone"

marked=$(cat ./*.md | grep -c '^<!-- tests/deb/steps.sh runs these lines')
[ "$(sort -u /tmp/blocks | wc -l)" = "$marked" ] || fail "of $marked blocks of the documents, ran: $(sort -u /tmp/blocks | xargs)"
