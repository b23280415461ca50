//! QEMU, the installed one and those of Debian's suites, with the devices, machines and features in common use.

use weir_bed::{
    address,
    error::Result,
    foreign::{Architecture, Foreign},
    process::run,
    qemu::{Guest, GuestSpec, Plug, QEMU, Qemu},
    weir::{Vif, Weir},
};

use super::{
    bed::{Bed, TESTED},
    linux::{Expected, Feature, Return, Streams, try_out},
    record::{Record, Verdict},
};

const CSUM: Feature = Feature { bit: 0, name: "csum" };
const GUEST_CSUM: Feature = Feature { bit: 1, name: "guest_csum" };
const GUEST_TSO4: Feature = Feature { bit: 7, name: "guest_tso4" };
const HOST_TSO4: Feature = Feature { bit: 11, name: "host_tso4" };
pub const MRG_RXBUF: Feature = Feature { bit: 15, name: "mrg_rxbuf" };
pub const MQ: Feature = Feature { bit: 22, name: "mq" };
const INDIRECT: Feature = Feature { bit: 28, name: "indirect" };
const EVENT_IDX: Feature = Feature { bit: 29, name: "event_idx" };
pub const VERSION_1: Feature = Feature { bit: 32, name: "version_1" };
pub const RING_PACKED: Feature = Feature { bit: 34, name: "packed" };
pub const IN_ORDER: Feature = Feature { bit: 35, name: "in_order" };
/// weir offers it, and QEMU passes it to no guest, as the guide has it.
const HOST_USO: Feature = Feature { bit: 56, name: "host_uso" };
const RSS: Feature = Feature { bit: 60, name: "rss" };

/// The QEMU of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The installed QEMU, which all tests use.
    Installed,
    /// QEMU 7.2, unpacked.
    Old,
    /// The QEMU of another suite of Debian, in a root.
    Of {
        /// The suite.
        suite: &'static str,
        /// Its QEMU's name in tables.
        front_end: &'static str,
    },
}

impl Which {
    /// Its version and its program.
    pub fn find(self, bed: &Bed<'_>) -> Result<(Qemu, String)> {
        match self {
            Self::Installed => Ok((bed.lab.qemu, QEMU.to_owned())),
            Self::Old => bed.parts.old_qemu(),
            Self::Of { suite, .. } => bed.parts.qemu_of(suite),
        }
    }
}

/// A configuration of QEMU.
#[derive(Clone, Copy, Debug)]
pub struct QemuCell {
    /// The QEMU.
    pub which: Which,
    /// Text added to the device's options.
    device: &'static str,
    /// The machine type; `None` is the default.
    machine: Option<&'static str>,
    /// True if a virtio-mmio device uses virtio 1.
    modern_mmio: bool,
    /// The guest's kernel; `None` is the installed system's.
    linux: Option<&'static Architecture>,
    expected: Expected,
}

/// The device as `weir qemu-args` writes it.
pub const fn plain(which: Which) -> QemuCell {
    let expected = Expected {
        queues: 1,
        present: &[VERSION_1, MRG_RXBUF],
        absent: &[RING_PACKED, HOST_USO],
        streams: Streams::Rate,
    };
    QemuCell { which, device: "", machine: None, modern_mmio: false, linux: None, expected }
}

impl QemuCell {
    const fn with(
        self,
        device: &'static str,
        present: &'static [Feature],
        absent: &'static [Feature],
    ) -> Self {
        let expected = Expected { present, absent, ..self.expected };
        Self { device, expected, ..self }
    }

    /// A guest with another kernel. It has no iperf3.
    pub const fn linux(self, architecture: &'static Architecture) -> Self {
        let expected = Expected { streams: Streams::Files, ..self.expected };
        Self { linux: Some(architecture), expected, ..self }
    }

    /// Virtio 0.9.
    pub const fn legacy(self) -> Self {
        self.with(",disable-modern=on,disable-legacy=off", &[MRG_RXBUF], &[VERSION_1])
    }

    /// Packed rings.
    pub const fn packed(self) -> Self {
        self.with(",packed=on", &[RING_PACKED], &[])
    }

