#!/bin/sh
# An IPv4 address with fewer than four parts, or with a leading zero, as iproute2 reads it.
#
# Packages: Debian 12 (bookworm) iproute2 6.1.0-3, libbpf1, libelf1, libmnl0, libbsd0, libmd0 (versions below).
#           Needs an amd64 Linux with bookworm among its apt sources, and no root.
# Expected: 127.1 is 127.0.0.1 and 127.010 is 127.0.0.8, as the C library has it (inet_aton, getaddrinfo): the last
#           part fills the rest of the address.
# Seen:     iproute2 appends zeros: 127.1 is 127.1.0.0, and 127.010 is 127.8.0.0. It takes the octal number, so that
#           the two readers agree on each part and still not on the address.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq iproute2=6.1.0-3 libbpf1=1:1.1.2-0+deb12u1 libelf1=0.188-2.1 libmnl0=1.0.4-3 libbsd0=0.11.7-2 \
    libmd0=1.0.4-2 2>"$tmp/apt" || { cat "$tmp/apt" >&2; exit 1; }
for deb in *.deb; do dpkg -x "$deb" root; done
ip=$(find root -path '*bin/ip' -type f)
export LD_LIBRARY_PATH="$tmp/root/usr/lib/x86_64-linux-gnu:$tmp/root/lib/x86_64-linux-gnu"
"$ip" -V

for address in 127.1 127.010; do
    by_c=$(python3 -c 'import socket, sys; print(socket.inet_ntoa(socket.inet_aton(sys.argv[1])))' "$address")
    # The loopback network answers for all of 127.0.0.0/8, so the answer needs no route of this machine.
    by_ip=$("$ip" route get "$address" | sed -n 's/^local \([0-9.]*\) .*/\1/p')
    echo "$address: the C library $by_c, ip $by_ip"
done | tee seen
printf '%s\n' '127.1: the C library 127.0.0.1, ip 127.1.0.0' '127.010: the C library 127.0.0.8, ip 127.8.0.0' |
    diff - seen
