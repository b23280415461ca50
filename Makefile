# Everything a person types. The work is done by cargo and by xtask.

CARGO ?= cargo
# `-p xtask` would give dependencies other features, and so build them once more than the tests do.
XTASK = $(CARGO) run --quiet --bin xtask --

.PHONY: help libpcap set-up demo demo-vm demo-fabric fabric build deb deb-test check test fresh distros hooks frontends aarch64 guides test-xen survive soak lab-soak fuzz attack instructions bench lab-report lab-sensitivity fmt clean

help: ## Show these targets
	@sed -n "s/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p" $(MAKEFILE_LIST) | expand -t 18

# What weir is linked with; xtask, which is not, installs it.
libpcap:
	@pkg-config --exists libpcap 2>/dev/null || test -e /usr/include/pcap.h || $(MAKE) --silent set-up

set-up: ## Install what building needs (needs root)
	@command -v apt-get >/dev/null || { echo "weir is linked with libpcap; install its development files" \
		"with this system's package manager (libpcap-devel, libpcap-dev or libpcap)" >&2; exit 1; }
	@test "$$(id -u)" = 0 || { echo "weir is linked with libpcap; install it as root:" \
		"apt-get update && apt-get install -y libpcap-dev" >&2; exit 1; }
	$(XTASK) packages --to-build

demo: libpcap ## See weir at work: built-in guests, no VM, no root (20 s)
	$(CARGO) run --release -p weir-bench -- demo

demo-vm: ## The same with two real Linux guests under QEMU (needs root)
	$(XTASK) demo-vm

demo-fabric: ## Three hosts under BGP EVPN: a guest that moves, a host that dies (needs root)
	$(XTASK) demo-fabric

fabric: libpcap ## System tests with the installed FRR, and that of each root in WEIR_FRR_ROOT (needs root, some 5 minutes)
	$(XTASK) fabric

build: libpcap ## Build weir, weir-bench and weir-lab as they ship
	$(CARGO) build --release -p weir -p weir-bench -p weir-workbench

deb: libpcap ## The Debian package, target/deb/weir_*.deb (needs debhelper, dh-apparmor)
	@command -v dh_apparmor >/dev/null || { echo "as root: apt-get install -y debhelper dh-apparmor" >&2; exit 1; }
	CARGO="$(CARGO)" debian/rules clean binary

deb-test: ## Install, use, upgrade, remove and purge that package on Debian (needs root, debootstrap, systemd-nspawn)
	tests/deb/run.sh

check: ## Format, lints and unit tests of the crates that changed since origin/main (two minutes)
	$(XTASK) check

test: ## Format, lints, unit tests, model checks and, as root, real guests
	$(XTASK) test

fresh: ## `make demo` and `make build` as first commands on a new Debian 12, or SUITE (needs root)
	tests/fresh/run.sh

distros: ## `make demo`, the package and the hooks tried on each Debian of SUITES (12, 13, sid; root, an hour each)
	tests/distros/run.sh

hooks: ## The hooks alone, of libvirt and of Proxmox VE (root, ten minutes for each of SUITES)
	PARTS="libvirt proxmox" tests/distros/run.sh

frontends: ## Every front end that is installed somewhere, against a running weir (needs root, 15 minutes)
	$(XTASK) frontends

aarch64: libpcap ## Check weir for aarch64, and run unit tests there under qemu-user (needs the target: rustup target add)
	$(XTASK) aarch64

guides: libpcap ## Every line of the guides for the lab and the benchmark, those that take minutes too (half an hour)
	$(XTASK) guides

test-xen: ## weir on a real Xen, against the kernel's back end (3 minutes)
	$(XTASK) xen

survive: ## Kill, reload, upgrade and migrate under traffic; what guests notice of it (needs root, some 20 minutes)
	$(XTASK) survive

soak: ## All of that and more by chance, with real guests, for HOURS (2; needs root)
	$(XTASK) soak --hours $(or $(HOURS),2)

lab-soak: libpcap ## Hosts in virtual time on which things go wrong, until Ctrl-C
	$(CARGO) run --release -p weir-workbench -- soak

fuzz: ## Every fuzz target for its share of MINUTES (10)
	$(XTASK) fuzz --minutes $(or $(MINUTES),10)

attack: ## Attack a running weir in more than 350 ways; what its other guests notice (an hour and more)
	$(XTASK) attack

instructions: ## Where the instructions of a packet go, by stage (needs valgrind)
	$(XTASK) instructions --stages

bench: ## Measure weir against its peers (needs root, over an hour)
	$(XTASK) bench

lab-report: libpcap ## Run the lab's experiments; write docs/lab.md, target/lab and target/lab-report.html
	rm -rf target/lab
	$(CARGO) run --release -p weir-workbench -- report --all --verdicts docs/lab.md --markdown target/lab --html target/lab-report.html

lab-sensitivity: libpcap ## The same page with each fitted cost varied: target/lab-sensitivity.html, some 25 times the work
	$(CARGO) run --release -p weir-workbench -- report --all --sensitivity --html target/lab-sensitivity.html

fmt: ## Format the code
	$(CARGO) fmt --all

clean: ## Remove everything that was built or measured
	$(CARGO) clean
