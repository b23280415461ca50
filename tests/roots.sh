# shellcheck shell=sh
# Roots of Debian's suites, for the scripts in this folder's folders. They set `repository`, and have `say` and `fail`.

# The host's mirror, which has all suites; `bookworm-security` and the like are elsewhere.
mirror() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' | head -n 1
}

# A file with the minimal system of a suite, made once.
base() { # SUITE
    mkdir -p "$repository/target/roots"
    base=$repository/target/roots/$1.tar
    [ ! -e "$base" ] || return 0
    site=$(mirror)
    [ -n "$site" ] || fail "apt knows no source of Debian here: apt-get update"
    say "making a minimal $1"
    rm -rf "$base.root"
    if ! debootstrap --variant=minbase --include=ca-certificates "$1" "$base.root" "$site" >"$base.log" 2>&1; then
        rm -rf "$base.root"
        fail "debootstrap $1: see $base.log"
    fi
    tar -C "$base.root" -cf "$base.part" .
    mv "$base.part" "$base"
    rm -rf "$base.root"
}

# Unpacks that system, with the host's ways out: its mirror, proxies, certificates and names.
unpack() { # SUITE ROOT
    base "$1"
    rm -rf "$2"
    mkdir -p "$2"
    tar -C "$2" -xf "$base"
    echo "deb $(mirror) $1 main" >"$2/etc/apt/sources.list"
    # The newest suite's list can be older than it allows.
    { apt-config dump | sed -n '/^Acquire::http/p'; echo 'Acquire::Check-Valid-Until "false";'; } \
        >"$2/etc/apt/apt.conf.d/99host"
    # The links in it would lead to the host's.
    rm -rf "$2/etc/ssl/certs"
    cp -aL /etc/ssl/certs "$2/etc/ssl/certs"
    cp -L /etc/resolv.conf /etc/hosts "$2/etc/"
}
