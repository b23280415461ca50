#!/bin/sh
# What `nft flush ruleset` does with a table that another process owns.
#
# Packages: Debian 12 (bookworm) nftables 1.0.6-2+deb12u2 and libraries (versions below), run with Linux 5.12 or later
#           and unprivileged user namespaces. Needs an amd64 Linux with bookworm among its apt sources, and no root.
# Expected: after `flush ruleset` no table is left, or the command fails and names the table that it cannot remove.
# Seen:     the command succeeds and says nothing, and the owned table stays with its rules. `delete table` fails:
#           "Operation not permitted". The table goes without a command, when its owner ends.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq nftables=1.0.6-2+deb12u2 libnftables1=1.0.6-2+deb12u2 libnftnl11=1.2.4-2 libxtables12=1.8.9-2 \
    libjansson4=2.14-2 libedit2=3.1-20221030-2 libgmp10=2:6.2.1+dfsg1-1.1 libmnl0=1.0.4-3 libbsd0=0.11.7-2 \
    libmd0=1.0.4-2 2>"$tmp/apt" ||
    { cat "$tmp/apt" >&2; exit 1; }
for deb in *.deb; do dpkg -x "$deb" root; done
export LD_LIBRARY_PATH="$tmp/root/usr/lib/x86_64-linux-gnu:$tmp/root/lib/x86_64-linux-gnu"
export NFT="$tmp/root/usr/sbin/nft"
"$NFT" -v

cat >inside <<'INSIDE'
mkfifo commands
"$NFT" -i <commands >/dev/null 2>&1 &
exec 3>commands
echo 'add table inet owned { flags owner; }' >&3
echo 'add chain inet owned c { type filter hook forward priority 0; }' >&3
for _ in 1 2 3 4 5 6 7 8 9 10; do
    "$NFT" list tables | grep -q owned && break
    sleep 0.2
done
"$NFT" add table inet plain
"$NFT" flush ruleset && echo "flush ruleset: succeeds"
echo "then there is:" $("$NFT" list tables)
"$NFT" delete table inet owned 2>&1 | grep -o 'Operation not permitted'
exec 3>&-
wait
echo "when the owner has ended:" $("$NFT" list tables | wc -l) "tables"
INSIDE
unshare --user --map-root-user --net sh inside | tee seen
printf '%s\n' 'flush ruleset: succeeds' 'then there is: table inet owned' 'Operation not permitted' \
    'when the owner has ended: 0 tables' | diff - seen
