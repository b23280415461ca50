//! `make frontends`: every installed front end against a running weir.
//!
//! A [`Cell`] is a front end with its options. It brings up a link, pings, sends fragments and TCP both ways,
//! survives a SIGKILL of weir, and loses no frame without a reason. The report names what a front end cannot do.

mod bed;
mod foreign;
mod ipxe;
mod libvirt;
mod linux;
mod netboot;
pub mod parts;
mod qemu_cells;
mod record;
mod table;
mod testpmd;
mod uml;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use weir_bed::{
    error::{Result, Tally},
    foreign::{
        AMD64_OF_13, AMD64_OF_SID, ARM64, ARM64_16K, ARMHF, Architecture, PPC64EL_64K, RISCV64,
        S390X,
    },
    lab::Lab,
    packages,
    workspace::{Programs, Workspace},
};

use self::{
    bed::Bed,
    foreign::Rings,
    netboot::Firmware,
    parts::{Parts, TESTPMD_PACKAGE},
    qemu_cells::{QemuCell, Which, plain},
    record::{Record, Verdict},
    table::Row,
    testpmd::Driver,
};

/// A front end with its options.
#[derive(Debug)]
pub struct Cell {
    /// The front end.
    pub front_end: &'static str,
    /// The options.
    pub options: &'static str,
    /// True if `make test` tries the cell, too: it is quick, and no other test there covers its front end.
    short: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Qemu(QemuCell),
    Testpmd(Driver),
    Foreign(Architecture, Rings),
    NetBoot(Firmware),
    Other(fn(&mut Bed<'_>, &mut Record) -> Result<Verdict>),
}

const fn qemu(options: &'static str, cell: QemuCell) -> Cell {
    let front_end = match cell.which {
        Which::Installed => "QEMU",
        Which::Old => "QEMU 7.2",
        Which::Of { front_end, .. } => front_end,
    };
    guest(front_end, options, cell)
}

/// A guest by its kernel.
const fn guest(front_end: &'static str, options: &'static str, cell: QemuCell) -> Cell {
    Cell { front_end, options, short: false, kind: Kind::Qemu(cell) }
}

const fn testpmd(options: &'static str, driver: Driver) -> Cell {
    Cell { front_end: "testpmd", options, short: false, kind: Kind::Testpmd(driver) }
}

const fn testpmd_of_13(options: &'static str, driver: Driver) -> Cell {
    let kind = Kind::Testpmd(driver.of("trixie"));
    Cell { front_end: "testpmd of Debian 13", options, short: false, kind }
}

const fn testpmd_of_sid(options: &'static str, driver: Driver) -> Cell {
    let kind = Kind::Testpmd(driver.of("sid"));
    Cell { front_end: "testpmd of Debian sid", options, short: false, kind }
}

/// A guest with the kernel of Debian 13 under its QEMU.
const fn linux_13(options: &'static str, cell: QemuCell) -> Cell {
    guest("Linux of Debian 13", options, cell.linux(&AMD64_OF_13))
}

/// A guest with the kernel of Debian sid under its QEMU.
const fn linux_sid(options: &'static str, cell: QemuCell) -> Cell {
    guest("Linux of Debian sid", options, cell.linux(&AMD64_OF_SID))
}

/// A guest of another architecture, under the installed QEMU.
const fn foreign(options: &'static str, architecture: Architecture) -> Cell {
    foreign_with(options, architecture, foreign::SPLIT)
}

/// The same with other rings.
const fn foreign_with(options: &'static str, architecture: Architecture, rings: Rings) -> Cell {
    let front_end = "QEMU of another architecture";
    Cell { front_end, options, short: false, kind: Kind::Foreign(architecture, rings) }
}

/// Firmware that boots over the network.
const fn net_boot(front_end: &'static str, options: &'static str, firmware: Firmware) -> Cell {
    Cell { front_end, options, short: false, kind: Kind::NetBoot(firmware) }
}

const fn other(
    front_end: &'static str,
    options: &'static str,
    run: fn(&mut Bed<'_>, &mut Record) -> Result<Verdict>,
) -> Cell {
    Cell { front_end, options, short: false, kind: Kind::Other(run) }
}

/// Marks a cell for `make test`.
const fn short(cell: Cell) -> Cell {
    Cell { short: true, ..cell }
}

const NEW: QemuCell = plain(Which::Installed);
const OLD: QemuCell = plain(Which::Old);
const OF_13: QemuCell = plain(Which::Of { suite: "trixie", front_end: "QEMU of Debian 13" });
const OF_SID: QemuCell = plain(Which::Of { suite: "sid", front_end: "QEMU of Debian sid" });

/// All cells in their order.
const CELLS: &[Cell] = &[
    qemu("virtio-net-pci", NEW),
    short(qemu("legacy (virtio 0.9)", NEW.legacy())),
    qemu("legacy, mrg_rxbuf=off", NEW.legacy_no_mergeable_buffers()),
    qemu("packed", NEW.packed()),
    qemu("in_order (declined by Linux 6.1)", NEW.in_order()),
    qemu("packed, in_order (declined by Linux 6.1)", NEW.packed_in_order()),
    qemu("event_idx=off, indirect_desc=off", NEW.plain_rings()),
    qemu("packed, event_idx=off, indirect_desc=off", NEW.plain_packed_rings()),
    qemu("mrg_rxbuf=off", NEW.no_mergeable_buffers()),
    qemu("csum=off and all that needs it", NEW.no_checksums()),
    qemu("no TSO", NEW.no_segmentation()),
    qemu("2 queues", NEW.queues(2)),
    qemu("4 queues", NEW.queues(4)),
    qemu("2 queues, packed", NEW.packed_queues(2)),
    qemu("2 queues, rss, hash (left out by QEMU)", NEW.rss()),
    qemu("q35", NEW.q35()),
    short(qemu("microvm, virtio-net-device (virtio 0.9)", NEW.microvm())),
    qemu("microvm, packed", NEW.microvm_packed()),
    qemu("virtio-net-pci", OLD),
    qemu("legacy (virtio 0.9)", OLD.legacy()),
    qemu("packed", OLD.packed()),
    qemu("mrg_rxbuf=off", OLD.no_mergeable_buffers()),
    qemu("csum=off and all that needs it", OLD.no_checksums()),
    qemu("no TSO", OLD.no_segmentation()),
    short(qemu("2 queues", OLD.queues(2))),
    qemu("4 queues", OLD.queues(4)),
    qemu("2 queues, packed", OLD.packed_queues(2)),
    qemu("q35", OLD.q35()),
    qemu("microvm, virtio-net-device (virtio 0.9)", OLD.microvm()),
    qemu("virtio-net-pci", OF_13),
    qemu("legacy (virtio 0.9)", OF_13.legacy()),
    qemu("packed", OF_13.packed()),
    qemu("packed, in_order (declined by Linux 6.1)", OF_13.packed_in_order()),
    qemu("mrg_rxbuf=off", OF_13.no_mergeable_buffers()),
    qemu("4 queues", OF_13.queues(4)),
    qemu("2 queues, packed", OF_13.packed_queues(2)),
    qemu("microvm, packed", OF_13.microvm_packed()),
    qemu("virtio-net-pci", OF_SID),
    qemu("legacy (virtio 0.9)", OF_SID.legacy()),
    qemu("packed", OF_SID.packed()),
    qemu("packed, in_order (declined by Linux 6.1)", OF_SID.packed_in_order()),
    qemu("mrg_rxbuf=off", OF_SID.no_mergeable_buffers()),
    qemu("4 queues", OF_SID.queues(4)),
    qemu("2 queues, packed", OF_SID.packed_queues(2)),
    qemu("microvm, packed", OF_SID.microvm_packed()),
    linux_13("virtio-net-pci", OF_13),
    linux_13("legacy (virtio 0.9)", OF_13.legacy()),
    linux_13("packed", OF_13.packed()),
    linux_13("packed, in_order (declined by Linux 6.12)", OF_13.packed_in_order()),
    linux_13("mrg_rxbuf=off", OF_13.no_mergeable_buffers()),
    linux_13("4 queues", OF_13.queues(4)),
    linux_13("4 queues, packed", OF_13.packed_queues(4)),
    linux_sid("virtio-net-pci", OF_SID),
    linux_sid("legacy (virtio 0.9)", OF_SID.legacy()),
    linux_sid("packed", OF_SID.packed()),
    linux_sid("in_order", OF_SID.in_order_taken()),
    linux_sid("packed, in_order", OF_SID.packed_in_order_taken()),
    linux_sid("mrg_rxbuf=off", OF_SID.no_mergeable_buffers()),
    linux_sid("4 queues", OF_SID.queues(4)),
    linux_sid("4 queues, packed", OF_SID.packed_queues(4)),
    linux_sid("4 queues, packed, in_order", OF_SID.packed_queues_in_order(4)),
    foreign("arm64", ARM64),
    foreign_with("arm64, packed", ARM64, foreign::PACKED),
    foreign_with(
        "arm64, packed, in_order (declined by Linux 6.12)",
        ARM64,
        foreign::PACKED_IN_ORDER,
    ),
    foreign_with("arm64, 4 queues", ARM64, foreign::SPLIT_4),
    foreign_with("arm64, 4 queues, packed", ARM64, foreign::PACKED_4),
    foreign("arm64, pages of 16 KiB", ARM64_16K),
    foreign("armhf", ARMHF),
    foreign("ppc64el, pages of 64 KiB", PPC64EL_64K),
    foreign_with("ppc64el, pages of 64 KiB, 4 queues, packed", PPC64EL_64K, foreign::PACKED_4),
    foreign("riscv64", RISCV64),
    foreign_with("riscv64, 4 queues, packed", RISCV64, foreign::PACKED_4),
    foreign("s390x, virtio-net-ccw", S390X),
    foreign_with("s390x, virtio-net-ccw, packed", S390X, foreign::PACKED),
    foreign_with(
        "s390x, virtio-net-ccw, packed, in_order (declined by Linux 6.1)",
        S390X,
        foreign::PACKED_IN_ORDER,
    ),
    foreign_with("s390x, virtio-net-ccw, 4 queues", S390X, foreign::SPLIT_4),
    foreign_with("s390x, virtio-net-ccw, 4 queues, packed", S390X, foreign::PACKED_4),
    short(other("user-mode Linux", "packed", uml::works)),
    other("user-mode Linux of Debian 13", "packed", uml::of_13),
    other("user-mode Linux of Debian sid", "packed, in_order", uml::of_sid),
    testpmd("split", testpmd::SPLIT),
    testpmd("split, mrg_rxbuf=0", testpmd::SPLIT_PLAIN),
    testpmd("split, in_order", testpmd::SPLIT_IN_ORDER),
    testpmd("split, vectorized", testpmd::SPLIT_VECTOR),
    testpmd("packed", testpmd::PACKED),
    testpmd("packed, mrg_rxbuf=0", testpmd::PACKED_PLAIN),
    testpmd("packed, in_order", testpmd::PACKED_IN_ORDER),
    short(testpmd("packed, vectorized", testpmd::PACKED_VECTOR)),
    testpmd("4 queues, split", testpmd::SPLIT.queues(4)),
    testpmd("4 queues, packed", testpmd::PACKED.queues(4)),
    testpmd_of_13("split", testpmd::SPLIT),
    testpmd_of_13("split, mrg_rxbuf=0", testpmd::SPLIT_PLAIN),
    testpmd_of_13("split, in_order", testpmd::SPLIT_IN_ORDER),
    testpmd_of_13("split, vectorized", testpmd::SPLIT_VECTOR),
    testpmd_of_13("packed", testpmd::PACKED),
    testpmd_of_13("packed, mrg_rxbuf=0", testpmd::PACKED_PLAIN),
    testpmd_of_13("packed, in_order", testpmd::PACKED_IN_ORDER),
    testpmd_of_13("packed, vectorized", testpmd::PACKED_VECTOR),
    testpmd_of_13("4 queues, split", testpmd::SPLIT.queues(4)),
    testpmd_of_13("4 queues, packed", testpmd::PACKED.queues(4)),
    testpmd_of_sid("split", testpmd::SPLIT),
    testpmd_of_sid("split, mrg_rxbuf=0", testpmd::SPLIT_PLAIN),
    testpmd_of_sid("split, in_order", testpmd::SPLIT_IN_ORDER),
    testpmd_of_sid("split, vectorized", testpmd::SPLIT_VECTOR),
    testpmd_of_sid("packed", testpmd::PACKED),
    testpmd_of_sid("packed, mrg_rxbuf=0", testpmd::PACKED_PLAIN),
    testpmd_of_sid("packed, in_order", testpmd::PACKED_IN_ORDER),
    testpmd_of_sid("packed, vectorized", testpmd::PACKED_VECTOR),
    testpmd_of_sid("4 queues, split", testpmd::SPLIT.queues(4)),
    testpmd_of_sid("4 queues, packed", testpmd::PACKED.queues(4)),
    other("iPXE", "virtio-net-pci, over a TAP", ipxe::boots),
    net_boot("iPXE", "network boot", netboot::IPXE),
    net_boot("iPXE of Debian 13", "network boot", netboot::IPXE_OF_13),
    net_boot("iPXE of Debian sid", "network boot", netboot::IPXE_OF_SID),
    net_boot("OVMF", "network boot, of iPXE", netboot::OVMF),
    net_boot("U-Boot", "network boot, arm64", netboot::U_BOOT_ARM64),
    net_boot("U-Boot", "network boot, armhf", netboot::U_BOOT_ARM),
    net_boot("U-Boot", "network boot, riscv64", netboot::U_BOOT_RISCV64),
    net_boot("U-Boot", "network boot, x86-64", netboot::U_BOOT_X86_64),
    net_boot("QEMU's SLOF", "network boot, ppc64", netboot::SLOF),
    net_boot("QEMU's firmware of s390x", "network boot (virtio 0.9)", netboot::S390X),
    other("libvirt", "a domain with the printed XML", libvirt::domain),
    other("libvirt of Debian 13", "a domain with the printed XML", libvirt::domain_of_13),
    other("libvirt of Debian sid", "a domain with the printed XML", libvirt::domain_of_sid),
    other("vhost crate (rust-vmm)", "split", linux::vhost_crate),
    short(other("vhost crate (rust-vmm)", "packed", linux::vhost_crate_packed)),
    other("vif", "split", linux::vif),
    short(other("vif", "packed", linux::vif_packed)),
    other("user-mode Linux", "an interface with 2 queues", uml::is_refused_with_two_queues),
];

impl Cell {
    /// The name by which `only` selects the cell.
    fn name(&self) -> String {
        format!("{}: {}", self.front_end, self.options)
    }

    /// The version of the installed front end, for packages of Debian and of Rust.
    fn installed(&self, workspace: &Workspace) -> Option<String> {
        let package = match self.front_end {
            "vhost crate (rust-vmm)" => return locked("vhost", workspace),
            "vif" => return locked("weir-vif", workspace),
            "testpmd" => TESTPMD_PACKAGE,
            "iPXE" => "ipxe-qemu",
            "libvirt" => "libvirt-daemon-system",
            "OVMF" => "ovmf",
            "U-Boot" => "u-boot-qemu",
            "QEMU's SLOF" | "QEMU's firmware of s390x" => "qemu-system-data",
            _ => return None,
        };
        packages::version_of(package, Path::new("/")).ok()
    }

    fn run(&self, bed: &mut Bed<'_>) -> Row<'_> {
        let start = Instant::now();
        let mut record = Record::default();
        let result = match &self.kind {
            Kind::Qemu(cell) => cell.run(bed, &mut record),
            Kind::Testpmd(driver) => driver.run(bed, &mut record),
            Kind::Foreign(architecture, rings) => {
                foreign::run(architecture, *rings, bed, &mut record)
            }
            Kind::NetBoot(firmware) => firmware.run(bed, &mut record),
            Kind::Other(run) => run(bed, &mut record),
        };
        record.version = record.version.take().or_else(|| self.installed(&bed.lab.workspace));
        let verdict = match (result, record.missing()) {
            (Err(error), _) => Verdict::Failed(error.to_string()),
            (Ok(Verdict::Works), Some(step)) => {
                Verdict::Failed(format!("nobody tried the step `{}`", step.name()))
            }
            (Ok(verdict), _) => verdict,
        };
        let row = Row { cell: self, record, verdict, took: start.elapsed() };
        println!("{row}");
        if let Verdict::Failed(why) = &row.verdict {
            println!("{why}");
        }
        row
    }
}

/// The version of a crate in `Cargo.lock`.
fn locked(name: &str, workspace: &Workspace) -> Option<String> {
    let text = fs::read_to_string(workspace.root.join("Cargo.lock")).ok()?;
    let (_, found) = text.split_once(&format!("\nname = \"{name}\"\nversion = \""))?;
    found.split('"').next().map(str::to_owned)
}

/// Tries all cells, or those whose name contains `only`. Each leaves a row for `docs/compatibility.md`. The
/// report is written only for all cells and this workspace's weir.
pub fn run(workspace: Workspace, only: Option<String>, weir: Option<PathBuf>) -> Result<Tally> {
    let complete = only.is_none() && weir.is_none();
    let lab = Lab::prepare(workspace, weir)?;
    let selected = CELLS
        .iter()
        .filter(|cell| only.as_ref().is_none_or(|only| cell.name().contains(only.as_str())));
    let rows = try_all(&lab, selected)?;
    println!("\n{}", table::for_terminal(&rows));
    table::leave(&lab.workspace, &rows)?;
    if complete {
        for path in table::write(&lab.workspace, &rows)? {
            println!("written: {}", path.display());
        }
    }
    Ok(tally(&rows))
}

/// Tries the cells of `make test`.
pub fn run_short(lab: &Lab) -> Result<Tally> {
    Ok(tally(&try_all(lab, CELLS.iter().filter(|cell| cell.short))?))
}

fn try_all<'c>(lab: &Lab, cells: impl Iterator<Item = &'c Cell>) -> Result<Vec<Row<'c>>> {
    // The programs were built together with weir.
    let programs = Programs::beside(&lab.weir);
    let mut bed = Bed::new(lab, Parts::new(&lab.workspace)?, programs)?;
    Ok(cells.map(|cell| cell.run(&mut bed)).collect())
}

fn tally(rows: &[Row<'_>]) -> Tally {
    let mut tally = Tally::default();
    for row in rows {
        tally += row.verdict.tally(&row.cell.name());
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_a_name_of_its_own() {
        let mut names: Vec<_> = CELLS.iter().map(Cell::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), CELLS.len());
    }
}
