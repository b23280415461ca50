#!/bin/sh
# Each Debian that people run, by PARTS:
# - package: `make demo` as first command, the package built there, `make demo-vm`, and that package installed, used,
#   upgraded and purged under its systemd;
# - libvirt: the hook under its libvirt: all that crates/cli/tests/libvirt.rs does to domains, with 20 domains at once
#   and 100 operations by chance. libvirt and QEMU are those of the suite, weir and the kernel are this machine's;
# - proxmox: the command lines that Proxmox VE's tests expect, with weir's part, under the suite's QEMU.
# SUITES names them; a suite that cannot be had is skipped.
#
# Needs root, debootstrap and systemd-nspawn. target/distros/*.tsv have the results, for docs/compatibility.md.
set -eu

repository=$(cd "$(dirname "$0")/../.." && pwd)
work=$repository/target/distros
cargo=${CARGO:-cargo}
say() { echo "distros: $*"; }
fail() { say "FAILED: $*"; exit 1; }
. "$repository/tests/roots.sh"

[ "$(id -u)" = 0 ] || fail "needs root"
mkdir -p "$work"

failed=
# Leaves a row for docs/compatibility.tsv.
result() { # FILE WHAT VERSION TRIED VERDICT REASON
    say "$2 $3: $4: $5${6:+: $6}"
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$2" "$3" "$4" "$5" "$(date +%F)" "$6" >>"$1"
    [ "$5" != FAILED ] || failed="$failed $2"
}

package() { # SUITE
    row() { # SUITE VERDICT REASON
        result "$work/$1.tsv" "Debian $1" "$version" "\`make demo\`, build, lintian, install, use, upgrade, purge" \
            "$2" "$3"
    }
    log=$work/$1.log
    version=-
    rm -f "$work/$1.tsv" "$work/$1/demo-vm"
    if ! (base "$1") >"$log" 2>&1; then
        row "$1" skipped "no root can be made"
        return
    fi
    version=$(tar -xOf "$repository/target/roots/$1.tar" ./etc/debian_version)
    say "$1: see $log"
    if SUITE=$1 PACKAGE_TO=$work/$1 "$repository/tests/fresh/run.sh" >>"$log" 2>&1 &&
        SUITE=$1 PACKAGES=$work/$1 "$repository/tests/deb/run.sh" >>"$log" 2>&1; then
        row "$1" works ""
    else
        # The log has paths of this machine; what failed is said without them.
        row "$1" FAILED "$(sed -n 's/.*FAILED: //p' "$log" | tail -n 1 | sed 's/:* see .*//' | tr '\t' ' ')"
    fi
    if [ -e "$work/$1/demo-vm" ]; then
        why=$(tr '\t\n' '  ' <"$work/$1/demo-vm")
        result "$work/$1.tsv" "Debian $1" "$version" "\`make demo-vm\`" "$([ -z "$why" ] && echo works || echo FAILED)" "$why"
    fi
}

# The suite with libvirt and QEMU, made once.
with_libvirt() { # SUITE ROOT
    [ ! -e "$2" ] || return 0
    unpack "$1" "$2.part"
    # What the packages start ends with the script.
    unshare --mount --pid --fork --kill-child sh -ec '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        chroot "$1" env DEBIAN_FRONTEND=noninteractive sh -ec "
            apt-get update -q
            apt-get install -q -y --no-install-recommends libpcap0.8 libvirt-daemon-system libvirt-clients \
                qemu-system-x86
            apt-get clean"' sh "$2.part" </dev/null || fail "$1 cannot have libvirt"
    mv "$2.part" "$2"
}

version_of() { # PACKAGE
    dpkg-query --admindir "$root/var/lib/dpkg" --show --showformat '${source:Upstream-Version}' "$1"
}