    /// Offers `IN_ORDER`, which Linux's driver does not accept before 7.2.
    pub const fn in_order(self) -> Self {
        self.with(",in_order=on", &[VERSION_1], &[IN_ORDER])
    }

    /// Packed rings with `IN_ORDER` offered.
    pub const fn packed_in_order(self) -> Self {
        self.with(",packed=on,in_order=on", &[RING_PACKED], &[IN_ORDER])
    }

    /// `IN_ORDER`, which the driver accepts.
    pub const fn in_order_taken(self) -> Self {
        self.with(",in_order=on", &[VERSION_1, IN_ORDER], &[RING_PACKED])
    }

    /// Packed rings with `IN_ORDER`, which the driver accepts.
    pub const fn packed_in_order_taken(self) -> Self {
        self.with(",packed=on,in_order=on", &[RING_PACKED, IN_ORDER], &[])
    }

    /// Neither event indices nor indirect descriptors.
    pub const fn plain_rings(self) -> Self {
        self.with(",event_idx=off,indirect_desc=off", &[VERSION_1], &[EVENT_IDX, INDIRECT])
    }

    /// Packed rings with neither event indices nor indirect descriptors.
    pub const fn plain_packed_rings(self) -> Self {
        let device = ",packed=on,event_idx=off,indirect_desc=off";
        self.with(device, &[RING_PACKED], &[EVENT_IDX, INDIRECT])
    }

    /// Each frame is in one receive buffer.
    pub const fn no_mergeable_buffers(self) -> Self {
        self.with(",mrg_rxbuf=off", &[VERSION_1, GUEST_TSO4], &[MRG_RXBUF])
    }

    /// Virtio 0.9 without mergeable buffers: the header is two bytes shorter.
    pub const fn legacy_no_mergeable_buffers(self) -> Self {
        let device = ",disable-modern=on,disable-legacy=off,mrg_rxbuf=off";
        self.with(device, &[GUEST_TSO4], &[VERSION_1, MRG_RXBUF])
    }

    /// Every frame has its checksum, in both directions.
    pub const fn no_checksums(self) -> Self {
        let device = ",csum=off,guest_csum=off,gso=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,\
                      host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off";
        self.with(device, &[MRG_RXBUF], &[CSUM, GUEST_CSUM, GUEST_TSO4, HOST_TSO4])
    }

    /// No segmentation by the device, in either direction.
    pub const fn no_segmentation(self) -> Self {
        let device =
            ",guest_tso4=off,guest_tso6=off,guest_ecn=off,host_tso4=off,host_tso6=off,host_ecn=off";
        self.with(device, &[CSUM, GUEST_CSUM], &[GUEST_TSO4, HOST_TSO4])
    }

    /// Several queue pairs.
    pub const fn queues(self, queues: usize) -> Self {
        self.queues_with(queues, &[MQ])
    }

    /// Several queue pairs with packed rings.
    pub const fn packed_queues(self, queues: usize) -> Self {
        Self { device: ",packed=on", ..self }.queues_with(queues, &[MQ, RING_PACKED])
    }

    /// Several queue pairs with packed rings and `IN_ORDER`, which the driver accepts.
    pub const fn packed_queues_in_order(self, queues: usize) -> Self {
        let device = ",packed=on,in_order=on";
        Self { device, ..self }.queues_with(queues, &[MQ, RING_PACKED, IN_ORDER])
    }

    /// Two queue pairs with receive side scaling. QEMU offers it to the guest only if the back end does.
    pub const fn rss(self) -> Self {
        let mut cell = Self { device: ",rss=on,hash=on", ..self }.queues_with(2, &[MQ]);
        cell.expected.absent = &[RSS];
        cell
    }

    const fn queues_with(self, queues: usize, present: &'static [Feature]) -> Self {
        let expected = Expected { queues, present, absent: &[], ..self.expected };
        Self { expected, ..self }
    }

    /// The machine with PCI Express.
    pub const fn q35(self) -> Self {
        Self { machine: Some("q35"), ..self }
    }

