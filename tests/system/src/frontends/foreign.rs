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
    linux::{Expected, Return, Streams, try_out},
    qemu_cells::{MRG_RXBUF, VERSION_1, stop},
    record::{Record, Verdict},
};

/// Longest time to boot. These kernels have drivers of many machines.
const BOOT_PATIENCE: Duration = Duration::from_secs(400);

/// With larger pages, such a kernel needs more memory than other guests.
const LARGER_MEMORY: &str = "512M";

/// These guests have no iperf3.
const EXPECTED: Expected =
    Expected { queues: 1, present: &[VERSION_1, MRG_RXBUF], absent: &[], streams: Streams::Files };

/// Runs the cell of `architecture`.
pub fn run(architecture: &Architecture, bed: &mut Bed<'_>, record: &mut Record) -> Result<Verdict> {
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
    let (mut weir, mut partner) = bed.set_up(&[Vif::default()])?;
    let guest = boot(architecture, &files, &weir, qemu)?;
    try_out(&mut weir, &mut partner, guest, &EXPECTED, Return::ByItself, record)?;
    bed.give_back(partner);
    stop(weir)
}

fn boot(architecture: &Architecture, files: &Foreign, weir: &Weir, qemu: Qemu) -> Result<Guest> {
    let mut plug = weir.plug_into(qemu, TESTED)?;
    adapt(architecture, &mut plug);
    let [kernel, initrd] =
        [&files.image.kernel, &files.image.initrd].map(|path| path.to_string_lossy());
    let (serial, cidr) = (architecture.serial, address::cidr(TESTED));
    let append = format!(
        "console={serial} loglevel=1 panic=-1 ipv6.disable=1 weir.shell={serial} weir.address={cidr}"
    );
    let mut argv = vec![architecture.qemu, "-accel", "tcg,thread=multi", "-cpu", architecture.cpu];
    argv.extend(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    // With two processors, QEMU before 8.1 keeps memory barriers.
    argv.extend(["-smp", "2", "-kernel", &kernel, "-initrd", &initrd, "-append", &append]);
    argv.extend(plug.qemu_args.iter().map(String::as_str));
    let (process, dialogue) = Process::start_dialogue(&argv, &Placement::default())?;
    let console = weir.dir().join("foreign.console");
    Guest::over(architecture.machine, process, dialogue, console, BOOT_PATIENCE)
}

/// Changes the arguments as a user would by hand.
fn adapt(architecture: &Architecture, plug: &mut Plug) {
    for arg in &mut plug.qemu_args {
        if arg.starts_with("memory-backend=") {
            *arg = format!("{},{arg}", architecture.machine);
        } else if let (true, Some(options)) =
            (architecture.channels, arg.strip_prefix("virtio-net-pci,"))
        {
            let kept = options.split(',').filter(|option| !option.starts_with("vectors="));
            *arg = format!("virtio-net-ccw,{}", kept.collect::<Vec<_>>().join(","));
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
        adapt(&S390X, &mut plug);
        let machine = "s390-ccw-virtio,memory-backend=m";
        let device = "virtio-net-ccw,netdev=n,mac=x";
        let args = ["-m", LARGER_MEMORY, "-machine", machine, "-device", device];
        assert_eq!(plug.qemu_args, args);
    }
}