# What each test tries.
tried() { # TEST
    case $1 in
    *_a_domain_has_its_interface_*) echo "SIGKILL of weir and a restart of libvirtd, each alone and both" ;;
    *_while_its_domain_has_a_qemu)
        echo "start, stop, suspend, save, restore, attach, detach; upgrade" ;;
    *_of_two_tenants_*) echo "domains of two tenants" ;;
    *_many_domains_*) echo "20 domains at once" ;;
    *_moves_with_its_domain_*) echo "migrate between two libvirtds; a migration that fails" ;;
    *_does_not_start_and_says_why) echo "domains that are refused" ;;
    *_has_an_interface_by_its_pattern) echo "attach and detach by the socket of a pattern; shutdown" ;;
    *_a_virtual_iommu_gets_*) echo "a device behind a virtual IOMMU, by weir libvirt define" ;;
    *_gets_an_interface_by_one_command) echo "weir libvirt define, check, undefine" ;;
    *_operations_by_chance_*) echo "100 operations by chance: no interface is left" ;;
    esac
}

libvirt() { # SUITE
    log=$work/libvirt-$1.log
    root=$repository/target/roots/$1-libvirt
    rm -f "$work/libvirt-$1.tsv"
    if ! (with_libvirt "$1" "$root") >"$log" 2>&1; then
        say "$1: skipped: no system with libvirt can be made: see $log"
        return
    fi
    release=$(. "$root/etc/os-release" && echo "${VERSION_ID:-$1}")
    say "$1: see $log"
    (cd "$repository" && WEIR_LIBVIRT_ROOT=$root WEIR_LIBVIRT_OPERATIONS=100 \
        "$cargo" test -p weir --test libvirt) >>"$log" 2>&1 || true
    sed -n 's/^test \([a-z_]*\) \.\.\. \(ok\|FAILED\)$/\1 \2/p' "$log" >"$work/verdicts"
    [ "$(grep -c . "$work/verdicts")" = "$(grep -c '^fn root_' "$repository/crates/cli/tests/libvirt.rs")" ] ||
        failed="$failed $1:not-all-tests-ran"
    while read -r test verdict; do
        what=$(tried "$test")
        [ -n "$what" ] || fail "tests/distros/run.sh has no words for $test"
        case $verdict in ok) verdict=works why= ;; *) why=$test ;; esac
        result "$work/libvirt-$1.tsv" "libvirt of Debian $release" "$(version_of libvirt-daemon-system)" "$what" \
            "$verdict" "$why"
    done <"$work/verdicts"
    test=what_qemu_args_prints_for_other_programs_starts_beside_their_own_arguments
    if (cd "$repository" && WEIR_LIBVIRT_ROOT=$root "$cargo" test -p weir --test runs $test) >>"$log" 2>&1; then
        verdict=works why=
    else
        verdict=FAILED why=$test
    fi
    result "$work/libvirt-$1.tsv" "QEMU of Debian $release" "$(version_of qemu-system-x86)" \
        "\`weir qemu-args\` for Proxmox VE, vmspawn, Incus; \`--iommu\`" "$verdict" "$why"
}

proxmox() { # SUITE
    # The lines are for a QEMU that is as new as they are.
    [ "$1" = sid ] || return 0
    log=$work/proxmox.log
    root=$repository/target/roots/$1-libvirt
    lines=${QEMU_SERVER:-$work/qemu-server}
    rm -f "$work/proxmox.tsv"
    if ! { (with_libvirt "$1" "$root") &&
        { [ -e "$lines" ] || git clone -q --depth 1 https://git.proxmox.com/git/qemu-server.git "$lines"; }; } \
        >"$log" 2>&1; then
        say "proxmox: skipped: no QEMU or no command lines can be had: see $log"
        return
    fi
    (cd "$repository" && "$cargo" build -q -p weir) >>"$log" 2>&1 || fail "weir cannot be built: see $log"
    say "proxmox: see $log"
    if "$repository/tests/distros/proxmox.py" "$lines" "$root" "$repository/target/debug" >>"$log" 2>&1; then
        verdict=works why=
    else
        verdict=FAILED why=$(tail -n 1 "$log" | tr '\t' ' ')
    fi
    count=$(sed -n 's/^\([0-9]* of [0-9]*\) machines .*/\1/p' "$log")
    result "$work/proxmox.tsv" "Proxmox VE's lines" "${count:-0}, QEMU $(version_of qemu-system-x86)" \
        "the hook's phases, a start with weir's \`args\`" "$verdict" "$why"
}

for part in ${PARTS:-package libvirt proxmox}; do
    for suite in ${SUITES:-bookworm trixie sid}; do
        "$part" "$suite"
    done
done
[ -z "$failed" ] || fail "on$failed"
say "passed"