    /// The machine without PCI. Its device is `virtio-net-device`, which uses virtio 0.9 by default.
    pub const fn microvm(self) -> Self {
        let cell = self.with("", &[MRG_RXBUF], &[VERSION_1]);
        Self { machine: Some("microvm"), ..cell }
    }

    /// The machine without PCI, with virtio 1 and packed rings.
    pub const fn microvm_packed(self) -> Self {
        Self { machine: Some("microvm"), modern_mmio: true, ..self.packed() }
    }

    /// Runs the cell.
    pub fn run(&self, bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
        let (qemu, program) = match self.which.find(bed) {
            Ok(found) => found,
            Err(error) => return Ok(Verdict::Skipped(format!("no such QEMU: {error}"))),
        };
        let image = match self.linux {
            None => Ok(bed.lab.image.clone()),
            Some(linux) => Foreign::ensure(&bed.lab.workspace, linux).map(|files| files.image),
        };
        let image = match image {
            Ok(image) => image,
            Err(error) => return Ok(Verdict::Skipped(format!("no kernel: {error}"))),
        };
        record.version = Some(format!("{qemu}, Linux {}", image.linux()?));
        if let Some(why) = lacks_in_order(self.device, &program, qemu)? {
            return Ok(Verdict::Skipped(why));
        }
        let queues = u8::try_from(self.expected.queues).ok();
        let (mut weir, mut partner) = bed.set_up(&[Vif { queues, ..Vif::default() }])?;
        let mut plug = weir.plug_into(qemu, TESTED)?;
        self.adapt(&mut plug);
        let spec = GuestSpec {
            name: String::from("tested"),
            cidr: address::cidr(TESTED),
            // A virtio-net driver uses a queue pair for each CPU.
            vcpus: queues.unwrap_or(1),
            plug,
        };
        let guest = Guest::boot_under(&program, &image, &spec, weir.dir())?;
        let returns = Return::ByItself;
        try_out(&mut weir, &mut partner, guest, &self.expected, returns, record)?;
        bed.give_back(partner);
        stop(weir)
    }

    /// Changes the arguments as a user would by hand.
    fn adapt(&self, plug: &mut Plug) {
        if self.modern_mmio {
            plug.qemu_args.extend(["-global", "virtio-mmio.force-legacy=false"].map(str::to_owned));
        }
        for arg in &mut plug.qemu_args {
            if let Some(options) = arg.strip_prefix("virtio-net-pci,") {
                *arg = if self.machine == Some("microvm") {
                    let kept = options.split(',').filter(|option| !option.starts_with("vectors="));
                    format!("virtio-net-device,{}", kept.collect::<Vec<_>>().join(","))
                } else {
                    arg.clone()
                };
                arg.push_str(self.device);
            } else if let (Some(machine), true) = (self.machine, arg.starts_with("memory-backend="))
            {
                *arg = format!("{machine},{arg}");
            }
        }
    }
}

/// The reason why this QEMU cannot have a device with these options, if they are with `in_order`.
pub fn lacks_in_order(device: &str, program: &str, qemu: Qemu) -> Result<Option<String>> {
    let known = || run(&[program, "-device", "virtio-net,help"]);
    let lacks = device.contains("in_order=") && !known()?.contains(" in_order=");
    Ok(lacks.then(|| format!("QEMU {qemu} has no option `in_order`")))
}

/// Ends the switch of a cell that has passed.
pub fn stop(weir: Weir) -> Result<Verdict> {
    weir.stop()?;
    Ok(Verdict::Works)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_bed::process::Placement;

    #[test]
    fn a_microvm_has_no_pci_device() {
        let args =
            ["-machine", "memory-backend=m", "-device", "virtio-net-pci,netdev=n,vectors=4,x=1"];
        let mut plug =
            Plug { qemu_args: args.map(String::from).to_vec(), placement: Placement::default() };
        plain(Which::Installed).microvm_packed().adapt(&mut plug);
        let device = "virtio-net-device,netdev=n,x=1,packed=on";
        let global = ["-global", "virtio-mmio.force-legacy=false"];
        let args = ["-machine", "microvm,memory-backend=m", "-device", device];
        assert_eq!(plug.qemu_args, [&args[..], &global].concat());
    }
}
