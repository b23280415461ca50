//! Guests of other architectures, each with a kernel of Debian's.

use std::time::Duration;

use weir_bed::{
    address,
    error::Result,
    foreign::{Architecture, Foreign},
    packages,
    process::{Placement, Process},
    qemu::{Guest, MEMORY, Plug, Qemu},
    weir::{Vif, Weir},
};

use super::{
    bed::{Bed, TESTED},
    linux::{Expected, Feature, Return, Streams, try_out},
    qemu_cells::{IN_ORDER, MQ, MRG_RXBUF, RING_PACKED, VERSION_1, lacks_in_order, stop},
    record::{Record, Verdict},
};

/// Longest time to boot. These kernels have drivers of many machines.
const BOOT_PATIENCE: Duration = Duration::from_secs(400);

/// With larger pages, such a kernel needs more memory than other guests.
const LARGER_MEMORY: &str = "512M";

/// The rings of a guest's device.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    /// Text added to the device's options.
    device: &'static str,
    /// Queue pairs.
    queues: u8,
    /// Features that the driver uses.
    present: &'static [Feature],
    /// Features that the driver does not use.
    absent: &'static [Feature],
}

/// A queue pair with split rings.
pub const SPLIT: Rings =
    Rings { device: "", queues: 1, present: &[VERSION_1, MRG_RXBUF], absent: &[RING_PACKED] };

/// A queue pair with packed rings.
pub const PACKED: Rings =
    Rings { device: ",packed=on", present: &[VERSION_1, RING_PACKED], absent: &[], ..SPLIT };

/// A queue pair with packed rings and `IN_ORDER` offered, which these kernels do not accept.
pub const PACKED_IN_ORDER: Rings =
    Rings { device: ",packed=on,in_order=on", absent: &[IN_ORDER], ..PACKED };

/// Four queue pairs with split rings.
pub const SPLIT_4: Rings = Rings { queues: 4, present: &[VERSION_1, MQ], ..SPLIT };

/// Four queue pairs with packed rings.
pub const PACKED_4: Rings = Rings { queues: 4, present: &[MQ, RING_PACKED], ..PACKED };

/// Runs the cell of `architecture` with these rings.
pub fn run(
    architecture: &Architecture,
    rings: Rings,
    bed: &mut Bed<'_>,
    record: &mut Record,
) -> Result<Verdict> {
    let workspace = &bed.lab.workspace;
    let installed = packages::ensure_foreign(workspace);
    let qemu = match installed.and_then(|()| Qemu::at(architecture.qemu)) {
        Ok(qemu) => qemu,
        Err(error) => return Ok(Verdict::Skipped(format!("no {}: {error}", architecture.qemu))),
    };
    let files = match Foreign::ensure(workspace, architecture) {
        Ok(files) => files,
        Err(error) => return Ok(Verdict::Skipped(format!("no kernel: {error}"))),
    };
    record.version = Some(format!("{qemu}, Linux {}", files.version));
    if let Some(why) = lacks_in_order(rings.device, architecture.qemu, qemu)? {
        return Ok(Verdict::Skipped(why));
    }
    let Rings { queues, present, absent, .. } = rings;
    let vif = Vif { queues: (queues > 1).then_some(queues), ..Vif::default() };
    let (mut weir, mut partner) = bed.set_up(&[vif])?;
    let guest = boot(architecture, rings, &files, &weir, qemu)?;
    // These guests have no iperf3.
    let streams = Streams::Files;
    let expected = Expected { queues: queues.into(), present, absent, streams };
    try_out(&mut weir, &mut partner, guest, &expected, Return::ByItself, record)?;
    bed.give_back(partner);
    stop(weir)
}

fn boot(
    architecture: &Architecture,
    rings: Rings,
    files: &Foreign,
    weir: &Weir,
    qemu: Qemu,
) -> Result<Guest> {
    let mut plug = weir.plug_into(qemu, TESTED)?;
    adapt(architecture, rings, &mut plug);
    let [kernel, initrd] =
        [&files.image.kernel, &files.image.initrd].map(|path| path.to_string_lossy());
    let (serial, cidr) = (architecture.serial, address::cidr(TESTED));
    let append = format!(
        "console={serial} loglevel=1 panic=-1 ipv6.disable=1 weir.shell={serial} weir.address={cidr}"
    );
    let mut argv = vec![architecture.qemu, "-accel", "tcg,thread=multi", "-cpu", architecture.cpu];
    argv.extend(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    // With two processors, QEMU before 8.1 keeps memory barriers.
    let cpus = rings.queues.max(2).to_string();
    argv.extend(["-smp", &cpus, "-kernel", &kernel, "-initrd", &initrd, "-append", &append]);
    argv.extend(plug.qemu_args.iter().map(String::as_str));
    let (process, dialogue) = Process::start_dialogue(&argv, &Placement::default())?;
    let console = weir.dir().join("foreign.console");
    Guest::over(architecture.machine, process, dialogue, console, BOOT_PATIENCE)
}

/// Changes the arguments as a user would by hand.
fn adapt(architecture: &Architecture, rings: Rings, plug: &mut Plug) {
    for arg in &mut plug.qemu_args {
        if arg.starts_with("memory-backend=") {
            *arg = format!("{},{arg}", architecture.machine);
        } else if let Some(options) = arg.strip_prefix("virtio-net-pci,") {
            if architecture.channels {
                let kept = options.split(',').filter(|option| !option.starts_with("vectors="));
                *arg = format!("virtio-net-ccw,{}", kept.collect::<Vec<_>>().join(","));
            }
            arg.push_str(rings.device);
        }
        *arg = arg.replace(MEMORY, LARGER_MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_bed::foreign::S390X;

    #[test]
    fn devices_on_channels_have_no_vectors() {
        let args = ["-m", MEMORY, "-machine", "memory-backend=m", "-device"];
        let device = "virtio-net-pci,netdev=n,vectors=0,mac=x";
        let qemu_args = [&args[..], &[device]].concat().into_iter().map(String::from).collect();
        let mut plug = Plug { qemu_args, placement: Placement::default() };
        adapt(&S390X, PACKED, &mut plug);
        let machine = "s390-ccw-virtio,memory-backend=m";
        let device = "virtio-net-ccw,netdev=n,mac=x,packed=on";
        let args = ["-m", LARGER_MEMORY, "-machine", machine, "-device", device];
        assert_eq!(plug.qemu_args, args);
    }
}
